"""A pair classifier under training: scores of an ensemble on pairs of documents, the losses against them, and its task.

A pair has two inputs, one a presentation order: (first a, second b), then (first b, second a). Each epoch shows one of
them, by hash; where each document is scored alone the two inputs are the documents, both are shown, and the difference
of their scores is the logit. Legend: P pairs, R = 2P inputs, B rows of a micro-batch, N inputs of it, L labels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import attrgetter
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from anmi_ray.config.distill import LABELS, DistillConfig, Target
from anmi_ray.config.objective import CurriculumConfig
from anmi_ray.config.train import TrainExecution
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import uniforms
from anmi_ray.models.pairs import Batch
from anmi_ray.models.texts import TextPairs
from anmi_ray.training.batching import lists_of_step, shared_out
from anmi_ray.training.checks import check_positions
from anmi_ray.training.curriculum import Curriculum, Phase
from anmi_ray.training.engine import Engine
from anmi_ray.training.module import Inputs, Learner
from anmi_ray.training.objective import CONSTANT_SPREAD, Figures
from anmi_ray.training.pair_inputs import Logits, PairReader
from anmi_ray.training.training_set import Shuffle
from anmi_ray.training.vectors import cosines

SHARPNESS = 20.0  # of cosines, at the start


@dataclass(frozen=True)
class PairSet:
    """Pairs with their inputs and scores, score_P[p] in [0, 1], 0 where all judges prefer document a."""

    comparison_P: NDArray[np.uint8]
    score_P: NDArray[np.float64]
    reader: PairReader

    def __len__(self) -> int:
        return len(self.score_P)

    @cached_property
    def tokens_R(self) -> NDArray[np.int64]:
        """Tokens of every input."""
        return self.reader.tokens_R

    @cached_property
    def order(self) -> Shuffle:
        """The pairs in the order of an epoch."""
        return Shuffle(self.comparison_P)

    def swapped(self, pair_B: NDArray[np.int64], seed: int, epoch_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """For each pair 1 where its epoch shows document b first: by hash in even epochs, the other one in odd ones."""
        drawn_B = np.zeros(len(pair_B), dtype=bool)
        for two in np.unique(epoch_B // 2).tolist():
            of = epoch_B // 2 == two
            drawn_B[of] = uniforms(self.comparison_P[pair_B[of]], "shown", seed, two) < 0.5
        return (drawn_B ^ (epoch_B % 2 == 1)).astype(np.int64)


@dataclass(frozen=True)
class PairBatch:
    """Inputs of one forward call; the n-th logit belongs to row place_N[n].

    score_B float32[B]: the score of the document shown second, of a row of pairs read together; of documents read
    alone of every two rows.
    """

    batches: Inputs
    place_N: NDArray[np.int64]
    score_B: NDArray[np.float32]

    @property
    def tokens(self) -> int:
        """Tokens computed, padding included."""
        return sum(batch.tokens for batch in self.batches)


@dataclass(frozen=True)
class HeldOut:
    """Pairs that nothing is trained on, and the measure of their logits float32[R, L] at a step (larger is better)."""

    pairs: PairSet
    measure: Callable[[int, Logits], float]


def soft_labels(score_B: Tensor, target: Target) -> Tensor:
    """What logits are trained towards, [B, L]: of `two-head` two probabilities, else a distribution.

    binary: (1 - c, c). ternary: P(tie) = 1 - |2c - 1|, the rest on the preferred side. two-head: (c, |2c - 1|).
    """
    lean = 2.0 * score_B - 1.0
    if target == "binary":
        return torch.stack([1.0 - score_B, score_B], dim=1)
    if target == "two-head":
        return torch.stack([score_B, lean.abs()], dim=1)
    return torch.stack([(-lean).clamp(min=0.0), lean.clamp(min=0.0), 1.0 - lean.abs()], dim=1)


def preference_loss(logits_BL: Tensor, score_B: Tensor, target: Target) -> Tensor:
    """Cross-entropy [B] in nats of logits against `soft_labels`; of `two-head` the sum of both logits' own."""
    label_BL = soft_labels(score_B, target)
    if target == "two-head":
        return functional.binary_cross_entropy_with_logits(logits_BL, label_BL, reduction="none").sum(1)
    return -(label_BL * functional.log_softmax(logits_BL, dim=1)).sum(1)


def as_logits(score_R: Tensor) -> Tensor:
    """Logits [B, 2] (first, second) of pairs whose documents are scored alone, rows 2i and 2i + 1."""
    difference = score_R[1::2] - score_R[::2]
    return torch.stack([torch.zeros_like(difference), difference], dim=1)


