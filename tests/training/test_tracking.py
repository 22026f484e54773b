"""Learning curves: one point a step in the tool's own reader, also after a kill; what is missing is said in time."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from anmi_ray.config.load import load
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline.run import run as run_experiment
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.training.loop import Row, train
from anmi_ray.training.tracking import Curves, Tracker, check, named, open_curves
from tests.small import write_config
from tests.training.folder import FolderCheckpoints
from tests.training.test_loop import CONFIG, EXECUTION, InterruptedTrainingError, dev_set, die_after, start

# DeepSpeed calls collectives that torch has renamed; TensorBoard's protobuf and MLflow have warnings of their own.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")
ROOT = Path(__file__).resolve().parents[2]
Points = dict[str, list[tuple[int, float]]]


def tensorboard_points(folder: Path) -> Points:
    """(step, value) by name, in the order in which TensorBoard shows them."""
    reader = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    events = reader.EventAccumulator(str(folder), size_guidance={"scalars": 0})
    events.Reload()
    return {name: [(one.step, one.value) for one in events.Scalars(name)] for name in events.Tags()["scalars"]}


def expected(rows: list[Row]) -> Points:
    points: Points = {}
    for row in rows:
        for name, value in named(row).items():
            if "second" not in name:  # the clock's
                points.setdefault(name, []).append((int(row["step"] or 0), value))
    return points


def assert_same(found: Points, wanted: Points) -> None:
    found = {name: points for name, points in found.items() if "second" not in name}
    assert found.keys() == wanted.keys()
    for name, points in wanted.items():
        assert [step for step, _ in found[name]] == [step for step, _ in points], name
        np.testing.assert_allclose([v for _, v in found[name]], [v for _, v in points], rtol=1e-6, err_msg=name)


def resumed(base: Path, folder: Path, curves: Curves) -> list[Row]:
    """All rows of the training that stopped in `folder`, brought to its end."""
    model, data = start(base)
    checkpoints = FolderCheckpoints(folder / "checkpoints")
    with curves:
        return train(model, data, dev_set(model)[0], CONFIG, EXECUTION, checkpoints, curves).rows


def test_every_number_of_a_row_has_a_group_and_a_new_key_the_default() -> None:
    row: dict[str, float | int | None] = {"step": 4, "loss": 1.0, "ranking": 2.0, "loss_share": 0.5, "alpha": 0.7}
    row |= {"learning_rate": 1e-4, "gradient_ranking": 3, "pairs_per_second": 9.0, "dev": None, "queries_seen": 8}
    row |= {"broken": float("nan"), "endless": float("inf")}
    assert named(row) == {
        "loss/loss": 1.0,
        "loss/ranking": 2.0,
        "loss/loss_share": 0.5,
        "schedule/alpha": 0.7,
        "schedule/learning_rate": 1e-4,
        "gradient/gradient_ranking": 3.0,
        "throughput/pairs_per_second": 9.0,
        "training/queries_seen": 8.0,
    }


def killed(base: str, folder: str, die_at: int) -> None:
    """Train with TensorBoard and a checkpoint a step; kill this process when the row of step `die_at` is written."""
    curves = open_curves(("tensorboard",), "f1", Path(folder) / "curves", {})

    def on_row(row: Row) -> None:
        curves(row)
        if row["step"] == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    model, data = start(Path(base))
    execution = EXECUTION.model_copy(update={"checkpoint_minutes": 0.0})
    checkpoints = FolderCheckpoints(Path(folder) / "checkpoints")
    train(model, data, dev_set(model)[0], CONFIG, execution, checkpoints, on_row)


@pytest.mark.slow
def test_tensorboard_shows_every_step_once_after_a_kill(base: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    code = f"from tests.training.test_tracking import killed; killed({str(base)!r}, {str(tmp_path)!r}, 8)"
    command = [sys.executable, "-c", code]
    died = subprocess.run(command, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, timeout=300, check=False)
    assert died.returncode == -signal.SIGKILL
    assert [step for step, _ in tensorboard_points(tmp_path / "curves")["loss/loss"]] == [1, 2, 3, 4, 5, 6, 7, 8]
    rows = resumed(base, tmp_path, open_curves(("tensorboard",), "f1", tmp_path / "curves", {}))
    assert [row["step"] for row in rows] == list(range(1, 13))
    assert len(list((tmp_path / "curves").glob("events.*"))) == 2
    assert_same(tensorboard_points(tmp_path / "curves"), expected(rows))


def test_a_missing_package_is_said_before_the_first_stage(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)  # as if it were not installed
    settings = load(
        write_config(tmp_path / "small.yaml", small_collection),
        ["execution.train.trackers=[wandb]", f"execution.root={tmp_path / 'root'}"],
    )

    class Silent(Reporter):
        def stage(self, name: str, does: str) -> None:
            raise AssertionError(f"stage {name} was started")

    with pytest.raises(ConfigError, match="not installed: wandb") as caught:
        run_experiment(settings, Silent())
    assert caught.value.place == "execution.train.trackers"


def test_all_missing_packages_stand_in_one_message(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("wandb", "mlflow", "tensorboard"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match="not installed: mlflow, wandb") as caught:
        check(("mlflow", "wandb"))
    assert f"{environment.install('mlflow')}; {environment.install('wandb')}" in str(caught.value.remedy)
    with pytest.raises(ConfigError, match="not installed: tensorboard"):
        open_curves(("tensorboard",), "f1", Path("nowhere"), {})
    check(())


def test_a_tracker_named_twice_or_unknown_is_refused(tmp_path: Path, small_collection: Path) -> None:
    config = write_config(tmp_path / "small.yaml", small_collection)
    for trackers, said in (("[wandb, wandb]", "named twice"), ("[comet]", "tensorboard")):
        with pytest.raises(ConfigError, match=said):
            load(config, [f"execution.train.trackers={trackers}"])


class Full(Tracker):
    """A tracker whose disk is full from step 3 on."""

    where = "nowhere"

    def __init__(self) -> None:
        self.steps: list[int] = []

    def write(self, step: int, values: Mapping[str, float]) -> None:
        if step == 3:
            raise OSError(28, "No space left on device, http://me:hunter2@host")
        self.steps.append(step)

    def flush(self) -> None:
        """Nothing waits."""

    def close(self, finished: bool) -> None:
        self.steps.append(-1)


def test_a_tracker_that_fails_is_given_up_and_training_goes_on(base: Path) -> None:
    tracker = Full()
    curves = Curves({"full": tracker})
    model, data = start(base)
    with curves:
        trained = train(model, data, None, CONFIG, EXECUTION, on_row=curves)
    assert len(trained.rows) == 12
    assert tracker.steps == [1, 2]
    assert curves.where["full"].startswith("given up at step 3: ")
    assert "hunter2" not in curves.where["full"]


@pytest.fixture
def mlflow_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A client of MLflow on a folder, as a server would keep it."""
    tracking = pytest.importorskip("mlflow.tracking")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"file:{tmp_path / 'mlruns'}")
    return tracking.MlflowClient()


