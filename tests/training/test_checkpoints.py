"""A checkpoint is whole or recognised as broken; the one before it is used; other numbers of workers; SIGTERM."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from pickle import UnpicklingError

import pytest
import torch
import torch.distributed as dist

from anmi_ray.config.train import TrainConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.training.checkpoints import Origin, check
from anmi_ray.training.engine import make_engine
from anmi_ray.training.loop import Row, Trained, train
from anmi_ray.training.module import Trainable
from tests.training.folder import FolderCheckpoints
from tests.training.test_loop import CONFIG, EXECUTION, InterruptedTrainingError, curve, die_after, start
from tests.training.two import two_workers

# DeepSpeed calls collectives that torch has renamed.
pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning", "ignore::DeprecationWarning")

EVERY_STEP = EXECUTION.model_copy(update={"checkpoint_minutes": 0.0})
SELDOM = EXECUTION.model_copy(update={"checkpoint_minutes": 1000.0})
ENGINES = {"ddp": 0, "deepspeed": 2}
NEWEST, BEFORE = "step-000000007", "step-000000006"


def settings(engine: str, stage: int | None = None) -> TrainConfig:
    return CONFIG.model_copy(update={"engine": engine, "zero_stage": ENGINES[engine] if stage is None else stage})


@pytest.fixture(scope="module")
def killed(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Trained]]:
    """By engine: the checkpoints of a run that died in step 8, and the run that nothing disturbed."""
    runs = {}
    for engine in ENGINES:
        folder = tmp_path_factory.mktemp(engine)
        model, data = start(base, settings(engine))
        with pytest.raises(InterruptedTrainingError):
            train(model, data, None, settings(engine), EVERY_STEP, FolderCheckpoints(folder / "c"), on_row=die_after(8))
        model, data = start(base, settings(engine))
        runs[engine] = folder / "c", train(model, data, None, settings(engine), EXECUTION)
    return runs


def flip(path: Path, at: int | None = None) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2 if at is None else at] ^= 1
    path.write_bytes(content)


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def largest(folder: Path) -> Path:
    """The optimiser's state."""
    return max((path for path in folder.rglob("*.pt")), key=lambda path: ("optim" in path.name, path.stat().st_size))


DAMAGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a missing shard": (lambda folder: largest(folder).unlink(), "is missing"),
    "a truncated shard": (lambda folder: truncate(largest(folder)), "bytes"),
    "a flipped byte": (lambda folder: flip(largest(folder)), "is damaged"),
    "unreadable JSON": (lambda folder: (folder / "loop.json").write_text("{"), "loop.json"),
    "an empty list": (lambda folder: (folder / "manifest-00000.json").write_text(""), "manifest-00000.json is damaged"),
    "no list": (lambda folder: (folder / "manifest-00000.json").unlink(), "no list of its files"),
    "an empty folder": (empty, "no list of its files"),
}


def resume(base: Path, engine: str, folder: Path) -> tuple[Trained, list[Row], list[str]]:
    seen: list[Row] = []
    said: list[str] = []
    model, data = start(base, settings(engine))
    trained = train(model, data, None, settings(engine), EXECUTION, FolderCheckpoints(folder), seen.append, said.append)
    return trained, seen, said


@pytest.mark.parametrize("engine", list(ENGINES))
@pytest.mark.parametrize("damage", list(DAMAGES))
def test_a_broken_checkpoint_is_named_and_the_one_before_it_used(
    base: Path, tmp_path: Path, killed: dict[str, tuple[Path, Trained]], engine: str, damage: str
) -> None:
    folder, whole = killed[engine]
    shutil.copytree(folder, tmp_path / "c")
    break_, wrong = DAMAGES[damage]
    break_(tmp_path / "c" / NEWEST)
    trained, seen, said = resume(base, engine, tmp_path / "c")
    assert [row["step"] for row in seen] == [7, 8, 9, 10, 11, 12]
    assert curve(trained.rows) == curve(whole.rows)
    [first, second] = said
    assert NEWEST in first
    assert wrong in first
    assert "after step 6" in second


@pytest.mark.parametrize("engine", list(ENGINES))
def test_without_a_whole_checkpoint_training_starts_anew(
    base: Path, tmp_path: Path, killed: dict[str, tuple[Path, Trained]], engine: str
) -> None:
    folder, whole = killed[engine]
    shutil.copytree(folder, tmp_path / "c")
    _, seen, said = resume(base, engine, tmp_path / "c")
    assert ([row["step"] for row in seen], said) == ([8, 9, 10, 11, 12], [])  # a whole one is used in silence
    flip(largest(tmp_path / "c" / NEWEST))
    truncate(largest(tmp_path / "c" / BEFORE))
    trained, seen, said = resume(base, engine, tmp_path / "c")
    assert [row["step"] for row in seen] == list(range(1, 13))
    assert curve(trained.rows) == curve(whole.rows)
    assert [NEWEST in said[0], BEFORE in said[1]] == [True, True]
    assert said[2:] == ["no complete checkpoint is left: training starts over"]


@pytest.mark.parametrize("engine", list(ENGINES))
def test_any_flipped_byte_anywhere_is_seen(
    tmp_path: Path, killed: dict[str, tuple[Path, Trained]], engine: str
) -> None:
    folder = tmp_path / "c"
    shutil.copytree(killed[engine][0] / NEWEST, folder)
    whole = check(folder)
    assert isinstance(whole, Origin)
    chance = random.Random(0)
    files = [path for path in folder.rglob("*") if path.is_file()]
    assert len(files) >= 3
    for path in files:
        for _ in range(20):
            at = chance.randrange(path.stat().st_size)
            flip(path, at)
            assert isinstance(check(folder), str), f"byte {at} of {path.name}"
            flip(path, at)
    assert check(folder) == whole


