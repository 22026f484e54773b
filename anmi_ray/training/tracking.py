"""Learning curves for other tools: rows of the training log, as they are made, to TensorBoard, MLflow or W&B.

One process (rank 0) writes, with the libraries themselves, which are imported only where they are asked for. A curve
has one point a step however often its run was killed: TensorBoard is told from which step on rows are written again,
MLflow and W&B are given only steps that they have not got (a resumed run makes the same rows again). Endpoints and keys
come from the trackers' own environment variables; nothing of them is written or shown.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import time
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError

# Beginnings of a row's keys, by the group under which a tracker shows them; the longest that fits counts.
GROUPS = {
    "loss": ("loss", "ranking", "regression", "clamped"),
    "schedule": (
        *("alpha", "weight", "temperature", "band", "window", "minimum_gap_elo"),
        *("learning_rate", "epoch", "progress"),
    ),
    "gradient": ("gradient",),
    "throughput": ("pairs", "tokens", "seconds"),
    "dev": ("dev",),
}
OTHER = "training"  # the group of every other number
EXTRAS = {"tensorboard": "tracking", "mlflow": "mlflow", "wandb": "wandb"}  # of pyproject.toml, by tracker
PROJECT = "anmi_ray"  # MLflow's experiment and W&B's project where the environment names none
TAG = "anmi.fingerprint"
SEND_EVERY = 5.0  # seconds between two requests to an MLflow server
_BATCH = 1000  # metrics that MLflow takes in one request
_ENVIRONMENT = {"mlflow": "MLFLOW_TRACKING_URI and its credentials", "wandb": "WANDB_API_KEY or WANDB_MODE=offline"}
_SECRET_NAME = re.compile(r"(WANDB|MLFLOW|DATABRICKS)_.*(KEY|TOKEN|PASSWORD|SECRET)")
_USERINFO = re.compile(r"(?<=://)[^/@\s]+@")

Row = Mapping[str, float | int | None]


def check(trackers: Iterable[str]) -> None:
    """Raise ConfigError where a tracker's package is not installed. Imports none of them."""
    absent = [name for name in trackers if importlib.util.find_spec(name) is None]
    if absent:
        raise ConfigError(
            f"{', '.join(absent)} {'is' if len(absent) == 1 else 'are'} not installed",
            "execution.train.trackers",
            f"{'; '.join(environment.install(EXTRAS[name]) for name in absent)}, or leave it out of the list",
        )


def named(row: Row) -> dict[str, float]:
    """The finite numbers of a row but its step, each under its group.

    >>> named({"step": 3, "loss": 0.5, "dev": None, "gradient_norm": 1, "share": 0.25})
    {'loss/loss': 0.5, 'gradient/gradient_norm': 1.0, 'training/share': 0.25}
    """
    numbers = {key: float(value) for key, value in row.items() if key != "step" and value is not None}
    return {f"{_group(key)}/{key}": value for key, value in numbers.items() if math.isfinite(value)}


def _group(key: str) -> str:
    fits = [(len(start), group) for group, starts in GROUPS.items() for start in starts if key.startswith(start)]
    return max(fits)[1] if fits else OTHER


