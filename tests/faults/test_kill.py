"""kill -9 of the whole process tree in stage after stage; the same command then finishes with the same bytes.

One root is killed its way through all stages; another is run without a disturbance. Real processes, real signals.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.commands import anmi
from tests.models.tiny import write_tiny_bert
from tests.small import NAMES, write_config
from tests.training.one_task import in_one_task

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(1500)]
BEFORE_TRAINING = NAMES[: NAMES.index("train")]
KILLED = ("ingest", "retrieve", "judge", "mine", "train", "rerank")  # of those alike one


def command(config: Path, root: Path, *more: str) -> list[str]:
    return [sys.executable, "-m", "anmi_ray", "run", str(config), "--root", str(root), *more]


def carried_out(config: Path, root: Path, *more: str) -> None:
    """Carry out a run that must end well, in this process: the Ray that tests share is another than those killed."""
    done = anmi("run", config, "--root", root, *more)
    assert done.returncode == 0, done.stdout + done.stderr


def kill_tree(process: subprocess.Popen[str]) -> int:
    """SIGKILL the driver and everything it started; the number of processes killed."""
    parent = psutil.Process(process.pid)
    family = [*parent.children(recursive=True), parent]
    for member in family:
        try:
            os.kill(member.pid, signal.SIGKILL)
        except ProcessLookupError:
            continue
    process.wait(timeout=60)
    return len(family)


def run_until_killed(
    config: Path, root: Path, stage: str, delay: float, names: tuple[str, ...] = NAMES, more: tuple[str, ...] = ()
) -> tuple[str, int] | None:
    """Start the run and kill it `delay` seconds after it announced `stage`, or one after it when that was done before.

    Returns the stage in which it was killed and the number of processes; None when the run finished. The errors go to
    a file of their own: a line of a library among the driver's would hide a stage from us.
    """
    errors = root.with_name(f"{stage}.err")
    targets, said, reached = names[names.index(stage) :], [], None
    with (
        errors.open("w") as sink,
        subprocess.Popen(
            command(config, root, *more), stdout=subprocess.PIPE, stderr=sink, text=True, start_new_session=True
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            reached = next((name for name in targets if line.startswith(f"{name} ")), None)
            if reached:
                time.sleep(delay)
                break
        if reached and process.poll() is None:
            return reached, kill_tree(process)
        code = process.wait(timeout=60)
    assert code == 0, f"the run to be killed in {stage} ended with {code}: {''.join(said)}{errors.read_text()}"
    return None


def files(root: Path, stages: tuple[str, ...] = BEFORE_TRAINING) -> dict[str, bytes]:
    return {
        str(path.relative_to(root)): path.read_bytes()
        for stage in stages
        for path in sorted((root / "artifacts" / stage).rglob("*"))
        if path.is_file() and not path.name.endswith(".tmp")
    }


def finished_buckets(root: Path) -> dict[str, int]:
    """When each was written; not what tasks exchange, which goes when their stage is complete.

    Vectors count when their manifest is there.
    """
    found = {}
    for path in (root / "artifacts").rglob("*.parquet"):
        with suppress(FileNotFoundError):  # it went since
            whole = "vectors" not in path.parts or (path.parent.parent / "manifest.json").exists()
            if whole and path.parent.name != "exchange":
                found[str(path.relative_to(root))] = path.stat().st_mtime_ns
    return found


@pytest.fixture(scope="module")
def config(ray_local: None, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("kill")
    trained = {"model": str(write_tiny_bert(folder / "tiny")), "max_steps": 4, "max_tokens": 48}
    return write_config(folder / "small.yaml", small_collection, train=trained)


@pytest.fixture(scope="module")
def undisturbed(config: Path) -> Path:
    root = config.parent / "undisturbed"
    with in_one_task():
        carried_out(config, root)
    return root


def test_killed_in_stage_after_stage_and_resumed(config: Path, undisturbed: Path) -> None:
    root = config.parent / "killed"
    killed: dict[str, int] = {}
    before: dict[str, int] = {}
    for number, stage in enumerate(KILLED):
        if hit := run_until_killed(config, root, stage, delay=5.0 if stage == "ingest" else 0.3 * (number % 4)):
            killed[hit[0]] = hit[1]
            before = finished_buckets(root)
    assert len(killed) >= len(KILLED) - 2, f"killed only in {killed}"
    assert max(killed.values()) >= 2, f"only drivers were killed, no process of Ray's: {killed}"
    carried_out(config, root)
    after = finished_buckets(root)
    rewritten = [path for path, when in before.items() if after[path] != when]
    assert not rewritten, f"finished buckets were redone: {rewritten}"
    expected, found = files(undisturbed), files(root)
    assert expected
    assert sorted(found) == sorted(expected)
    assert [path for path in expected if expected[path] != found[path]] == []
    assert_same_metrics(undisturbed, root)


@pytest.mark.long
def test_killed_in_the_second_round_and_resumed(config: Path, undisturbed: Path) -> None:
    """Validation over a root whose first round is there: all stages before mining again."""
    validation = ("mine.rule=validated", "mine.allow=[{rule: validate, high: 450}]", "name=second", "--until", "mine")
    stages = ("borderline", "validate", "refit", "mine")
    roots = [config.parent / name for name in ("second-undisturbed", "second-killed")]
    for root in roots:
        shutil.copytree(undisturbed, root)
    carried_out(config, roots[0], *validation)
    killed, before = set[str](), dict[str, int]()
    for number, stage in enumerate(stages):
        if hit := run_until_killed(config, roots[1], stage, 0.2 * number, stages, validation):
            killed.add(hit[0])
            before = finished_buckets(roots[1])
    assert len(killed) >= 2, f"killed only in {killed}"
    carried_out(config, roots[1], *validation)
    after = finished_buckets(roots[1])
    assert [path for path, when in before.items() if after[path] != when] == []
    expected, found = (files(root, stages) for root in roots)
    assert {path.split("/")[1] for path in expected} == set(stages)
    assert found == expected


def test_killed_among_shards_and_an_index_lost(config: Path) -> None:
    """All is killed when some shards are indexed, and the indexes of one are gone: only what is missing is made."""
    corpus = {**json.loads(config.read_text())["corpus"], "shard_documents": 20}
    shards = write_config(config.parent / "shards.yaml", Path(corpus["path"]), corpus=corpus)
    whole, hurt = config.parent / "shards-whole", config.parent / "shards-hurt"
    first, second = ("--until", "retrieve"), ("--until", "retrieve", "retrieve.depth=20")  # needs every shard's again
    carried_out(shards, whole, *second)
    with subprocess.Popen(
        command(shards, hurt, *first), stdout=subprocess.DEVNULL, text=True, start_new_session=True
    ) as process:
        while len(indexes(hurt)) < 6 and process.poll() is None:
            time.sleep(0.02)
        kill_tree(process)
    before = indexes(hurt)
    assert 6 <= len(before) < len(indexes(whole)), "not killed among the shards"
    lost = next(path.parent for path in before if path.name == "counts.npz")
    shutil.rmtree(hurt / "artifacts" / lost.parent)
    carried_out(shards, hurt, *second)
    after = indexes(hurt)
    assert {path.parent for path, when in before.items() if after[path] != when} == {lost}
    assert after.keys() == indexes(whole).keys()
    for path in after:
        assert (hurt / "artifacts" / path).read_bytes() == (whole / "artifacts" / path).read_bytes()
    expected, found = (files(root, ("ingest", "retrieve")) for root in (whole, hurt))
    assert expected
    assert {path: found[path] for path in expected} == expected


def indexes(root: Path) -> dict[Path, int]:
    """The files of the indexes that are complete, and when each was written: no half file of a killed writer."""
    found = {}
    for manifest in [path for kind in ("counts", "vectors") for path in root.glob(f"artifacts/{kind}/*/manifest.json")]:
        for path in (manifest.parent / json.loads(manifest.read_text())["folder"]).iterdir():
            if path.suffix != ".tmp":
                found[path.relative_to(root / "artifacts")] = path.stat().st_mtime_ns
    return found


def assert_same_metrics(one: Path, other: Path) -> None:
    first, second = (
        {(row["system"], row["measure"]): row["mean"] for row in json.loads(path.read_text())["content"]}
        for path in (next((root / "artifacts" / "evaluate").glob("*/comparisons.json")) for root in (one, other))
    )
    assert first.keys() == second.keys()
    assert all(abs(first[key] - second[key]) < 1e-3 for key in first)
