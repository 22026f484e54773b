"""The training loop as a plain function: steps, evaluation on dev, checkpoints, and what is logged.

It knows no Ray and no measure: the stage passes the measure as a callable and says where checkpoints go. Resumed at
step s it sees the lists, learning rates and dropout masks that an uninterrupted run would have seen.
Legend: B lists, K documents of a list, N pairs.
"""

from __future__ import annotations

import copy
import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file, save_file
from torch import Tensor

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.errors import TrainingError
from anmi_ray.identity import seed as derived_seed
from anmi_ray.models.cross_encoder import torch_threads
from anmi_ray.models.pairs import Ragged
from anmi_ray.models.reranker import Reranker
from anmi_ray.training.ahead import Ahead, pinned
from anmi_ray.training.batching import MicroBatch, TrainingSet, step_batches, total_steps, weighed_gaps
from anmi_ray.training.checkpoints import Checkpoints, newest_whole
from anmi_ray.training.checks import before_training, check_effect, moments
from anmi_ray.training.curriculum import Phase, make_curriculum
from anmi_ray.training.engine import Engine, make_engine
from anmi_ray.training.manifest import Origin, seal
from anmi_ray.training.memory import memory_named
from anmi_ray.training.module import Average, rate_factor
from anmi_ray.training.objective import Objective
from anmi_ray.training.preemption import NOTICE
from anmi_ray.training.vectors import trainable

Row = dict[str, float | int | None]
CONSTANT_STEPS = 50  # steps in a row without a difference between a list's scores before training is given up
LOOK_S = 5.0  # seconds between two questions whether workers will soon be stopped
_STATE, _BEST, _AVERAGE = "loop.json", "best.safetensors", "average.safetensors"


@dataclass(frozen=True)
class DevSet:
    """Tokenised pairs to rerank, and the measure of their scores float32[N] (larger is better)."""

    queries: Ragged
    query_N: NDArray[np.int64]
    documents: Ragged
    document_N: NDArray[np.int64]
    measure: Callable[[NDArray[np.float32]], float]


@dataclass(frozen=True)
class Trained:
    """The model of the best dev point (the last step's where dev was not evaluated), and how it came about."""

    model: Reranker
    rows: list[Row]
    best_step: int
    dev: float | None
    steps: int


@dataclass
class _Progress:
    """What a checkpoint holds besides weights and optimiser."""

    step: int = 0
    rows: list[Row] = field(default_factory=list)
    best_step: int = 0
    dev: float | None = None
    constant: int = 0
    best: dict[str, Tensor] | None = None
    average: dict[str, Tensor] | None = None
    objective: dict[str, Any] = field(default_factory=dict)
    curriculum: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        numbers = ("step", "rows", "best_step", "dev", "constant", "objective", "curriculum")
        (folder / _STATE).write_text(json.dumps({name: getattr(self, name) for name in numbers}), encoding="utf-8")
        for name, weights in ((_BEST, self.best), (_AVERAGE, self.average)):
            if weights is not None:
                save_file({key: value.contiguous() for key, value in weights.items()}, folder / name)

    @classmethod
    def read(cls, folder: Path) -> _Progress:
        weights = [load_file(folder / name) if (folder / name).is_file() else None for name in (_BEST, _AVERAGE)]
        return cls(**json.loads((folder / _STATE).read_text(encoding="utf-8")), best=weights[0], average=weights[1])


