"""Assign lists and documents to steps, workers and micro-batches, deterministically by index.

The stream of lists is one shuffle per epoch, by hash of (seed, epoch, example); step s takes its s-th slice. Without
random state, training resumes at any step with the same lists. Lists that share in-batch negatives are consecutive and
stay in one micro-batch.
Letters: E lists, P documents of all lists, B lists of a micro-batch, K documents of its longest list, N pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, fields, replace
from functools import cached_property
from operator import attrgetter
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.identity import uniforms
from anmi_ray.models.pairs import Batch, TokenPairs
from anmi_ray.models.texts import TextPairs
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.training_set import Shuffle, TrainingSet


@dataclass(frozen=True)
class Listed:
    """List e in a step: positions of its documents (anchor first) and their weights in the ranking term."""

    e: int
    documents: NDArray[np.int64]
    weights: NDArray[np.float64]


@dataclass(frozen=True)
class MicroBatch:
    """Lists of one forward and backward pass: pairs (or texts) in batches of similar length, and grids over lists.

    slot_N: index of the n-th score in the flattened [B, K] grid.
    positive_BK: documents that may be relevant instead of the anchor.
    weight_BK, rating_BK: in-batch negatives follow a list's own documents and have no rating.
    precision_BK: weights of squared errors in the regression term.
    """

    batches: list[Batch] | TextPairs
    slot_N: NDArray[np.int64]
    mask_BK: NDArray[np.bool_]
    positive_BK: NDArray[np.bool_]
    weight_BK: NDArray[np.float32]
    rating_BK: NDArray[np.float32]
    precision_BK: NDArray[np.float32]
    mean_B: NDArray[np.float32]
    spread_B: NDArray[np.float32]

    @property
    def tokens(self) -> int:
        """Number of tokens including padding."""
        return sum(batch.tokens for batch in self.batches)


def total_steps(config: LearnConfig, items: int) -> int:
    """Return the number of steps: max_steps, or `epochs` passes over the items, at least one step."""
    return config.max_steps or max(1, round(config.epochs * items / config.per_step))


def lists_of_step(order: Shuffle, config: LearnConfig, step: int) -> list[tuple[int, int]]:
    """Return (list, epoch) for each list of `step`, counted from 0: a slice of the stream of shuffled epochs."""
    first = step * config.per_step
    chosen: list[tuple[int, int]] = []
    for epoch in range(first // len(order), (first + config.per_step - 1) // len(order) + 1):
        begin = max(first - epoch * len(order), 0)
        stop = min(first + config.per_step - epoch * len(order), len(order))
        chosen.extend((int(e), epoch) for e in order(config.seed, epoch)[begin:stop])
    return chosen


S = TypeVar("S")
M = TypeVar("M")


def shared_out(
    units: Sequence[S], tokens: Callable[[S], int], execution: TrainExecution, rank: int, world: int
) -> list[list[S]]:
    """Return the micro-batches of worker `rank`: units, largest first, dealt to workers and then to micro-batches.

    Micro-batches have about `micro_batch_tokens`; `world` must divide the number of units.
    """
    shares = [_deal(units, world, worker) for worker in range(world)]
    largest = max(sum(map(tokens, share)) for share in shares)
    count = min(max(-(-largest // execution.micro_batch_tokens), 1), len(shares[rank]))
    return [_deal(shares[rank], count, part) for part in range(count)]


def step_batches(
    data: TrainingSet,
    config: TrainConfig,
    step: int,
    phase: Phase,
    execution: TrainExecution,
    rank: int = 0,
    world: int = 1,
) -> list[MicroBatch]:
    """Return the micro-batches of worker `rank` at `step`: equally many per worker, of about `micro_batch_tokens`.

    The union over workers and micro-batches is the step's lists, each once. Raises ConfigError if they cannot be
    divided.
    """
    config.check_workers(world)
    lists = [listed(data, config, e, phase, epoch) for e, epoch in lists_of_step(data.order, config, step)]
    size = config.lists_per_group
    units = [_Unit(data, lists[i : i + size]) for i in range(0, len(lists), size)]
    units.sort(key=lambda unit: (-unit.tokens, unit.lists[0].e))
    return [
        _micro_batch(data, config, part, phase, execution)
        for part in shared_out(units, attrgetter("tokens"), execution, rank, world)
    ]


def listed(data: TrainingSet, config: TrainConfig, e: int, phase: Phase, epoch: int) -> Listed:
    """Return list `e` in `epoch`, without documents that affect neither loss term."""
    positions = np.arange(data.start_E[e], data.start_E[e + 1])
    weights = effective_weights(data, positions, phase)
    if config.negatives is not None:
        salt = (config.seed, epoch, data.example_E[e].tobytes())
        rest = data.is_negative_P[positions]
        weights[rest] = drawn(data, positions[rest], weights[rest], config.negatives, salt)  # weights become 0 or 1
    needed = weights > 0
    by_rating = config.loss.ranking in ("ranknet", "listnet")
    if by_rating or phase.alpha <= 0.0:
        needed[:] = False  # weights are not used
    if by_rating or phase.alpha < 1.0:
        needed |= np.isfinite(data.rating_P[positions])
    needed[0] = True
    return Listed(e, positions[needed], weights[needed])


def drawn(
    data: TrainingSet,
    positions: NDArray[np.int64],
    weights: NDArray[np.float64],
    count: int,
    salt: tuple[int | bytes, ...],
) -> NDArray[np.bool_]:
    """Sample `count` of a list's negatives without replacement, rated ones first, with odds in proportion to weight.

    Takes the largest u^(1/weight) for uniform u (Efraimidis and Spirakis 2006).
    """
    able = np.flatnonzero(weights > 0)
    key = np.log(uniforms(data.doc_id_P[positions[able]], "negatives", *salt)) / weights[able]
    order = np.lexsort((-key, np.isnan(data.rating_P[positions[able]])))
    chosen = np.zeros(len(positions), dtype=bool)
    chosen[able[order[:count]]] = True
    return chosen


def effective_weights(data: TrainingSet, positions: NDArray[np.int64], phase: Phase) -> NDArray[np.float64]:
    """Return a list's weights in the ranking term; rated negatives that the phase excludes get 0."""
    gap = data.gap_P[positions]
    weight = data.weight_P[positions]
    out = (gap < phase.minimum_gap_elo) | (gap >= phase.maximum_gap_elo) | (data.tier_P[positions] > phase.highest_tier)
    out &= data.is_negative_P[positions]
    rated = np.isfinite(gap) & (weight > 0) & data.is_negative_P[positions]
    if phase.nearest and rated.any() and not (rated & ~out).any():
        distance = np.maximum(phase.minimum_gap_elo - gap, gap - phase.maximum_gap_elo)
        out[np.flatnonzero(rated)[np.argmin(distance[rated])]] = False
    return np.where(out, 0.0, weight)


