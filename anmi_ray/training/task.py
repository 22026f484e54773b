"""What the loop asks of a thing to train, and the first of them: a reranker, from lists of documents.

Legend: N pairs of query and document.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.pairs import Ragged
from anmi_ray.models.reranker import Reranker
from anmi_ray.training.batching import MicroBatch, step_batches, weighed_gaps
from anmi_ray.training.checks import before_training
from anmi_ray.training.curriculum import Curriculum, Phase, make_curriculum
from anmi_ray.training.engine import Engine
from anmi_ray.training.late import trainable
from anmi_ray.training.module import Learner
from anmi_ray.training.objective import Figures, Objective
from anmi_ray.training.training_set import TrainingSet


@dataclass(frozen=True)
class DevSet:
    """Tokenised pairs to rerank, and the measure of their scores float32[N] (larger is better)."""

    queries: Ragged
    query_N: NDArray[np.int64]
    documents: Ragged
    document_N: NDArray[np.int64]
    measure: Callable[[NDArray[np.float32]], float]


class Losses(Protocol):
    """The loss of a step. Per step: `of` every micro-batch, then `sums`, added up over workers, then `finish`."""

    def of(self, batch: Any, phase: Phase) -> Callable[..., Tensor]:
        """The loss of a micro-batch as its share of the step's, from what the module gives; adds to `sums`."""
        ...

    def loss_of(self, batch: Any, phase: Phase, *given: Tensor) -> float:
        """The same as a number, adding to nothing."""
        ...

    def sums(self) -> list[float]:
        """What the step's micro-batches of this worker add up to; begins anew."""
        ...

    def finish(self, totals: Sequence[float], phase: Phase, step: int) -> Figures:
        """The step's figures from the sums of all workers: at least loss, pairs, tokens, and varied (else constant)."""
        ...

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs, as JSON values."""
        ...

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        ...


class Task(Protocol):
    """Something to train.

    items: what one epoch shows; module: what engines train; result: what they train, with whole weights, for dev and
    in the end; constant: what is wrong where figures stay without variation; has_dev: whether `evaluate` has anything;
    interpolate: shares of the trained weights to try, the rest the start's, which `result` has at first.
    """

    items: int
    curriculum: Curriculum
    module: Learner
    result: Any
    constant: str
    has_dev: bool
    interpolate: tuple[float, ...]

    @property
    def config(self) -> LearnConfig:
        """The settings."""
        ...

    def losses(self, world: int) -> Losses:
        """The loss, for so many workers."""
        ...

    def batches(self, step: int, phase: Phase, execution: TrainExecution, rank: int, world: int) -> list[Any]:
        """The micro-batches of a worker's share of a step: a pure function of what is given."""
        ...

    def evaluate(self, engine: Engine, step: int) -> float:
        """The dev measure of `result`, each worker computing its share; NaN where what it gives is not finite."""
        ...


class Ranking:
    """A reranker and its lists; raises as `before_training` and the network's `Learner` do."""

    constant = "every document of a list got one score"

    def __init__(
        self,
        model: Reranker,
        data: TrainingSet,
        dev: DevSet | None,
        config: TrainConfig,
        execution: TrainExecution,
        steps: int,
        false_negative_rate: float | None,
    ) -> None:
        self.config = config
        self.data = data
        self.dev = dev
        self.items = len(data)
        self.has_dev = dev is not None
        self.interpolate = config.interpolate
        self.false_negative_rate = false_negative_rate
        # with a learned balance both terms always have weight, whatever alpha is
        alpha = config.balance.alpha if config.balance.rule == "fixed" else 0.5
        told_dev = self.has_dev and bool(config.dev_points)
        self.curriculum = make_curriculum(config.curriculum, alpha, weighed_gaps(data), steps, config.seed, told_dev)
        before_training(model, data, config, self.curriculum)
        # Engines may partition or wrap the network; this copy takes whole weights, for dev and for the result.
        self.result = type(model)(copy.deepcopy(model.network), model.pairs, model.name)
        self._module = trainable(model, config, execution)
        self.module: Learner = self._module

    def losses(self, world: int) -> Losses:
        """The hybrid objective."""
        return Objective(self._module, self.config, world, self.false_negative_rate)

    def batches(self, step: int, phase: Phase, execution: TrainExecution, rank: int, world: int) -> list[MicroBatch]:
        """As `step_batches`."""
        return step_batches(self.data, self.config, step, phase, execution, rank, world)

    def evaluate(self, engine: Engine, step: int) -> float:
        """The measure of the dev pairs' scores."""
        dev = self.dev
        assert dev is not None
        scorer = self.result.scorer(self.config.precision)
        scores = engine.over_rows(
            len(dev.query_N),
            lambda rows: scorer.score_tokens(dev.queries, dev.query_N[rows], dev.documents, dev.document_N[rows]),
        )
        return float(dev.measure(scores)) if np.isfinite(scores).all() else np.nan
