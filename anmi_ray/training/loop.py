"""The training loop as a plain function, without Ray: steps, evaluation on dev, checkpoints, log rows.

Resumed at step s it uses the lists, learning rates and dropout masks of an uninterrupted run.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainConfig, TrainExecution, with_engine
from anmi_ray.core.errors import TrainingError
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.models.reranker import Reranker, torch_settings
from anmi_ray.training.batching import Ahead, pinned, total_steps
from anmi_ray.training.checkpoints import NOTICE, Checkpoints, Origin, newest_complete, seal
from anmi_ray.training.checks import check_effect, freed_memory_kept, memory_named, moments
from anmi_ray.training.curriculum import Phase
from anmi_ray.training.engine import Engine, make_engine
from anmi_ray.training.module import rate_factor
from anmi_ray.training.task import DevSet, Ranking, Task
from anmi_ray.training.training_set import TrainingSet

Row = dict[str, float | int | None]
CONSTANT_STEPS = 50  # consecutive steps with constant scores after which training fails
LOOK_S = 5.0  # seconds between two checks whether workers will soon be stopped
_STATE = "loop.json"
_BEST = "best.safetensors"
_START_STAYS = (
    "no step was better on dev than the start ({dev:.4f}): the start is exported as it was, because {group}.dev_points "
    "holds 0"
)


@dataclass(frozen=True)
class Trained:
    """The model of the best dev point, else of the last step, and its history.

    model: with whole weights; after publication its folder or URI.
    rows: the log, a row per step and dev point.
    dev: measure of the model's weights.
    """

    model: Any
    rows: list[Row]
    best_step: int
    dev: float | None
    steps: int


@dataclass
class _Progress:
    """Contents of a checkpoint besides weights and optimiser."""

    step: int = 0
    rows: list[Row] = field(default_factory=list)
    best_step: int = 0
    dev: float | None = None
    constant: int = 0
    best: dict[str, Tensor] | None = None
    objective: dict[str, Any] = field(default_factory=dict)
    curriculum: dict[str, Any] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        numbers = ("step", "rows", "best_step", "dev", "constant", "objective", "curriculum")
        (folder / _STATE).write_text(json.dumps({name: getattr(self, name) for name in numbers}), encoding="utf-8")
        if self.best is not None:
            save_file({key: value.contiguous() for key, value in self.best.items()}, folder / _BEST)

    @classmethod
    def read(cls, folder: Path) -> _Progress:
        best = load_file(folder / _BEST) if (folder / _BEST).is_file() else None
        return cls(**json.loads((folder / _STATE).read_text(encoding="utf-8")), best=best)


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
    """Train `model` on `data`, from the newest complete checkpoint; SIGTERM saves one at once. Consumes `model`.

    on_row: receives each log row.
    on_notice: receives problems with checkpoints.
    false_negative_rate: estimated share of false negatives among the examples' negatives.
    Raises TrainingError if the loss is not finite, scores are constant, a learning rate moves nothing, or memory does
    not suffice; ConfigError and DataError as `before_training`; ConfigError if a setting needs `false_negative_rate`
    and it is None, or a checkpoint needs another number of workers.
    """
    steps = total_steps(config, len(data))
    task = partial(Ranking, model, data, dev, config, execution, steps, false_negative_rate)
    return train_task(task, config, execution, checkpoints, on_row, on_notice)


def train_task(
    task: Callable[[], Task],
    config: LearnConfig,
    execution: TrainExecution,
    checkpoints: Checkpoints | None = None,
    on_row: Callable[[Row], None] | None = None,
    on_notice: Callable[[str], None] | None = None,
) -> Trained:
    """Train the task that `task` returns; arguments and errors as `train`."""
    with ExitStack() as stack:
        stack.enter_context(torch_settings(execution.threads))
        stack.enter_context(torch.random.fork_rng(devices=[]))
        stack.enter_context(memory_named(config, execution))
        stack.enter_context(freed_memory_kept())
        if checkpoints is not None:
            stack.enter_context(NOTICE.listening())
        run = _Run(task(), execution, checkpoints, on_row, on_notice)
        with run.ahead:
            return run.run()


class _Run:
    def __init__(
        self,
        task: Task,
        execution: TrainExecution,
        checkpoints: Checkpoints | None,
        on_row: Callable[[Row], None] | None,
        on_notice: Callable[[str], None] | None,
    ) -> None:
        self.task = task
        self.config = with_engine(task.config, execution)
        self.execution = execution
        self.checkpoints = checkpoints
        self.on_row = on_row
        self.on_notice = on_notice or (lambda _: None)
        self.steps = total_steps(self.config, task.items)
        self.curriculum = task.curriculum
        self.module = task.module.train()
        self.engine: Engine = make_engine(self.module, self.config, execution.offload)
        self.objective = task.losses(self.engine.world)
        self.progress = _Progress()
        self.ahead = Ahead(self._batches)
        self.saved = self.looked = time.monotonic()
        self.dev_steps = {round(point * self.steps) for point in self.config.dev_points} if task.has_dev else set()

    def run(self) -> Trained:
        resumed = self._resume()
        if not resumed and 0 in self.dev_steps:
            self._log({"step": 0, "epoch": 0.0, "progress": 0.0, "dev": self._evaluate(0)})
        first = self.progress.step
        before = moments(self.module.network, self.engine.trained())
        for step in range(self.progress.step, self.steps):
            row, due = self._step(step)
            if step + 1 - first == min(CONSTANT_STEPS, self.steps):
                after = moments(self.module.network, self.engine.trained())
                check_effect(before, after, step + 1 - first, self.config.group)
            self.progress.step = step + 1
            if step + 1 in self.dev_steps:
                row["dev"] = self._evaluate(step + 1)
                self.curriculum.evaluated(row["dev"])
            self._log(row)
            if due and step + 1 < self.steps:
                self._save()
        best = self.progress.best
        if best is None:
            best = self.engine.weights()
            self.progress.best_step = self.steps
        elif not self.progress.best_step and self.engine.rank == 0:
            self.on_notice(_START_STAYS.format(group=self.config.group, dev=self.progress.dev))
        self.task.result.network.load_state_dict(best)
        progress = self.progress
        return Trained(self.task.result, progress.rows, progress.best_step, progress.dev, self.steps)

    def _batches(self, step: int, phase: Phase) -> list[Any]:
        """Runs in a thread during a step: it reads no attribute of the module, where ZeRO 3 would gather parameters."""
        batches = self.task.batches(step, phase, self.execution, self.engine.rank, self.engine.world)
        return [pinned(batch) for batch in batches] if self.engine.device.type == "cuda" else batches

    def _step(self, step: int) -> tuple[Row, bool]:
        """Take one optimiser step; return its log row, and whether a checkpoint is due, the same on all workers."""
        begin = time.monotonic()
        now = self.curriculum.phase(step, self.steps)
        batches = self.ahead.batches(step, now)
        if step + 1 < self.steps:
            self.ahead.prepare(step + 1, self.curriculum.foreseen(step + 1, self.steps))
        self._seed_dropout(step)
        for i, batch in enumerate(batches):
            self.engine.accumulate(batch.batches, partial(self.objective.loss, batch, now), last=i + 1 == len(batches))
        due, look, *totals = self.engine.sums([*self._signals(), *self.objective.sums()])
        figures = self.objective.finish(totals, now, step)
        varied, pairs, tokens = (figures.pop(name) or 0 for name in ("varied", "pairs", "tokens"))
        loss = float(figures.pop("loss") or 0.0)
        self._check(step, loss, varied)
        factor = rate_factor(step, self.steps)
        norm = self.engine.step(factor)
        if not math.isfinite(norm):
            raise self._diverged(step, f"the gradient's norm is {norm}")
        if self.curriculum.wants_gain:
            self.curriculum.gained(self._gain(batches, now, step, loss) / tokens)
        seconds = time.monotonic() - begin
        row: Row = {
            "step": step + 1,
            "epoch": (step + 1) * self.config.per_step / self.task.items,
            "progress": (step + 1) / self.steps,
            "loss": loss,
            **figures,
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
        """This worker's part of two sums: a checkpoint is due (by the clock, by SIGTERM), and it is time to look."""
        now = time.monotonic()
        first = self.engine.rank == 0
        due = first and now - self.saved >= 60 * self.execution.checkpoint_minutes
        return float(due or bool(NOTICE)), float(first and now - self.looked >= LOOK_S)

    def _due(self, due: float, look: float) -> bool:
        """Return whether all workers save now, from the sums; looks whether workers will soon be stopped."""
        if self.checkpoints is None:
            return False
        if look:
            self.looked = time.monotonic()
            due += self.checkpoints.wanted()
        return bool(due)

    def _seed_dropout(self, step: int) -> None:
        torch.manual_seed(derived_seed("dropout", self.config.seed, step, self.engine.rank))

    def _gain(self, batches: Sequence[Any], now: Phase, step: int, before: float) -> float:
        """Decrease of the loss of the step's own lists, under the same dropout masks."""
        self._seed_dropout(step)
        with torch.no_grad():
            parts = [
                self.objective.loss(batch, now, *self.engine.scores(batch.batches), record=False) for batch in batches
            ]
        return before - self.engine.sums([sum(map(float, parts))])[0]

    def _check(self, step: int, loss: float, varied: float) -> None:
        if not math.isfinite(loss):
            raise self._diverged(step, f"the loss is {loss}")
        self.progress.constant = 0 if varied else self.progress.constant + 1
        if self.progress.constant >= CONSTANT_STEPS:
            raise TrainingError(
                f"for {CONSTANT_STEPS} steps {self.task.constant}",
                f"training, step {step + 1}",
                f"lower {self.config.group}.learning_rate and {self.config.group}.head_learning_rate, or start from "
                f"another {self.config.group}.model",
            )

    def _evaluate(self, step: int) -> float:
        """Return the dev measure of the current weights; keep the best."""
        weights = self.engine.weights()
        self.task.result.network.load_state_dict(weights)
        value = self._measured(step)
        if self.progress.dev is None or value > self.progress.dev:
            self.progress.best = weights
            self.progress.best_step = step
            self.progress.dev = value
        return value

    def _measured(self, step: int) -> float:
        value = self.task.evaluate(self.engine, step)
        if not math.isfinite(value):
            raise self._diverged(step, "dev scores are not finite")
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
                self.progress.objective = self.objective.state()
                self.progress.curriculum = self.curriculum.state()
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
        newest = newest_complete(self.checkpoints, self._origin(), self.engine, self.on_notice)
        if newest is None:
            return False
        self.engine.load(newest[0])
        self.progress = _Progress.read(newest[0])
        self.objective.load(self.progress.objective)
        self.curriculum.load(self.progress.curriculum)
        return True

    def _diverged(self, step: int, what: str) -> TrainingError:
        group = self.config.group
        return TrainingError(
            what,
            f"training, step {step + 1}",
            f"lower {group}.learning_rate or {group}.head_learning_rate, or set {group}.precision: float32",
        )
