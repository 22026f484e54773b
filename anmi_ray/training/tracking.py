"""Learning curves in TensorBoard, MLflow or W&B, by the tools' own clients and environment variables.

Rank 0 writes. A curve has one point per step even if its run was resumed: TensorBoard purges the steps that are written
again, MLflow and W&B get only new steps. Ray's integrations are not used: they start a new run on resuming.
"""

from __future__ import annotations

import importlib
import importlib.util
import math
import os
import re
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import TracebackType
from typing import Any

from anmi_ray.core import environment, redaction
from anmi_ray.core.errors import ConfigError, first_line
from anmi_ray.store import public_root
from anmi_ray.store.files import json_text
from anmi_ray.store.folders import publish_folder

# Patterns of a row's keys, by the group in which a tracker shows them.
GROUPS = {
    "loss": r"loss|ranking|regression|clamped",
    "schedule": r"alpha|weight|temperature|band|window|minimum_gap_elo|learning_rate|epoch|progress",
    "gradient": r"gradient",
    "throughput": r"pairs|tokens|seconds",
    "dev": r"dev",
}
OTHER = "training"  # the group of all other numbers
EXTRAS = {"tensorboard": "tracking", "mlflow": "mlflow", "wandb": "wandb"}  # of pyproject.toml, by tracker
PROJECT = "anmi_ray"  # MLflow's experiment and W&B's project, if the environment does not name one
TAG = "anmi.fingerprint"
NOTE = "curves.json"  # where the curves are, by tracker

Row = Mapping[str, float | int | None]


def check(trackers: Iterable[str]) -> None:
    """Raise ConfigError if a tracker's package is not installed. Import none of them."""
    absent = [name for name in trackers if importlib.util.find_spec(name) is None]
    if absent:
        remedy = f"{'; '.join(environment.install(EXTRAS[name]) for name in absent)}, or remove it from the list"
        raise ConfigError(f"not installed: {', '.join(absent)}", "execution.train.trackers", remedy)


def named(row: Row) -> dict[str, float]:
    """Return the finite numbers of a row except its step, each as group/key.

    >>> named({"step": 3, "loss": 0.5, "dev": None, "gradient_norm": 1, "share": 0.25})
    {'loss/loss': 0.5, 'gradient/gradient_norm': 1.0, 'training/share': 0.25}
    """
    numbers: dict[str, float] = {}
    for key, value in row.items():
        if key != "step" and value is not None and math.isfinite(value):
            group = next((group for group, keys in GROUPS.items() if re.match(keys, key)), OTHER)
            numbers[f"{group}/{key}"] = float(value)
    return numbers


