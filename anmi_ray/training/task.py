"""The task of the training loop: the interface, and the reranker's task. Legend: N pairs of query and document."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models.pairs import TokenPairs
from anmi_ray.models.reranker import Reranker
from anmi_ray.training.batching import MicroBatch, step_batches, weighed_gaps
from anmi_ray.training.checks import before_training
from anmi_ray.training.curriculum import Curriculum, Phase, make_curriculum
from anmi_ray.training.engine import Engine
from anmi_ray.training.module import Learner
from anmi_ray.training.objective import Losses, Objective
from anmi_ray.training.training_set import TrainingSet
from anmi_ray.training.vectors import trainable


@dataclass(frozen=True)
class DevSet:
    """Tokenized pairs to rerank, and the measure of their scores float32[N] (larger is better)."""

    tokens: TokenPairs
    measure: Callable[[NDArray[np.float32]], float]


class Task(ABC):
    """Something to train.

    config: a LearnConfig
    items: number of items of an epoch
    module: what engines train
    result: a copy of the model that gets whole weights, for dev and as the result; it starts untrained
    constant: what is wrong if figures show no variation
    has_dev: whether `evaluate` has anything to measure
    """

    config: Any
    items: int
    curriculum: Curriculum
    module: Learner
    result: Any
    constant: str
    has_dev: bool

    @abstractmethod
    def losses(self, world: int) -> Losses:
        """Return the loss for `world` workers."""

    @abstractmethod
    def batches(self, step: int, phase: Phase, execution: TrainExecution, rank: int, world: int) -> list[Any]:
        """Return the micro-batches of a worker's share of a step, a pure function of its arguments."""

    @abstractmethod
    def evaluate(self, engine: Engine, step: int) -> float:
        """Return the dev measure of `result`, each worker computing its share; NaN if outputs are not finite."""


class Ranking(Task):
    """A reranker and its lists. Raises as `before_training` and `Learner`."""

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
        self.config: TrainConfig = config
        self.data = data
        self.dev = dev
        self.items = len(data)
        self.has_dev = dev is not None
        self.false_negative_rate = false_negative_rate
        # with a learned balance both terms always have weight, whatever alpha is
        alpha = config.balance.alpha if config.balance.rule == "fixed" else 0.5
        dev_points = self.has_dev and bool(config.dev_points)
        self.curriculum = make_curriculum(config.curriculum, alpha, weighed_gaps(data), steps, config.seed, dev_points)
        before_training(data, config, self.curriculum)
        self.result = type(model)(copy.deepcopy(model.network), model.pairs, model.name)  # engines may wrap the other
        self._module = trainable(model, config, execution)
        self.module = self._module

    def losses(self, world: int) -> Objective:
        return Objective(self._module, self.config, world, self.false_negative_rate)

    def batches(self, step: int, phase: Phase, execution: TrainExecution, rank: int, world: int) -> list[MicroBatch]:
        return step_batches(self.data, self.config, step, phase, execution, rank, world)

    def evaluate(self, engine: Engine, step: int) -> float:
        dev = self.dev
        assert dev is not None
        scorer = self.result.scorer(self.config.precision)
        scores = engine.over_rows(len(dev.tokens.query_N), lambda rows: scorer.score_tokens(dev.tokens.take(rows)))
        return float(dev.measure(scores)) if np.isfinite(scores).all() else np.nan