def weighed_gaps(data: TrainingSet) -> NDArray[np.float64]:
    """Return gaps (Elo points) of all rated negatives with positive weight."""
    return data.gap_P[data.is_negative_P & (data.weight_P > 0) & np.isfinite(data.gap_P)]


def in_batch_negatives(data: TrainingSet, group: Sequence[Listed]) -> list[NDArray[np.int64]]:
    """Return the in-batch negatives of each list of a group: documents of its other lists, each text once, ascending.

    Excluded are documents in any list of the same query, in this step or not (its anchors and rated documents may be
    relevant, its random ones have their own weight), copies of these, and the query's own document.
    """
    read = np.unique(data.document_P[np.concatenate([each.documents for each in group])])
    read = read[np.sort(np.unique(data.copy_D[read], return_index=True)[1])]
    negatives: list[NDArray[np.int64]] = []
    for each in group:
        query = int(data.query_E[each.e])
        order, start = data.by_query
        lists = (data.document_P[slice(*data.start_E[[e, e + 1]])] for e in order[start[query] : start[query + 1]])
        known = np.concatenate([*lists, data.own_Q[[query]]])
        negatives.append(read[~np.isin(data.copy_D[read], data.copy_D[known[known >= 0]])])
    return negatives


@dataclass(frozen=True)
class _Unit:
    """Lists that stay in one micro-batch."""

    data: TrainingSet
    lists: list[Listed]

    @cached_property
    def tokens(self) -> int:
        return sum(int(self.data.tokens_P[each.documents].sum()) for each in self.lists)