class PairLearner(Learner):
    """What the network gives of a micro-batch; of a bi-encoder's cosines, times a learned sharpness."""

    def __init__(self, model: Any, config: DistillConfig, execution: TrainExecution) -> None:
        super().__init__(model.network, model.device, config, execution)
        self._rate = config.head_learning_rate
        self.log_sharpness = nn.Parameter(torch.tensor([math.log(SHARPNESS)])) if config.form == "bi-encoder" else None
        self.to(model.device)

    def rates(self) -> dict[int, float]:
        """That of the sharpness."""
        return {} if self.log_sharpness is None else {id(self.log_sharpness): self._rate}

    def forward(self, batches: Inputs) -> tuple[Tensor]:
        """Scores float32[N] or logits [N, L], in the order of the inputs."""
        if self.log_sharpness is None:
            return (torch.cat(self.logits(cast(list[Batch], batches))).float(),)
        return (self.log_sharpness.exp() * cosines(self, cast(TextPairs, batches))[0],)


class PreferenceLoss:
    """The loss of a step, the mean over its pairs; figures: loss, the share of decided pairs on the right side."""

    def __init__(self, device: torch.device, config: DistillConfig, single: bool) -> None:
        self.device = device
        self.config = config
        self.single = single
        moments = 2 * len(LABELS[config.target])  # Σ of every logit, and of its square
        self._sums = torch.zeros(5 + moments, dtype=torch.float64, device=device)

    def _logits(self, batch: PairBatch, given: Tensor) -> Tensor:
        place = torch.from_numpy(batch.place_N).to(self.device)
        rows = torch.zeros_like(given).index_put((place,), given)
        return as_logits(rows) if self.single else rows

    def _loss(self, batch: PairBatch, given: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        score_B = torch.from_numpy(batch.score_B).to(self.device, non_blocking=True)
        logits_BL = self._logits(batch, given)
        target: Target = "binary" if self.single else self.config.target
        return preference_loss(logits_BL, score_B, target).sum() / self.config.per_step, logits_BL, score_B

    def of(self, batch: PairBatch, phase: Phase) -> Callable[..., Tensor]:
        """The loss of a micro-batch as its share of the step's, from the logits; adds to `sums`."""

        def objective(given: Tensor) -> Tensor:
            loss, logits_BL, score_B = self._loss(batch, given)
            with torch.no_grad():
                lean = logits_BL[:, 0] if self.config.target == "two-head" else logits_BL[:, 1] - logits_BL[:, 0]
                decided = score_B != 0.5
                right = (lean > 0) == (score_B > 0.5)
                seen = torch.stack([figure.double() for figure in (loss, right[decided].sum(), decided.sum())])
                counts = torch.tensor([len(given), batch.tokens], dtype=torch.float64, device=self.device)
                logits = logits_BL.double()
                self._sums += torch.cat([seen, counts, logits.sum(0), logits.square().sum(0)])
            return loss

        return objective

    @torch.no_grad()
    def loss_of(self, batch: PairBatch, phase: Phase, *given: Tensor) -> float:
        """The same as a number, adding to nothing."""
        return float(self._loss(batch, given[0])[0])

    def sums(self) -> list[float]:
        """What the step's micro-batches of this worker add up to; begins anew."""
        totals = self._sums.tolist()
        self._sums.zero_()
        return totals

    def finish(self, totals: Sequence[float], phase: Phase, step: int) -> Figures:
        """The step's figures from the sums of all workers."""
        loss, right, decided, inputs, tokens, *moments = totals
        accuracy = right / decided if decided else None
        varied = self._varied(torch.tensor(moments, dtype=torch.float64).view(2, -1) / self.config.per_step)
        return {"loss": loss, "accuracy": accuracy, "varied": varied, "pairs": inputs, "tokens": tokens}

    def _varied(self, moments_2L: Tensor) -> bool:
        """Whether a logit differs between the step's pairs, from means and mean squares; of a single pair none can."""
        if self.config.per_step == 1:
            return True
        mean_L, square_L = moments_2L
        # of large logits relative to their size: what rounding leaves of their squares is no difference
        least_L = CONSTANT_SPREAD**2 * square_L.clamp(min=1.0)
        return bool((square_L - mean_L**2 > least_L).any())

    def state(self) -> dict[str, Any]:
        """Nothing: nothing is learned beside the model."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""


@dataclass(frozen=True)
class _Unit:
    """A pair in the order that a step shows."""

    pair: int
    rows: tuple[int, ...]
    score: float
    tokens: int


class PreferenceTask:
    """A pair classifier (or the cross-encoder whose differences it is) and its pairs.

    Raises DataError where there are fewer pairs than labels or every score is a tie; ConfigError where inputs are
    longer than the model's positions, or the network's `Learner` does.
    """

    constant = "every pair got the same logits"
    has_dev = True
    interpolate: tuple[float, ...] = ()

    def __init__(
        self,
        model: Any,
        data: PairSet,
        held: HeldOut,
        config: DistillConfig,
        execution: TrainExecution,
    ) -> None:
        check_pairs(data, config)
        check_positions(model.network, int(data.tokens_R.max()), "inputs", config.group)
        self.config = config
        self.data = data
        self.held = held
        self.items = len(data)
        self.curriculum = Curriculum(CurriculumConfig(), 1.0)  # all pairs at all times
        self.result = copy.copy(model)
        self.result.network = copy.deepcopy(model.network)  # engines may partition or wrap the other one
        self.module: Learner = PairLearner(model, config, execution)

    def losses(self, world: int) -> PreferenceLoss:
        """Cross-entropy against the scores; its value does not depend on the number of workers."""
        return PreferenceLoss(self.module.device, self.config, self.data.reader.single)

    def batches(self, step: int, phase: Phase, execution: TrainExecution, rank: int, world: int) -> list[PairBatch]:
        """The micro-batches of a worker's share of a step."""
        self.config.check_workers(world)
        units = self._units(step)
        units.sort(key=lambda unit: (-unit.tokens, unit.pair))
        tokens_of = attrgetter("tokens")
        return [self._batch(part, execution) for part in shared_out(units, tokens_of, execution, rank, world)]

    def _units(self, step: int) -> list[_Unit]:
        chosen = np.array(lists_of_step(self.data, self.config, step), dtype=np.int64)
        pair_B = chosen[:, 0]
        epoch_B = chosen[:, 1]
        tokens = self.data.tokens_R
        score = self.data.score_P
        if self.data.reader.single:
            return [
                _Unit(p, (2 * p, 2 * p + 1), float(score[p]), int(tokens[2 * p : 2 * p + 2].sum()))
                for p in pair_B.tolist()
            ]
        swap_B = self.data.swapped(pair_B, self.config.seed, epoch_B)
        return [
            _Unit(p, (2 * p + s,), float(1.0 - score[p] if s else score[p]), int(tokens[2 * p + s]))
            for p, s in zip(pair_B.tolist(), swap_B.tolist(), strict=True)
        ]

    def _batch(self, units: list[_Unit], execution: TrainExecution) -> PairBatch:
        rows = np.array([row for unit in units for row in unit.rows], dtype=np.int64)
        batches, place = self.data.reader.inputs(rows, execution.at_once, execution.use_gpu)
        return PairBatch(batches, place, np.array([unit.score for unit in units], dtype=np.float32))

    def evaluate(self, engine: Engine, step: int) -> float:
        """The measure of the held-out pairs' logits in both orders."""
        pairs = self.held.pairs
        scorer = self.result.scorer(self.config.precision)
        output = engine.over_rows(2 * len(pairs), lambda rows: pairs.reader.infer(scorer, rows))
        logits_RL = both_orders(output[:, 0]) if pairs.reader.single else output
        return self.held.measure(step, logits_RL) if np.isfinite(logits_RL).all() else np.nan


def both_orders(score_R: NDArray[np.float32]) -> Logits:
    """Logits float32[R, 2] of both orders of pairs whose documents are scored alone."""
    difference = score_R[1::2] - score_R[::2]
    logits = np.zeros((len(score_R), 2), dtype=np.float32)
    logits[::2, 1] = difference
    logits[1::2, 1] = -difference
    return logits


def check_pairs(data: PairSet, config: DistillConfig) -> None:
    """DataError where there is nothing to learn: too few pairs, scores outside [0, 1], or nothing but ties."""
    labels = 3 if config.target == "ternary" else 2
    remedy = f"raise {config.group}.sample.pairs"
    if len(data) <= labels:
        raise DataError(f"{len(data)} pairs to learn {labels} labels from", "distill", remedy)
    inside = (data.score_P >= 0) & (data.score_P <= 1)  # NaN is outside
    if not inside.all():
        worst = data.score_P[np.argmin(inside)]
        raise DataError(
            f"{int((~inside).sum())} scores are not in [0, 1], the first is {worst:g}",
            "distill",
            "give scores that are mean votes: 0 the first document, 1 the second",
        )
    if (data.score_P == 0.5).all():
        raise DataError(
            f"all {len(data)} pairs are ties: there is nothing to learn", "distill", f"ask other judges, or {remedy}"
        )