def test_code_in_a_checkpoint_is_not_run(base: Path, tmp_path: Path, killed: dict[str, tuple[Path, Trained]]) -> None:
    """Whoever can write a checkpoint can write its list too, so reading must not run what a file says."""

    class Hostile:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "was run"),)

    for engine, (folder, _) in killed.items():
        shutil.copytree(folder / NEWEST, tmp_path / engine)
        torch.save({"optimizer_state_dict": Hostile(), "module": Hostile()}, largest(tmp_path / engine))
        made = make_engine(Trainable(start(base, settings(engine))[0], settings(engine)), settings(engine))
        with pytest.raises(UnpicklingError):
            made.load(tmp_path / engine)
        assert not (tmp_path / "was run").exists()


@pytest.fixture
def before() -> Iterator[list[int]]:
    """What a SIGTERM handler that was there before the run has seen."""
    seen: list[int] = []
    old = signal.signal(signal.SIGTERM, lambda number, _: seen.append(number))
    yield seen
    signal.signal(signal.SIGTERM, old)


def test_sigterm_saves_at_once_and_the_next_one_is_not_ours(base: Path, tmp_path: Path, before: list[int]) -> None:
    model, data = start(base)
    folder = tmp_path / "c"
    there: dict[int, list[str]] = {}

    def on_row(row: Row) -> None:
        step = int(row["step"] or 0)
        there[step] = sorted(path.name for path in folder.glob("step-*"))
        if step in (4, 8):
            os.kill(os.getpid(), signal.SIGTERM)

    trained = train(model, data, None, CONFIG, SELDOM, FolderCheckpoints(folder), on_row)
    assert len(trained.rows) == 12
    assert there[5] == []
    assert there[6] == there[12] == ["step-000000005"]
    assert before == [signal.SIGTERM]
    os.kill(os.getpid(), signal.SIGTERM)
    assert before == [signal.SIGTERM] * 2, "the handler of before is not back"


def test_without_checkpoints_sigterm_is_left_alone(base: Path, before: list[int]) -> None:
    model, data = start(base)

    def on_row(row: Row) -> None:
        if row["step"] == 4:
            os.kill(os.getpid(), signal.SIGTERM)

    train(model, data, None, CONFIG, SELDOM, None, on_row)
    assert before == [signal.SIGTERM]


@pytest.mark.slow
def test_two_workers_save_together_and_others_go_on(base: Path, tmp_path: Path) -> None:
    """What two processes wrote: after SIGTERM to one of them, and to be resumed by one where that can be."""
    two_workers("tests.training.test_checkpoints", base, tmp_path)
    assert [path.name for path in (tmp_path / "sigterm").iterdir()] == ["step-000000005"]
    for name in ("sigterm/step-000000005", "deepspeed-2/step-000000011"):
        found = check(tmp_path / name)
        assert isinstance(found, Origin), found
        assert found.world == 2

    losses = json.loads((tmp_path / "losses.json").read_text())
    for engine, stage in (("ddp", 0), ("deepspeed", 0)):
        seen: list[Row] = []
        model, data = start(base, settings(engine, stage))
        checkpoints = FolderCheckpoints(tmp_path / f"{engine}-{stage}")
        trained = train(model, data, None, settings(engine, stage), EXECUTION, checkpoints, seen.append)
        assert [row["step"] for row in seen] == [12]
        assert [row["loss"] for row in trained.rows] == pytest.approx(losses, rel=2e-3)

    model, data = start(base, settings("deepspeed"))
    bytes_before = {path: path.read_bytes() for path in (tmp_path / "deepspeed-2").rglob("*") if path.is_file()}
    with pytest.raises(ConfigError, match="in 2 parts") as caught:
        train(model, data, None, settings("deepspeed"), EXECUTION, FolderCheckpoints(tmp_path / "deepspeed-2"))
    assert "execution.train.num_workers: 2" in str(caught.value.remedy)
    assert {path: path.read_bytes() for path in (tmp_path / "deepspeed-2").rglob("*") if path.is_file()} == bytes_before

    (tmp_path / "deepspeed-2" / "step-000000011" / "manifest-00001.json").unlink()
    assert check(tmp_path / "deepspeed-2" / "step-000000011") == "the part of worker 1 is missing"


def work(base: Path, output: Path, rank: int) -> None:
    """What each of two workers does: three trainings with a checkpoint a step, one with SIGTERM to the second."""
    losses: list[list[float]] = []
    for engine, stage in (("ddp", 0), ("deepspeed", 0), ("deepspeed", 2)):
        model, data = start(base, settings(engine, stage))
        checkpoints = FolderCheckpoints(output / f"{engine}-{stage}")
        trained = train(model, data, None, settings(engine, stage), EVERY_STEP, checkpoints)
        losses.append([float(row["loss"] or 0.0) for row in trained.rows])
    if rank == 0:
        (output / "losses.json").write_text(json.dumps(losses[0]), encoding="utf-8")

    pids: list[int] = [0, 0]
    dist.all_gather_object(pids, os.getpid())

    def on_row(row: Row) -> None:
        if row["step"] == 4:
            os.kill(pids[1], signal.SIGTERM)

    model, data = start(base, settings("ddp"))
    trained = train(model, data, None, settings("ddp"), SELDOM, FolderCheckpoints(output / "sigterm"), on_row)
    assert len(trained.rows) == 12
