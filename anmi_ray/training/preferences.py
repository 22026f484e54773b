"""Training a distilled judge on an ensemble's scores of pairs of documents: inputs, loss, and task.

Pair p has the inputs 2p and 2p + 1. Read together, they are the presentation orders (a, b) and (b, a), of which each
epoch shows one, by hash. Read apart, they are the documents a and b; the difference of their scores is the logit.
Legend: P pairs, R = 2P inputs, B rows of a micro-batch, N inputs of it, L labels.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Sequence
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
from anmi_ray.config.train import CurriculumConfig, TrainExecution
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import uniforms
from anmi_ray.models.classifier import TokenInputs
from anmi_ray.models.pairs import Batch, Ragged, TokenPairs
from anmi_ray.models.reranker import Reranker
from anmi_ray.models.texts import TextPairs
from anmi_ray.training.batching import lists_of_step, shared_out
from anmi_ray.training.curriculum import Curriculum, Phase
from anmi_ray.training.engine import Engine
from anmi_ray.training.module import Inputs, Learner
from anmi_ray.training.objective import CONSTANT_SPREAD, Figures, Losses
from anmi_ray.training.task import Task
from anmi_ray.training.training_set import Shuffle
from anmi_ray.training.vectors import cosines

SHARPNESS = 20.0  # of cosines, at the start
Rows = NDArray[np.int64]
Logits = NDArray[np.float32]


class Apart:
    """Inputs with a query and one document, as `TokenInputs`: input r has the query query_R[r] and document r."""

    single = True

    def __init__(self, model: Reranker, queries: Ragged, query_R: Rows, documents: Ragged) -> None:
        self._pairs = model.pairs
        self._tokens = TokenPairs(queries, query_R, documents, np.arange(len(query_R)))
        self.lengths = self._pairs.pair_lengths(self._tokens)

    def inputs(self, row_N: Rows, token_budget: int, on_gpu: bool = False) -> tuple[Inputs, Rows]:
        """As `TokenInputs.inputs`; for a bi-encoder, texts and their pairs."""
        return self._pairs.inputs(self._tokens.take(row_N), np.arange(len(row_N)), token_budget, on_gpu)

    def infer(self, model: Reranker, row_N: Rows) -> Logits:
        """Scores float32[N, 1]."""
        return model.score_tokens(self._tokens.take(row_N))[:, None]


@dataclass(frozen=True)
class PairSet:
    """Pairs with their inputs and scores in [0, 1]: 0 if all judges prefer document a."""

    comparison_P: NDArray[np.uint8]
    score_P: NDArray[np.float64]
    reader: TokenInputs | Apart

    def __len__(self) -> int:
        return len(self.score_P)

    @cached_property
    def order(self) -> Shuffle:
        """Order of the pairs in an epoch."""
        return Shuffle(self.comparison_P)

    def swapped(self, pair_B: NDArray[np.int64], seed: int, epoch_B: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return 1 for pairs whose epoch shows document b first: by hash in even epochs, the opposite in odd ones."""
        drawn_B = np.zeros(len(pair_B), dtype=bool)
        for two in np.unique(epoch_B // 2).tolist():
            of = epoch_B // 2 == two
            drawn_B[of] = uniforms(self.comparison_P[pair_B[of]], "shown", seed, two) < 0.5
        return (drawn_B ^ (epoch_B % 2 == 1)).astype(np.int64)


@dataclass(frozen=True)
class PairBatch:
    """Inputs of one forward call.

    place_N: row of each output.
    score_B: score of each pair's second document.
    """

    batches: Inputs
    place_N: NDArray[np.int64]
    score_B: NDArray[np.float32]

    @property
    def tokens(self) -> int:
        """Number of tokens including padding."""
        return sum(batch.tokens for batch in self.batches)


def soft_labels(score_B: Tensor, target: Target) -> Tensor:
    """Training targets [B, L]: two probabilities for `two-head`, else a distribution.

    binary: (1 - c, c). ternary: P(tie) = 1 - |2c - 1|, the rest on the preferred side. two-head: (c, |2c - 1|).
    """
    lean = 2.0 * score_B - 1.0
    if target == "binary":
        return torch.stack([1.0 - score_B, score_B], dim=1)
    if target == "two-head":
        return torch.stack([score_B, lean.abs()], dim=1)
    return torch.stack([(-lean).clamp(min=0.0), lean.clamp(min=0.0), 1.0 - lean.abs()], dim=1)


def preference_loss(logits_BL: Tensor, score_B: Tensor, target: Target) -> Tensor:
    """Cross-entropy [B] in nats of logits against `soft_labels`; for `two-head` the sum over both logits."""
    label_BL = soft_labels(score_B, target)
    if target == "two-head":
        return functional.binary_cross_entropy_with_logits(logits_BL, label_BL, reduction="none").sum(1)
    return -(label_BL * functional.log_softmax(logits_BL, dim=1)).sum(1)


def as_logits(score_R: Tensor) -> Tensor:
    """Logits [B, 2] of pairs read apart, from the scores of rows 2i and 2i + 1."""
    difference = score_R[1::2] - score_R[::2]
    return torch.stack([torch.zeros_like(difference), difference], dim=1)


class PairLearner(Learner):
    """Outputs of the network for a micro-batch; cosines are multiplied by a learned sharpness."""

    def __init__(self, model: Any, config: DistillConfig, execution: TrainExecution) -> None:
        super().__init__(model.network, model.device, config, execution)
        self._rate = config.head_learning_rate
        self.log_sharpness = nn.Parameter(torch.tensor([math.log(SHARPNESS)])) if config.form == "bi-encoder" else None
        self.to(model.device)

    def rates(self) -> dict[int, float]:
        return {} if self.log_sharpness is None else {id(self.log_sharpness): self._rate}

    def forward(self, batches: Inputs) -> tuple[Tensor]:
        """Return scores float32[N] or logits [N, L]."""
        if self.log_sharpness is None:
            return (torch.cat(self.logits(cast(list[Batch], batches))).float(),)
        return (self.log_sharpness.exp() * cosines(self, cast(TextPairs, batches))[0],)


class PreferenceLoss(Losses):
    """The mean loss over a step's pairs, and the share of decided pairs on the right side."""

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

    def loss(self, batch: PairBatch, phase: Phase, *outputs: Tensor, record: bool = True) -> Tensor:
        (given,) = outputs
        score_B = torch.from_numpy(batch.score_B).to(self.device, non_blocking=True)
        logits_BL = self._logits(batch, given)
        target: Target = "binary" if self.single else self.config.target
        loss = preference_loss(logits_BL, score_B, target).sum() / self.config.per_step
        if record:
            with torch.no_grad():
                lean = logits_BL[:, 0] if self.config.target == "two-head" else logits_BL[:, 1] - logits_BL[:, 0]
                decided = score_B != 0.5
                right = (lean > 0) == (score_B > 0.5)
                seen = torch.stack([figure.double() for figure in (loss, right[decided].sum(), decided.sum())])
                counts = torch.tensor([len(given), batch.tokens], dtype=torch.float64, device=self.device)
                logits = logits_BL.double()
                self._sums += torch.cat([seen, counts, logits.sum(0), logits.square().sum(0)])
        return loss

    def sums(self) -> list[float]:
        totals = self._sums.tolist()
        self._sums.zero_()
        return totals

    def finish(self, totals: Sequence[float], phase: Phase, step: int) -> Figures:
        loss, right, decided, inputs, tokens, *moments = totals
        accuracy = right / decided if decided else None
        varied = self._varied(torch.tensor(moments, dtype=torch.float64).view(2, -1) / self.config.per_step)
        return {"loss": loss, "accuracy": accuracy, "varied": varied, "pairs": inputs, "tokens": tokens}

    def _varied(self, moments_2L: Tensor) -> bool:
        """Return whether a logit differs between the step's pairs, from means and mean squares."""
        if self.config.per_step == 1:
            return True
        mean_L, square_L = moments_2L
        # relative for large logits: rounding of their squares is not a difference
        least_L = CONSTANT_SPREAD**2 * square_L.clamp(min=1.0)
        return bool((square_L - mean_L**2 > least_L).any())


@dataclass(frozen=True)
class _Unit:
    """A pair as shown in a step."""

    pair: int
    rows: tuple[int, ...]
    score: float
    tokens: int


class PreferenceTask(Task):
    """A pair classifier, or a reranker whose score differences are the logits, and its pairs.

    held: pairs not trained on
    measure: of their logits float32[R, L] at a step (larger is better)
    Raises DataError as `check_pairs`, ConfigError as `Learner`.
    """

    constant = "every pair got the same logits"
    has_dev = True

    def __init__(
        self,
        model: Any,
        data: PairSet,
        held: PairSet,
        measure: Callable[[int, Logits], float],
        config: DistillConfig,
        execution: TrainExecution,
    ) -> None:
        check_pairs(data, config)
        self.config: DistillConfig = config
        self.data = data
        self.held = held
        self.measure = measure
        self.items = len(data)
        self.curriculum = Curriculum(CurriculumConfig(), 1.0)  # all pairs in every step
        self.result = copy.copy(model)
        self.result.network = copy.deepcopy(model.network)  # engines may partition or wrap the other
        self.module: Learner = PairLearner(model, config, execution)

    def losses(self, world: int) -> PreferenceLoss:
        return PreferenceLoss(self.module.device, self.config, self.data.reader.single)

    def batches(self, step: int, phase: Phase, execution: TrainExecution, rank: int, world: int) -> list[PairBatch]:
        self.config.check_workers(world)
        units = self._units(step)
        units.sort(key=lambda unit: (-unit.tokens, unit.pair))
        tokens_of = attrgetter("tokens")
        return [self._batch(part, execution) for part in shared_out(units, tokens_of, execution, rank, world)]

    def _units(self, step: int) -> list[_Unit]:
        chosen = np.array(lists_of_step(self.data.order, self.config, step), dtype=np.int64)
        pair_B = chosen[:, 0]
        epoch_B = chosen[:, 1]
        tokens = self.data.reader.lengths
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
        pairs = self.held
        scorer = self.result.scorer(self.config.precision)
        output = engine.over_rows(2 * len(pairs), lambda rows: pairs.reader.infer(scorer, rows))
        logits_RL = both_orders(output[:, 0]) if pairs.reader.single else output
        return self.measure(step, logits_RL) if np.isfinite(logits_RL).all() else np.nan


def both_orders(score_R: NDArray[np.float32]) -> Logits:
    """Logits float32[R, 2] of both orders of pairs read apart."""
    difference = score_R[1::2] - score_R[::2]
    logits = np.zeros((len(score_R), 2), dtype=np.float32)
    logits[::2, 1] = difference
    logits[1::2, 1] = -difference
    return logits


def check_pairs(data: PairSet, config: DistillConfig) -> None:
    """Raise DataError on too few pairs, scores outside [0, 1], or nothing but ties."""
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