def _deal(items: Sequence[S], hands: int, hand: int) -> list[S]:
    """Deal items (largest first) in alternating direction: counts differ by at most one, and sums are similar."""
    return [
        item for i, item in enumerate(items) if (i % hands if i // hands % 2 == 0 else hands - 1 - i % hands) == hand
    ]


def _micro_batch(
    data: TrainingSet, config: TrainConfig, units: list[_Unit], phase: Phase, execution: TrainExecution
) -> MicroBatch:
    lists = [one for unit in units for one in unit.lists]
    extra = [np.zeros(0, np.int64)] * len(lists)
    if config.loss.in_batch and phase.alpha > 0:
        extra = [documents for unit in units for documents in in_batch_negatives(data, unit.lists)]
    width = max(len(one.documents) + len(more) for one, more in zip(lists, extra, strict=True))
    mask, positive = (np.zeros((len(lists), width), dtype=bool) for _ in range(2))
    weight, rating, precision = (np.full((len(lists), width), fill, np.float32) for fill in (0.0, np.nan, 0.0))
    precision_P = data.rating_precision_P if config.loss.regression == "ratings" else data.gap_precision_P
    for row, (one, more) in enumerate(zip(lists, extra, strict=True)):
        own = len(one.documents)
        mask[row, : own + len(more)] = True
        weight[row, :own] = one.weights
        positive[row, 1:own] = ~data.is_negative_P[one.documents[1:]]
        weight[row, own : own + len(more)] = 1.0
        rating[row, :own] = data.rating_P[one.documents]
        precision[row, :own] = precision_P[one.documents]
    weight[:, 0] = 1.0
    chosen = np.array([one.e for one in lists])
    slot = np.flatnonzero(mask.ravel())
    of_lists = ((data.document_P[one.documents], more) for one, more in zip(lists, extra, strict=True))
    document = np.concatenate([part for both in of_lists for part in both])
    row = slot // width
    tokens = TokenPairs(data.queries, data.query_E[chosen][row], data.documents, document)
    batches, order = data.pairs.inputs(tokens, row, execution.at_once, execution.use_gpu)
    if isinstance(batches, TextPairs):  # one unit cannot be split: bound its memory by recomputation
        batches = replace(batches, recompute=len(units) == 1 and batches.tokens > execution.micro_batch_tokens)
    return MicroBatch(
        batches=batches,
        slot_N=slot[order],
        mask_BK=mask,
        positive_BK=positive,
        weight_BK=weight,
        rating_BK=rating,
        precision_BK=precision,
        mean_B=data.mean_E[chosen].astype(np.float32),
        spread_B=data.spread_E[chosen].astype(np.float32),
    )


class Ahead(Generic[M]):
    """Prepares the batches of the next step in a thread, while the current step computes.

    Batches prepared for another step or phase are dropped, so results depend only on step and phase. `make` runs once
    at a time; its errors are raised by `batches`. The thread ends with the `with` block.
    """

    def __init__(self, make: Callable[[int, Phase], list[M]]) -> None:
        self._make = make
        self._thread = ThreadPoolExecutor(1, "batches")
        self._next: tuple[int, Phase, Future[list[M]]] | None = None

    def prepare(self, step: int, phase: Phase | None) -> None:
        """Start with the batches of `step`, if its phase is known."""
        self._next = None if phase is None else (step, phase, self._thread.submit(self._make, step, phase))

    def batches(self, step: int, phase: Phase) -> list[M]:
        """Return the batches of `step` in `phase`."""
        prepared, self._next = self._next, None
        if prepared is not None:
            if prepared[:2] == (step, phase):
                return prepared[2].result()
            wait([prepared[2]])
        return self._make(step, phase)

    def __enter__(self) -> Ahead[M]:
        return self

    def __exit__(self, *_: object) -> None:
        self._thread.shutdown(cancel_futures=True)


def pinned(batch: Any) -> Any:
    """Copy a batch to page-locked memory, from which a GPU copies asynchronously."""
    inputs: Any = [_arrays_pinned(part) for part in batch.batches]
    if isinstance(batch.batches, TextPairs):
        inputs = replace(_arrays_pinned(batch.batches), batches=inputs)
    return replace(_arrays_pinned(batch), batches=inputs)


def _arrays_pinned(part: Any) -> Any:
    values = {field.name: getattr(part, field.name) for field in fields(part)}
    return replace(part, **{name: _pin(value) for name, value in values.items() if isinstance(value, np.ndarray)})


def _pin(array: NDArray[Any]) -> NDArray[Any]:
    return torch.from_numpy(array).pin_memory().numpy()
