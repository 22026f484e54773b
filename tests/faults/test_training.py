"""Training whose worker, then driver is killed, and whose newest checkpoint is broken: the curve stays the same."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pyarrow.parquet as pq
import pytest
import torch
from safetensors.torch import save_file

from anmi_ray.config.train import TrainExecution
from anmi_ray.core.errors import TrainingError
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.runtime.train_workers import room_named
from anmi_ray.training.checkpoints import check
from anmi_ray.training.loop import train
from anmi_ray.training.training_set import prepare
from tests.disks import small_disk_at
from tests.faults.test_kill import kill_tree
from tests.faults.trainer import STEPS, settings
from tests.models.tiny import write_tiny_bert
from tests.training.lists import planted
from tests.training.test_loop import curve

pytestmark = [
    pytest.mark.faults,
    pytest.mark.ray,
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What a run reads."""
    write_tiny_bert(tmp_path / "base")
    problem = planted()
    for name in ("examples", "texts", "queries"):
        pq.write_table(getattr(problem, name), tmp_path / f"{name}.parquet")
    return tmp_path


@contextmanager
def started(folder: Path, mode: str) -> Iterator[subprocess.Popen[str]]:
    """A run of its own, of which nothing stays behind."""
    with (folder / f"{mode}.err").open("a") as errors:
        run = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.trainer", str(folder), mode],
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
        try:
            yield run
        finally:
            if run.poll() is None:
                kill_tree(run)
            assert run.stdout is not None
            run.stdout.close()


def reach(run: subprocess.Popen[str], step: int) -> int:
    """Read on until the run says that it is at `step` or beyond; where it is."""
    assert run.stdout is not None
    for line in run.stdout:
        if line.startswith("step ") and int(line.split()[1]) >= step:
            return int(line.split()[1])
    raise AssertionError(f"the run ended with {run.wait()} before step {step}")


def worker(run: subprocess.Popen[str]) -> psutil.Process:
    """The process that trains."""
    family = psutil.Process(run.pid).children(recursive=True)
    [found] = [one for one in family if "RayTrainWorker" in " ".join(one.cmdline())]
    return found


def checkpoints(folder: Path) -> list[Path]:
    return sorted(path for path in (folder / "out" / "ray" / "fault").glob("checkpoint_0*") if path.is_dir())


def undisturbed(folder: Path, mode: str) -> list[list[float | int | None]]:
    config, problem = settings(folder, mode), planted()
    model = CrossEncoder.load(config.model, pooling=config.pooling, max_tokens=config.max_tokens, seed=config.seed)
    data = prepare([problem.examples], [problem.texts], [problem.queries], model.pairs)
    return curve(train(model, data, None, config, TrainExecution()).rows)


def test_killed_and_resumed_with_the_curve_of_a_run_that_nothing_disturbed(folder: Path) -> None:
    chance = random.Random(os.getpid())
    with started(folder, "always") as run:
        at = reach(run, chance.randint(2, STEPS["always"] // 3))
        worker(run).kill()
        again = reach(run, at + 1)
        assert kill_tree(run) >= 2
    assert again < STEPS["always"], "the run was over before its driver was killed"
    [*_, before, newest] = [path for path in checkpoints(folder) if not isinstance(check(path, 0, 1), str)]
    broken, resumed = int(newest.name.split("_")[1]), int(before.name.split("_")[1])
    newest.with_name(f"checkpoint_{broken + 1:09d}_0").mkdir()  # as a kill while one is copied leaves it; this may have
    left_out = [path.name for path in reversed(checkpoints(folder)) if path.name > before.name]
    state = max(newest.rglob("*.pt"), key=lambda path: path.stat().st_size)
    os.truncate(state, state.stat().st_size - 1)
    (newest.parent / "checkpoint_manager_snapshot.json").write_text("")  # as a kill between opening and writing does

    with started(folder, "always") as run:
        said, _ = run.communicate(timeout=600)
    assert run.returncode == 0, (folder / "always.err").read_text()
    notices = [line for line in said.splitlines() if line.startswith("notice ")]
    assert broken > resumed > 0
    assert "the list of checkpoints is broken" in notices[0]
    assert [name for name, notice in zip(left_out, notices[1:-1], strict=True) if name in notice] == left_out
    assert state.name in notices[1 + left_out.index(newest.name)]
    assert f"after step {resumed}" in notices[-1]
    assert curve(json.loads((folder / "rows.json").read_text())) == undisturbed(folder, "always")
    assert "Traceback" not in (folder / "always.err").read_text()


def test_sigterm_to_a_worker_saves_a_checkpoint_and_training_goes_on(folder: Path) -> None:
    with started(folder, "seldom") as run:
        at = reach(run, 2)
        os.kill(worker(run).pid, signal.SIGTERM)
        said, _ = run.communicate(timeout=600)
    assert run.returncode == 0, (folder / "seldom.err").read_text()
    [saved] = checkpoints(folder)
    assert int(saved.name.split("_")[1]) >= at
    assert "notice" not in said
    assert curve(json.loads((folder / "rows.json").read_text())) == undisturbed(folder, "seldom")


@pytest.fixture
def small_disk(folder: Path) -> Iterator[Path]:
    """A disk that holds neither a checkpoint nor a model."""
    with small_disk_at(folder / "out", "64k") as place:
        yield place


def refused(folder: Path, mode: str) -> str:
    """What a run says that ends in its first attempt."""
    with started(folder, mode) as run:
        printed, _ = run.communicate(timeout=300)
    steps = [int(line.split()[1]) for line in printed.splitlines() if line.startswith("step ")]
    assert steps == sorted(set(steps)), "it began again"
    assert run.returncode == 1
    return (folder / f"{mode}.err").read_text()


WRITERS: dict[str, Callable[[Path], object]] = {
    "torch": lambda path: torch.save({"weights": torch.zeros(100_000)}, path),
    "safetensors": lambda path: save_file({"weights": torch.zeros(100_000)}, path),
    "plain": lambda path: path.write_bytes(bytes(400_000)),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_a_disk_that_is_full_is_named_whoever_writes_there(writer: str, small_disk: Path) -> None:
    full = rf"{small_disk}: no space left for the model\n.*by TMPDIR"
    with pytest.raises(TrainingError, match=full), room_named("the model", str(small_disk), "TMPDIR"):
        WRITERS[writer](small_disk / "file")


def test_other_errors_where_there_is_room_stay_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="something else"), room_named("the model", str(tmp_path), "TMPDIR"):
        raise RuntimeError("something else")


def test_a_full_disk_ends_a_run_at_once_and_leaves_no_half_of_anything(folder: Path, small_disk: Path) -> None:
    assert "ray/fault: no space left for a checkpoint" in refused(folder, "always")
    assert f"{small_disk}/model: no space left" in refused(folder, "last")
    assert [path for path in small_disk.iterdir() if path.name.startswith("model")] == []
    assert checkpoints(folder) == []
    subprocess.run(["mount", "-o", "remount,size=500m", str(small_disk)], check=True)
    with started(folder, "always") as run:
        reach(run, STEPS["always"])
        assert run.wait(timeout=120) == 0
    assert curve(json.loads((folder / "rows.json").read_text())) == undisturbed(folder, "always")