def test_mlflow_has_every_step_once_after_an_interruption(base: Path, tmp_path: Path, mlflow_store: Any) -> None:
    model, data = start(base)
    execution = EXECUTION.model_copy(update={"checkpoint_minutes": 0.0})
    first = open_curves(("mlflow",), "f1", tmp_path, {"alpha": 0.7})

    def on_row(row: Row) -> None:
        first(row)
        first.flush()
        die_after(8)(row)

    checkpoints = FolderCheckpoints(tmp_path / "checkpoints")
    with pytest.raises(InterruptedTrainingError):
        train(model, data, dev_set(model)[0], CONFIG, execution, checkpoints, on_row)
    curves = open_curves(("mlflow",), "f1", tmp_path, {"alpha": 0.7})
    rows = resumed(base, tmp_path, curves)
    (run,) = mlflow_store.search_runs([mlflow_store.get_experiment_by_name("anmi_ray").experiment_id])
    assert run.info.status == "FINISHED"
    assert run.data.params == {"alpha": "0.7"}
    found = {key: mlflow_store.get_metric_history(run.info.run_id, key) for key in run.data.metrics}
    assert_same({key: [(one.step, one.value) for one in points] for key, points in found.items()}, expected(rows))
    assert run.info.run_id in curves.where["mlflow"]


def test_mlflow_without_an_address_is_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    with pytest.raises(ConfigError, match="MLFLOW_TRACKING_URI is not set"):
        open_curves(("mlflow",), "f1", tmp_path, {})
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://me:hunter2@127.0.0.1:9")
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "0")
    with pytest.raises(ConfigError, match="cannot be opened") as caught:
        open_curves(("mlflow",), "f1", tmp_path, {})
    assert "hunter2" not in str(caught.value)


def test_wandb_takes_the_rows(base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    wandb = pytest.importorskip("wandb")
    for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))  # where a key may stand
    with pytest.raises(ConfigError, match="WANDB_API_KEY or WANDB_MODE=offline"):
        open_curves(("wandb",), "f1", tmp_path, {})
    wandb.teardown()  # it reads the environment once a process
    monkeypatch.setenv("WANDB_MODE", "offline")
    model, data = start(base)
    with open_curves(("wandb",), "f1", tmp_path, {"alpha": 0.7}) as curves:
        train(model, data, None, CONFIG, EXECUTION, on_row=curves)
    (log,) = tmp_path.glob("wandb/offline-run-*/run-f1.wandb")
    assert log.read_bytes().count(b"loss/ranking") >= 12  # a row each; the format has no public reader