class Tracker(ABC):
    """One tool. `errors` are what it raises when it is out of order; `where` says where a reader finds the curves."""

    errors: tuple[type[Exception], ...] = (OSError,)
    where: str = ""

    @abstractmethod
    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Take the numbers of one step; steps rise."""

    @abstractmethod
    def flush(self) -> None:
        """Return when what was written will outlive this process."""

    @abstractmethod
    def close(self, finished: bool) -> None:
        """End the curves, of a training that `finished` or failed."""


class TensorBoard(Tracker):
    """Event files in `folder`, one per process. A later one purges the steps that it writes again."""

    def __init__(self, folder: Path, shown: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        folder.mkdir(parents=True, exist_ok=True)
        self._open = SummaryWriter
        self._folder = folder
        self._writer = None
        self.where = f"tensorboard --logdir {shown}"

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            self._wait()
            self._writer = self._open(str(self._folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a third of a millisecond: a row survives whatever comes after it

    def _wait(self) -> None:
        """Until a later second than the last file's: TensorBoard reads files by name, which begins with the second."""
        names = [path.name for path in self._folder.glob("events.out.tfevents.*")]
        last = max((int(name.split(".")[3]) for name in names), default=0)
        while last <= time.time() < last + 1:
            time.sleep(0.02)

    def flush(self) -> None:
        """Every row is flushed already."""

    def close(self, finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Tracker):
    """A run of an MLflow server (MLFLOW_TRACKING_URI), found again by its tag when training is resumed."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            remedy = "set it to the server's address, or leave mlflow out of execution.train.trackers"
            raise ConfigError("MLFLOW_TRACKING_URI is not set", "tracker mlflow", remedy)
        # a server that is gone must not hold training up for the minutes of MLflow's own defaults
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        entities = importlib.import_module("mlflow.entities")
        tracking = importlib.import_module("mlflow.tracking")
        self.errors = (OSError, importlib.import_module("mlflow.exceptions").MlflowException)
        self._metric = entities.Metric
        self._client = tracking.MlflowClient()
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        with _opening("mlflow", self.errors):
            self._run = self._find(experiment, name, settings, entities.Param)
            histories = {key: self._client.get_metric_history(self._run, key) for key in self._known()}
        self._last = {key: max(metric.step for metric in history) for key, history in histories.items() if history}
        self._waiting: list[Any] = []
        self._sent = time.monotonic()
        self.where = f"MLflow experiment {experiment}, run {self._run}"

    def _find(self, experiment: str, name: str, settings: Mapping[str, Any], parameter: Any) -> str:
        """The id of the run with our tag, made where there is none."""
        client = self._client
        existing = client.get_experiment_by_name(experiment)
        number = client.create_experiment(experiment) if existing is None else existing.experiment_id
        runs = client.search_runs([number], f"tags.`{TAG}` = '{name}'", max_results=1)
        if runs:
            client.update_run(runs[0].info.run_id, status="RUNNING")
            return runs[0].info.run_id
        run = client.create_run(number, tags={TAG: name}, run_name=name).info.run_id
        client.log_batch(run, params=[parameter(key, str(value)[:500]) for key, value in settings.items()])
        return run

    def _known(self) -> list[str]:
        return list(self._client.get_run(self._run).data.metrics)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        now = int(time.time() * 1000)
        self._waiting += [
            self._metric(name, value, now, step) for name, value in values.items() if step > self._last.get(name, -1)
        ]
        if time.monotonic() - self._sent >= SEND_EVERY:
            self.flush()

    def flush(self) -> None:
        while self._waiting:
            self._client.log_batch(self._run, metrics=self._waiting[:_BATCH])
            self._waiting = self._waiting[_BATCH:]
        self._sent = time.monotonic()

    def close(self, finished: bool) -> None:
        self.flush()
        self._client.set_terminated(self._run, "FINISHED" if finished else "FAILED")


class WandB(Tracker):
    """A run of Weights & Biases, whose id is the training's fingerprint: a resumed training goes on with it.

    With WANDB_MODE=offline every process leaves a folder of its own for `wandb sync --append`.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path) -> None:
        wandb = importlib.import_module("wandb")
        self.errors = (OSError, wandb.errors.Error)
        folder.mkdir(parents=True, exist_ok=True)
        with _opening("wandb", self.errors):
            self._run = wandb.init(
                id=name,
                name=os.environ.get("WANDB_NAME") or name,
                project=os.environ.get("WANDB_PROJECT") or PROJECT,
                resume="allow",
                dir=os.environ.get("WANDB_DIR") or str(folder),
                config=dict(settings),
                # neither code, nor the repository's address, nor what the worker prints
                settings=wandb.Settings(console="off", disable_git=True, disable_code=True, silent=True),
            )
        self._next = int(self._run.step)
        self.where = f"Weights & Biases project {self._run.project}, run {name}"

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step >= self._next:
            self._run.log(dict(values), step=step, commit=True)

    def flush(self) -> None:
        """W&B's own process writes what it was given, also after this one was killed."""

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class Curves:
    """All trackers of a training, as the `on_row` of the loop. One that fails is given up; training goes on.

    `where` says of each where its curves stand, or at which step it was given up and why.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self.where = {name: tracker.where for name, tracker in trackers.items()}
        self._step = 0

    def __call__(self, row: Row) -> None:
        """Write a row of the training log."""
        self._step = int(row["step"] or 0)
        values = named(row)
        for name, tracker in list(self._trackers.items()):
            with self._surviving(name):
                tracker.write(self._step, values)

    def flush(self) -> None:
        """Call it before a checkpoint: its resumption starts after the rows seen so far."""
        for name, tracker in list(self._trackers.items()):
            with self._surviving(name):
                tracker.flush()

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        for name, tracker in list(self._trackers.items()):
            with self._surviving(name):
                tracker.close(finished=kind is None)

    @contextmanager
    def _surviving(self, name: str) -> Iterator[None]:
        try:
            yield
        except self._trackers[name].errors as error:
            del self._trackers[name]
            self.where[name] = f"given up at step {self._step}: {public(str(error))}"


def open_curves(
    trackers: Iterable[str], name: str, folder: Path, settings: Mapping[str, Any], shown: str | None = None
) -> Curves:
    """The curves of the training `name` (its fingerprint). Raises ConfigError where a tracker cannot be opened.

    `folder` takes the files of those that write some; `shown` is what a reader should call it, where that differs.
    """
    trackers = tuple(trackers)
    check(trackers)
    makers = {
        "tensorboard": lambda: TensorBoard(folder, shown or str(folder)),
        "mlflow": lambda: MLflow(name, settings),
        "wandb": lambda: WandB(name, settings, folder),
    }
    return Curves({tracker: makers[tracker]() for tracker in trackers})


def public(text: str) -> str:
    """The first line of a message without user names, passwords and keys.

    >>> public("http://me:secret@host/api answered 403")
    'http://host/api answered 403'
    """
    line = text.splitlines()[0] if text else "no message"
    for name, value in os.environ.items():
        if value and _SECRET_NAME.fullmatch(name):
            line = line.replace(value, "***")
    return _USERINFO.sub("", line)


@contextmanager
def _opening(tracker: str, errors: tuple[type[Exception], ...]) -> Iterator[None]:
    try:
        yield
    except errors as error:
        raise ConfigError(
            f"cannot be opened: {public(str(error))}",
            f"tracker {tracker}",
            f"check {_ENVIRONMENT[tracker]}, or leave it out of execution.train.trackers",
        ) from None
