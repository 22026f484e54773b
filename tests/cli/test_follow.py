"""How far a run is, read from its root: real runs beside `anmi show --follow`, and the worker logs that they leave."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from anmi_ray.cli.console import stdout
from anmi_ray.cli.follow import SILENT_S, Followed
from anmi_ray.pipeline import progress
from anmi_ray.pipeline.progress import Snapshots, place
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Flow, Store
from tests.commands import anmi
from tests.interrupts import heeding
from tests.small import write_collection, write_config

WAIT_S = 240.0
BUCKETS = 4


@pytest.fixture
def own_temp() -> Iterator[Path]:
    """Where nobody else's Ray leaves its logs; with a short path, as Ray's sockets need it."""
    with tempfile.TemporaryDirectory(prefix="anmi-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def until(found: Callable[[], Any]) -> Any:
    deadline = time.monotonic() + WAIT_S
    while not (seen := found()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    return seen


def started(*arguments: str | Path, temp: Path | None = None) -> subprocess.Popen[str]:
    return subprocess.Popen(
        heeding([sys.executable, "-m", "anmi_ray", *map(str, arguments)]),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, **({} if temp is None else {"TMPDIR": str(temp)})},
    )


def ended(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, errors = process.communicate(timeout=WAIT_S)
    return process.returncode, out, errors


class Slow(Store):
    """A store whose small documents take a while, as on object storage; it remembers them."""

    def publish_json(self, path: str, content: Any) -> None:
        time.sleep(0.3)
        published.append((time.monotonic(), content))
        super().publish_json(path, content)


published: list[tuple[float, dict[str, Any]]] = []


@pytest.fixture
def slow(tmp_path: Path) -> Iterator[Slow]:
    published.clear()
    yield Slow(str(tmp_path))
    published.clear()


def test_snapshots_keep_nobody_waiting_and_end_with_the_outcome(slow: Slow) -> None:
    with Snapshots(slow, "small", ["ingest", "judge"]) as told:
        told.stage("ingest", "")
        told.finished("ingest", None, [Flow("queries", 3, 2, 1)])
        told.stage("judge", "")
        for done in range(5000):
            told.progress(done, 5000, "questions", "9/s, pool of 1 to 4")
        told.notice("see s3://key:word@bucket")
    assert 1 <= len(published) <= 4  # thousands of changes are few documents
    said = slow.read_json(place("small"))
    assert said == published[-1][1]
    assert (said["state"], said["message"]) == ("finished", None)
    ingest, judge = said["stages"]
    assert (ingest["state"], ingest["flows"]) == (
        "reused",
        [{"unit": "queries", **dict(rows_in=3, rows_out=2, rejected=1)}],
    )
    assert judge["asked"] == {"done": 4999, "total": 5000, "unit": "questions", "note": "9/s, pool of 1 to 4"}
    assert [one["text"] for one in said["notices"]] == ["see s3://***@bucket"]


@pytest.mark.parametrize(("error", "state"), [(ValueError("broken"), "failed"), (KeyboardInterrupt(), "interrupted")])
def test_snapshots_say_what_ended_a_run(tmp_path: Path, error: BaseException, state: str) -> None:
    store = Store(str(tmp_path))
    with pytest.raises(type(error)), progress.told(store, "small", ["ingest"], Reporter()):
        raise error
    said = store.read_json(place("small"))
    assert (said["state"], said["message"]) == (state, "broken" if state == "failed" else None)


def test_a_storage_that_refuses_ends_no_run(tmp_path: Path) -> None:
    (tmp_path / "root").write_text("a file")
    with progress.told(Store(str(tmp_path / "root")), "small", ["ingest"], Reporter()) as told:
        told.stage("ingest", "")


def snapshot(**more: Any) -> dict[str, Any]:
    stages = [
        {"name": "train", "state": "at work", "began": 1.0, "progress": dict(done=30, total=60, unit="steps", note="")},
        {"name": "rerank", "state": "not yet"},
    ]
    training = {"step": 30, "share": 0.5, "dev": 0.4321}
    driver = {"host": "there", "process": 7}
    made = {"run": "small", "state": "running", "message": None, "began": 0.0, "heard": 9.0, "driver": driver}
    return {**made, "stages": stages, "training": training, "notices": [], **more}


def test_only_what_is_new_is_printed() -> None:
    out = io.StringIO()
    followed = Followed(stdout(out))

    def fresh(silence: float, **more: Any) -> list[str]:
        before = len(out.getvalue())
        followed.update(snapshot(**more), silence)
        return [line.strip() for line in out.getvalue()[before:].splitlines()]

    first = fresh(0.0)
    assert first[1:] == ["train", "train: 30 of 60 steps", "train: dev 0.4321 after step 30 (50%)"]
    assert fresh(1.0, heard=12.0) == []
    assert [line[:15] for line in fresh(SILENT_S + 1)] == ["no progress for"]
    assert fresh(SILENT_S + 2) == []
    assert fresh(0.0) == ["progress again"]
    notice = {"time": 11.0, "stage": "train", "text": "a checkpoint was left out"}
    assert fresh(0.0, notices=[notice]) == ["train: a checkpoint was left out"]
    assert fresh(0.0, notices=[notice], state="failed", message="why") == ["run small failed after 9 s: why"]
    again = fresh(0.0, driver={"host": "there", "process": 8}, began=20.0)
    assert "process 8" in again[0]  # another driver: all of it again
    assert len(again) == len(first)


@pytest.mark.slow
def test_a_run_that_failed_is_followed_to_its_end(small_collection: Path, tmp_path: Path) -> None:
    config, root = write_config(tmp_path / "small.yaml", small_collection), tmp_path / "root"
    unknown = anmi("show", "small", "--follow", "--root", root)
    assert unknown.returncode == 2
    assert "no run of that name" in unknown.stderr
    failed = ended(started("run", config, "--root", root, "--from", "train"))
    assert failed[0] == 2
    assert failed[2].startswith("anmi: ")  # no line of the log on a screen that shows text
    followed = anmi("show", "small", "--follow", "--root", root)
    assert followed.returncode == 1, followed.stderr
    assert "run small failed" in followed.stdout
    assert "--from train needs the artifact of stage ingest" in followed.stdout


@pytest.mark.ray
@pytest.mark.slow
def test_a_run_is_followed_and_leaves_its_workers_lines(own_temp: Path, tmp_path: Path) -> None:
    collection = write_collection(tmp_path / "collection", train=8, dev=2, test=4, others=20)
    config, root = write_config(tmp_path / "small.yaml", collection), tmp_path / "root"
    more = ("--until", "compare", "execution.log_format=json", "retrieve.retrievers=[bm25]")
    run = started("run", config, "--root", root, *more, temp=own_temp)
    reading = threading.Thread(target=lambda: done.append(ended(run)))
    done: list[tuple[int, str, str]] = []
    reading.start()
    until((root / place("small")).exists)
    code, out, errors = ended(started("show", "small", "--follow", "--root", root))
    reading.join()
    assert done[0][0] == 0, done[0][2]
    assert code == 0, errors
    assert [line.split()[1] for line in out.splitlines() if line.startswith("✓")] == ["ingest", "retrieve", "compare"]
    assert out.splitlines()[-1].startswith("run small finished after")
    told = [json.loads(line) for line in done[0][1].splitlines()]
    assert [line["message"] for line in told if line["message"].startswith("run ")] == ["run begins", "run ends"]
    assert {line["run"] for line in told} == {"small"}
    ends = [line for line in told if line["message"] == "stage ends"]
    assert [line["stage"] for line in ends] == ["ingest", "retrieve", "compare"]
    said = json.loads((root / place("small")).read_text())
    assert (said["state"], [stage["state"] for stage in said["stages"]]) == ("finished", ["done"] * 3)
    assert said["stages"][2]["flows"] == ends[2]["rows"]
    assert {**said["stages"][2]["progress"], "note": ""} == dict(done=BUCKETS, total=BUCKETS, unit="buckets", note="")
    written = [
        line for file in own_temp.rglob("session_2*/logs/worker-*.err") for line in file.read_text().splitlines()
    ]
    ours = [json.loads(line) for line in written if line.startswith('{"time"')]
    assert all(line["run"] == "small" and line["stage"] for line in ours)
    buckets = {line["bucket"] for line in ours if (line["message"], line["stage"]) == ("bucket ends", "compare")}
    assert buckets == set(range(BUCKETS))
    assert all(line["rows"] for line in ours if (line["message"], line["stage"]) == ("bucket ends", "compare"))


@pytest.mark.ray
@pytest.mark.slow
def test_nothing_is_heard_of_a_driver_that_was_killed(small_collection: Path, own_temp: Path, tmp_path: Path) -> None:
    config, root = write_config(tmp_path / "small.yaml", small_collection), tmp_path / "root"
    run = started("run", config, "--root", root, temp=own_temp)
    until((root / place("small")).exists)
    family = [*psutil.Process(run.pid).children(recursive=True), psutil.Process(run.pid)]
    for member in family:
        member.kill()
    ended(run)
    follow = started("show", "small", "--follow", "--root", root)
    assert follow.stdout is not None
    assert any("no progress for" in line for line in follow.stdout)
    follow.send_signal(signal.SIGINT)
    code, _, errors = ended(follow)
    assert code == 130
    assert errors.strip().count("\n") == 0
    assert "interrupted" in errors