class Tracker:
    """One tool.

    errors: what it raises if it fails.
    where: where to find the curves.
    """

    errors: tuple[type[Exception], ...] = (OSError,)
    where: str = ""

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Write the numbers of one step; steps increase."""
        raise NotImplementedError

    def flush(self) -> None:
        """Return when all written rows outlive this process."""

    def close(self, finished: bool) -> None:
        """End the curves of a training that `finished` or failed."""


class TensorBoard(Tracker):
    """Event files in `folder`, one per process; each purges the steps that it writes again."""

    def __init__(self, folder: Path, shown: str) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self._open: Callable[..., Any] = SummaryWriter
        self._folder = folder
        self._writer: Any = None
        self.where = f"tensorboard --logdir {shown}"

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if self._writer is None:
            # TensorBoard reads files in the order of their names, which begin with the second of their creation
            files = [path.name for path in self._folder.glob("events.out.tfevents.*")]
            last = max((int(name.split(".")[3]) for name in files), default=0)
            while last <= time.time() < last + 1:
                time.sleep(0.02)
            self._writer = self._open(str(self._folder), purge_step=step)
        for name, value in values.items():
            self._writer.add_scalar(name, value, step)
        self._writer.flush()  # a third of a millisecond

    def close(self, finished: bool) -> None:
        if self._writer is not None:
            self._writer.close()


class MLflow(Tracker):
    """A run of an MLflow server (MLFLOW_TRACKING_URI), found by its tag when training resumes; rows are sent async."""

    def __init__(self, name: str, settings: Mapping[str, Any]) -> None:
        if not os.environ.get("MLFLOW_TRACKING_URI"):
            remedy = "set it to the server's address, or remove mlflow from execution.train.trackers"
            raise ConfigError("MLFLOW_TRACKING_URI is not set", "tracker mlflow", remedy)
        # an unreachable server must not stop training for the minutes of MLflow's own defaults
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
        os.environ.setdefault("MLFLOW_HTTP_REQUEST_TIMEOUT", "20")
        mlflow = importlib.import_module("mlflow")
        self.errors = (OSError, importlib.import_module("mlflow.exceptions").MlflowException)
        experiment = os.environ.get("MLFLOW_EXPERIMENT_NAME") or PROJECT
        self._log_metrics = mlflow.log_metrics
        self._client = client = mlflow.MlflowClient()
        self._sent: list[Any] = []
        with _opening("mlflow", self.errors, "MLFLOW_TRACKING_URI and its credentials"):
            number = mlflow.set_experiment(experiment).experiment_id
            runs = client.search_runs([number], f"tags.`{TAG}` = '{name}'", max_results=1)
            run = runs[0] if runs else client.create_run(number, tags={TAG: name}, run_name=name)
            self._run = run.info.run_id
            if runs:
                client.update_run(self._run, status="RUNNING")
            else:
                mlflow.log_params({key: str(value)[:500] for key, value in settings.items()}, run_id=self._run)
            steps = [one.step for key in run.data.metrics for one in client.get_metric_history(self._run, key)]
        self._last = max(steps, default=-1)
        self.where = f"MLflow experiment {experiment}, run {self._run}"

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step > self._last:
            self._sent.append(self._log_metrics(values, step=step, run_id=self._run, synchronous=False))

    def flush(self) -> None:
        for operation in self._sent:
            operation.wait()
        self._sent = []

    def close(self, finished: bool) -> None:
        self.flush()
        self._client.set_terminated(self._run, "FINISHED" if finished else "FAILED")


class WandB(Tracker):
    """A run of Weights & Biases whose id is the training's fingerprint, so that a resumed training continues it.

    With WANDB_MODE=offline every process leaves its own folder for `wandb sync --append`. W&B's own process writes
    what it received, also after this one was killed.
    """

    def __init__(self, name: str, settings: Mapping[str, Any], folder: Path) -> None:
        wandb = importlib.import_module("wandb")
        self.errors = (OSError, wandb.errors.Error)
        folder.mkdir(parents=True, exist_ok=True)
        with _opening("wandb", self.errors, "WANDB_API_KEY or WANDB_MODE=offline"):
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

    def close(self, finished: bool) -> None:
        self._run.finish(exit_code=0 if finished else 1)


class Curves:
    """All trackers of a training, called with each row of its log; one that fails is dropped.

    where: where each tracker's curves are, or at which step and why it was dropped.
    """

    def __init__(self, trackers: Mapping[str, Tracker]) -> None:
        self._trackers = dict(trackers)
        self.where = {name: tracker.where for name, tracker in trackers.items()}
        self._step = 0

    def __call__(self, row: Row) -> None:
        """Write a row of the training log."""
        self._step = int(row["step"] or 0)
        values = named(row)
        self._each(lambda tracker: tracker.write(self._step, values))

    def flush(self) -> None:
        """Make all rows outlive this process; call it before a checkpoint, after which training resumes."""
        self._each(lambda tracker: tracker.flush())

    def __enter__(self) -> Curves:
        return self

    def __exit__(self, kind: type[BaseException] | None, _: object, __: TracebackType | None) -> None:
        self._each(lambda tracker: tracker.close(finished=kind is None))

    def _each(self, call: Callable[[Tracker], None]) -> None:
        for name, tracker in list(self._trackers.items()):
            try:
                call(tracker)
            except tracker.errors as error:
                del self._trackers[name]
                self.where[name] = f"given up at step {self._step}: {_public(error)}"


def open_curves(
    trackers: Sequence[str], name: str, folder: Path, settings: Mapping[str, Any], shown: str | None = None
) -> Curves:
    """Open the curves of the training `name` (its fingerprint). Raise ConfigError if a tracker cannot be opened.

    `folder` is for the trackers' files; `shown` is its name for a reader, if different.
    """
    makers: dict[str, Callable[[], Tracker]] = {
        "tensorboard": lambda: TensorBoard(folder, shown or str(folder)),
        "mlflow": lambda: MLflow(name, settings),
        "wandb": lambda: WandB(name, settings, folder),
    }
    check(trackers)
    return Curves({tracker: makers[tracker]() for tracker in trackers})


def shared_curves(
    trackers: Sequence[str], name: str, place: str, settings: Mapping[str, Any], stack: ExitStack
) -> tuple[Curves, Callable[[], None]]:
    """Open the trackers of the training `name` on rank 0 until the stack is closed; return them and their flush.

    `place` is the folder or URI for their files, which appear at a URI at every flush and at the end. Other ranks have
    no trackers.
    """
    import torch.distributed as dist  # slow to import, and the plan of a run needs this module

    if not trackers or dist.get_rank() != 0:
        return Curves({}), lambda: None
    remote = "://" in place
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()) if remote else place)

    def publish() -> None:
        if remote:
            publish_folder(folder, place)

    def end() -> None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / NOTE).write_text(json_text(curves.where), encoding="utf-8")
        publish()

    def flush() -> None:
        curves.flush()
        publish()

    curves = open_curves(trackers, name, folder, settings, public_root(place))
    stack.callback(end)  # after the trackers are closed
    return stack.enter_context(curves), flush


def _public(error: Exception) -> str:
    return redaction.scrub(first_line(error))


@contextmanager
def _opening(tracker: str, errors: tuple[type[Exception], ...], variables: str) -> Iterator[None]:
    try:
        yield
    except errors as error:
        remedy = f"check {variables}, or remove it from execution.train.trackers"
        raise ConfigError(f"cannot be opened: {_public(error)}", f"tracker {tracker}", remedy) from None