def train(
    model: Reranker,
    data: TrainingSet,
    dev: DevSet | None,
    config: TrainConfig,
    execution: TrainExecution,
    checkpoints: Checkpoints | None = None,
    on_row: Callable[[Row], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
    false_negative_rate: float | None = None,
) -> Trained:
    """Train `model` on `data`; resumes from the newest whole one of `checkpoints`, and after SIGTERM saves one at once.

    `on_row` sees every log row as it is made, `on_notice` what is wrong with checkpoints. `false_negative_rate` is the
    estimated share of false negatives among the examples' negatives, for settings that follow it (ConfigError where one
    does and it is None). Raises TrainingError where the loss is not finite, the model gives all documents of a list one
    score, a learning rate moves nothing, or memory does not suffice; ConfigError and DataError as `before_training`,
    ConfigError where a checkpoint needs another number of workers. `model` is used up: the result has its own copy of
    the weights.
    """
    with ExitStack() as stack:
        stack.enter_context(torch_threads(execution.threads))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(memory_named(config, execution))
        if checkpoints is not None:
            stack.enter_context(NOTICE.listening())
        run = _Run(model, data, dev, config, execution, checkpoints, on_row, on_notice, false_negative_rate)
        with run.ahead:
            return run.run()


class _Run:
    def __init__(
        self,
        model: Reranker,
        data: TrainingSet,
        dev: DevSet | None,
        config: TrainConfig,
        execution: TrainExecution,
        checkpoints: Checkpoints | None,
        on_row: Callable[[Row], None] | None,
        on_notice: Callable[[str], None] | None,
        false_negative_rate: float | None,
    ) -> None:
        self.data, self.dev, self.config, self.execution = data, dev, config, execution
        self.checkpoints, self.on_row, self.on_notice = checkpoints, on_row, on_notice or (lambda _: None)
        self.steps = total_steps(config, len(data))
        # with a learned balance both terms always have weight, whatever alpha is
        alpha = config.balance.alpha if config.balance.rule == "fixed" else 0.5
        self.curriculum = make_curriculum(
            config.curriculum, alpha, weighed_gaps(data), self.steps, config.seed, dev is not None
        )
        before_training(model, data, config, self.curriculum)
        # Engines may partition or wrap the network; this copy takes whole weights, for dev and for the result.
        self.result = type(model)(copy.deepcopy(model.network), model.pairs, model.name)
        self.module = trainable(model, config, execution).train()
        self.engine: Engine = make_engine(self.module, config, execution.offload)
        self.objective = Objective(self.module, config, self.engine.world, false_negative_rate)
        self.progress, self.average = _Progress(), None
        self.ahead = Ahead(self._batches)
        self.saved = self.looked = time.monotonic()
        self.dev_steps = {round(point * self.steps) for point in config.dev_points} if dev is not None else set()

    def run(self) -> Trained:
        resumed = self._resume()
        if not resumed and 0 in self.dev_steps:
            self._log({"step": 0, "epoch": 0.0, "progress": 0.0, "dev": self._evaluate(0)})
        first, before = self.progress.step, moments(self.module.network, self.engine.trained())
        for step in range(self.progress.step, self.steps):
            row, due = self._step(step)
            if step + 1 - first == min(CONSTANT_STEPS, self.steps):
                check_effect(before, moments(self.module.network, self.engine.trained()), step + 1 - first)
            self._average(step)
            self.progress.step = step + 1
            if step + 1 in self.dev_steps:
                row["dev"] = self._evaluate(step + 1)
                self.curriculum.evaluated(row["dev"])
            if (step + 1) % self.execution.log_every == 0 or row["dev"] is not None or step + 1 == self.steps:
                self._log(row)
            if due and step + 1 < self.steps:
                self._save()
        best = self.progress.best
        if best is None:
            best, self.progress.best_step = self._weights(), self.steps
        self.result.network.load_state_dict(best)
        return Trained(self.result, self.progress.rows, self.progress.best_step, self.progress.dev, self.steps)

    def _batches(self, step: int, phase: Phase) -> list[MicroBatch]:
        """Made beside a step under way: reads no attribute of the module, where ZeRO 3 would gather a parameter."""
        rank, world = self.engine.rank, self.engine.world
        batches = step_batches(self.data, self.config, step, phase, self.execution, rank, world)
        return [pinned(batch) for batch in batches] if self.objective.device.type == "cuda" else batches

    def _step(self, step: int) -> tuple[Row, bool]:
        """One optimiser step: its log row, and whether a checkpoint is due (on all workers alike)."""
        begin = time.monotonic()
        now = self.curriculum.phase(step, self.steps)
        batches = self.ahead.batches(step, now)
        if step + 1 < self.steps:
            self.ahead.foresee(step + 1, self.curriculum.foreseen(step + 1, self.steps))
        self._seed_dropout(step)
        for i, batch in enumerate(batches):
            self.engine.accumulate(batch.batches, self.objective.of(batch, now), last=i + 1 == len(batches))
        due, look, *totals = self.engine.sums([*self._signals(), *self.objective.sums()])
        figures = self.objective.finish(totals, now, step)
        varied, pairs, tokens = (figures.pop(name) or 0 for name in ("varied", "pairs", "tokens"))
        loss = float(figures.pop("loss") or 0.0)
        self._check(step, loss, varied)
        factor = rate_factor(self.config, step, self.steps)
        norm = self.engine.step(factor)
        if not math.isfinite(norm):
            raise _diverged(step, f"the gradient's norm is {norm}")
        if self.curriculum.wants_gain:
            self.curriculum.gained(self._gain(batches, now, step, loss) / tokens)
        seconds = time.monotonic() - begin
        row: Row = {
            "step": step + 1,
            "epoch": (step + 1) * self.config.lists_per_step / len(self.data),
            "progress": (step + 1) / self.steps,
            "loss": loss,
            **figures,
            "minimum_gap_elo": now.minimum_gap_elo if math.isfinite(now.minimum_gap_elo) else None,
            **self.curriculum.figures(),
            "learning_rate": self.config.learning_rate * factor,
            "gradient_norm": norm,
            "pairs": int(pairs),
            "tokens": int(tokens),
            "seconds": seconds,
            "pairs_per_second": pairs / seconds,
            "dev": None,
        }
        return row, self._due(due, look)

    def _signals(self) -> tuple[float, float]:
        """This worker's share of two sums: a checkpoint is due (by the clock, by SIGTERM), and it is time to look."""
        now, first = time.monotonic(), self.engine.rank == 0
        due = first and now - self.saved >= 60 * self.execution.checkpoint_minutes
        return float(due or bool(NOTICE)), float(first and now - self.looked >= LOOK_S)

    def _due(self, due: float, look: float) -> bool:
        """Whether all workers save now, from the sums; where they look, whether any of them will soon be stopped."""
        if self.checkpoints is None:
            return False
        if look:
            self.looked = time.monotonic()
            due += self.checkpoints.wanted()
        return bool(due)

    def _seed_dropout(self, step: int) -> None:
        torch.manual_seed(derived_seed("dropout", self.config.seed, step, self.engine.rank))

    def _gain(self, batches: Sequence[MicroBatch], now: Phase, step: int, before: float) -> float:
        """By how much the step lowered the loss of its own lists, under the same dropout masks."""
        self._seed_dropout(step)
        after = sum(self.objective.loss_of(batch, now, *self.engine.scores(batch.batches)) for batch in batches)
        return before - self.engine.sums([after])[0]

    def _check(self, step: int, loss: float, varied: float) -> None:
        if not math.isfinite(loss):
            raise _diverged(step, f"the loss is {loss}")
        self.progress.constant = 0 if varied else self.progress.constant + 1
        if self.progress.constant >= CONSTANT_STEPS:
            raise TrainingError(
                f"for {CONSTANT_STEPS} steps every document of a list got one score",
                f"training, step {step + 1}",
                "lower train.learning_rate and train.head_learning_rate, or start from another train.model",
            )

    def _average(self, step: int) -> None:
        decay = self.config.average_decay
        if not decay or step < self.config.average_start * self.steps:
            return
        if self.average is None:
            self.average = Average(self.module.network, decay)
            if self.progress.average is not None:
                self.average.load(self.progress.average)
        self.average.update()
        self.progress.average = self.average.weights

    def _weights(self) -> dict[str, Tensor]:
        """Whole float32 weights on the CPU: the current ones, or their average where there is one."""
        weights = self.engine.weights()
        averaged = self.progress.average or {}
        return weights | {name: value.detach().cpu().clone() for name, value in averaged.items()}

    def _evaluate(self, step: int) -> float:
        """The dev measure of the current weights, each worker scoring its share; keeps the best."""
        dev = self.dev
        assert dev is not None
        weights = self._weights()
        self.result.network.load_state_dict(weights)
        rows = np.arange(len(dev.query_N))[self.engine.rank :: self.engine.world]
        scorer = self.result.scorer(self.config.precision)
        share = scorer.score_tokens(dev.queries, dev.query_N[rows], dev.documents, dev.document_N[rows])
        scores = np.zeros(len(dev.query_N), dtype=np.float32)
        for worker, part in enumerate(self.engine.gather(share)):
            scores[worker :: self.engine.world] = part
        if not np.isfinite(scores).all():
            raise _diverged(step, "dev scores are not finite")
        value = float(dev.measure(scores))
        if self.progress.dev is None or value > self.progress.dev:
            self.progress.best, self.progress.best_step, self.progress.dev = weights, step, value
        return value

    def _log(self, row: Row) -> None:
        self.progress.rows.append(row)
        if self.on_row is not None and self.engine.rank == 0:
            self.on_row(row)

    def _save(self) -> None:
        assert self.checkpoints is not None

        def write(folder: Path) -> None:
            self.engine.save(folder)
            if self.engine.rank == 0:
                self.progress.objective, self.progress.curriculum = self.objective.state(), self.curriculum.state()
                self.progress.write(folder)
            seal(folder, self._origin(), self.engine.rank)

        answered = bool(NOTICE)
        self.checkpoints.save(write, self.progress.step, self.progress.dev)
        if answered:
            NOTICE.saved()
        self.saved = time.monotonic()

    def _origin(self) -> Origin:
        stage = self.config.zero_stage if self.config.engine == "deepspeed" else 0
        return Origin(self.progress.step, self.engine.world, self.config.engine, stage)

    def _resume(self) -> bool:
        if self.checkpoints is None:
            return False
        found = newest_whole(self.checkpoints, self._origin(), self.engine, self.on_notice)
        if found is None:
            return False
        self.engine.load(found[0])
        self.progress = _Progress.read(found[0])
        self.objective.load(self.progress.objective)
        self.curriculum.load(self.progress.curriculum)
        return True


def _diverged(step: int, what: str) -> TrainingError:
    return TrainingError(
        what,
        f"training, step {step + 1}",
        "lower train.learning_rate or train.head_learning_rate, or set train.precision: float32",
    )
