"""A storm over whole runs: kills in every stage, judges that fail, two runs at once, a stopped machine, a full disk,
and clocks that jump.

A root is killed its way through all stages, then another, until there were enough kills (ANMI_KILLS, 30 unless told).
Each must end with the bytes of a run that nothing disturbed; the server's own log is the witness of what was asked.
"""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil
import pytest

from anmi_ray.config.load import load
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.store import Artifact, Store
from tests.disks import small_disk_at
from tests.faults.test_judging import part_of
from tests.faults.test_kill import carried_out, command, kill_tree
from tests.interrupts import heeding
from tests.judging.serving import Chat, serving
from tests.models.tiny import write_tiny_bert
from tests.small import NAMES, write_config

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.ray, pytest.mark.timeout(7200)]
KILLS = int(os.environ.get("ANMI_KILLS", "30"))
FAULTS = {"429:0": 0.03, "500": 0.03, "reset": 0.02, "invalid": 0.01, "empty": 0.01}  # one call in ten
CLOCK = Path(__file__).with_name("clock.c")
SHIFTS_H = (-1, 24, -24, 24 * 60, 0)
STOPPED_S = 60
# where a root is struck, in this order: more often where money is spent
STRUCK = (
    "ingest",
    "retrieve",
    "compare",
    "judge",
    "judge",
    "judge",
    "judge",
    "rate",
    "mine",
    "train",
    "rerank",
    "report",
)
LATEST_S = {"retrieve": 10.0, "train": 20.0}  # of the moment of a kill after something is at work; else a second
# a report, the log of training, hashes of these, and what judges were paid
TIMED = re.compile(r"artifacts/(report/|train/.*(log|files|training)\.json|judge/[^/]+/manifest\.json)")


@dataclass
class Storm:
    """What strikes the runs of one configuration, and what came of it."""

    config: Path
    chat: Chat
    chance: random.Random = field(default_factory=lambda: random.Random(30))
    killed: Counter[str] = field(default_factory=Counter[str])
    events: Counter[str] = field(default_factory=Counter[str])

    @property
    def errors(self) -> Path:
        """What runs say to the error stream, on a disk that is never full."""
        return self.config.with_name("errors.txt")

    @contextmanager
    def started(self, root: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
        """A run in a session of its own, by a clock that can be set."""
        clock = self.config.parent
        (clock / "clock").write_text("0")
        errors = self.errors.open("a")
        run = heeding(command(self.config, root, *more))
        with errors, subprocess.Popen(
            run, stdout=subprocess.PIPE, stderr=errors, text=True, start_new_session=True,
            env={**os.environ, "LD_PRELOAD": str(clock / "clock.so"), "ANMI_CLOCK": str(clock / "clock")},
        ) as process:  # fmt: skip
            try:
                yield process
            finally:
                if process.poll() is None:
                    kill_tree(process)
        said = self.errors.read_text()
        assert "Traceback" not in said, said[-5000:]

    def strike(self, root: Path, stage: str, number: int) -> None:
        """Kill all of a run while it carries out `stage` or a later one, unless it has ended by then."""
        two = stage == "judge" and number % 2 == 1
        with self.started(root) as process, self.started(root, "name=second") if two else nullcontext() as other:
            reached = until(process, NAMES[NAMES.index(stage) :])
            if reached is None or not at_work(process):
                return
            if reached == "judge":
                self.await_questions(process, self.chance.randrange(50, 1500))
            time.sleep(self.chance.uniform(0.0, LATEST_S.get(reached, 1.0)))
            if reached == "judge" and not two and not self.events["stopped for a minute"]:
                self.stop(process)
            if number % 2 == 0:
                self.set_clocks(process)
            assert process.poll() in (None, 0), self.errors.read_text()
            if process.poll() is None:
                self.events["two runs at once"] += two
                if other is not None and other.poll() is None:
                    kill_tree(other)
                kill_tree(process)
                self.killed[reached] += 1

    def await_questions(self, process: subprocess.Popen[str], count: int) -> None:
        """Until the server has been asked so many more."""
        begun = len(self.chat.log())
        while len(self.chat.log()) < begun + count and process.poll() is None:
            time.sleep(0.1)

    def set_clocks(self, process: subprocess.Popen[str]) -> None:
        """Clocks jump again and again while the run goes on."""
        for hours in SHIFTS_H:
            (self.config.parent / "clock").write_text(str(hours * 3600))
            time.sleep(1.5)  # they look every second
        self.events["clocks that jumped"] += 1

    def stop(self, process: subprocess.Popen[str]) -> None:
        """As a laptop that sleeps: nothing of the run moves for a minute."""
        parent = psutil.Process(process.pid)
        family = [parent, *parent.children(recursive=True)]
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for member in family:
                with suppress(ProcessLookupError):
                    os.kill(member.pid, number)
            time.sleep(STOPPED_S if number == signal.SIGSTOP else 3.0)
        self.events["stopped for a minute"] += 1
        assert process.poll() is None, "the run ended because its machine had slept"

    def fill(self, root: Path) -> None:
        """The disk is full when judges have answered for a while: one message, and no half of anything."""
        ballast = root.with_name("ballast")
        with self.started(root) as process:
            self.await_questions(process, 300)
            with ballast.open("wb", buffering=0) as file, suppress(OSError):
                while True:
                    file.write(bytes(1 << 16))
            process.communicate(timeout=300)
        ballast.unlink()
        said = self.errors.read_text()
        assert process.returncode not in (0, 1), said
        assert "no space left" in said, said
        self.events["full disk"] += 1


def until(process: subprocess.Popen[str], stages: tuple[str, ...]) -> str | None:
    """Read what a run says until it begins one of `stages`, and which."""
    assert process.stdout is not None
    for line in process.stdout:
        for name in stages:
            if line.startswith(f"{name} "):
                return name
    return None


def at_work(process: subprocess.Popen[str]) -> bool:
    """Wait until Ray has started something for a run; where clocks are set before, Ray's own start may never end."""
    while process.poll() is None:
        if part_of(psutil.Process(process.pid), "ray::"):
            return True
        time.sleep(0.2)
    return False


def contents(root: Path) -> dict[str, bytes]:
    """Everything that stages have made, by its path, but what holds times or what was spent."""
    return {
        name: path.read_bytes()
        for path in sorted((root / "artifacts").rglob("*"))
        if path.is_file() and path.suffix != ".tmp" and not TIMED.search(name := str(path.relative_to(root)))
    }


@pytest.fixture(scope="module")
def storm(ray_local: None, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Storm]:
    folder = tmp_path_factory.mktemp("storm")
    compiler = os.environ.get("CXX", "c++")
    subprocess.run([compiler, "-x", "c", "-shared", "-fPIC", "-o", folder / "clock.so", CLOCK, "-ldl"], check=True)
    with serving() as port:
        chat = Chat(port, "storm")
        judge = {"kind": "api", "name": "llm", "endpoint": chat.config(concurrency=16, retries=5).model_dump()}
        config = write_config(
            folder / "storm.yaml",
            small_collection,
            retrieve={"depth": 30, "candidates": 24, "random_negatives": 3, "dense": {"max_tokens": 32}},
            compare={"degree": 8},
            judge={"judges": [judge | {"prompt": {"template": "letters", "document_tokens": 64}}], "retry_passes": 2},
            train={"model": str(write_tiny_bert(folder / "tiny")), "max_steps": 4, "max_tokens": 48},
        )
        yield Storm(config, chat)


def test_nothing_is_lost_or_doubled(storm: Storm, tmp_path: Path) -> None:
    storm.chat.setup(faults=FAULTS, mixed=True)
    calm = tmp_path / "calm"
    carried_out(storm.config, calm)
    expected, questions = contents(calm), {entry["question"] for entry in storm.chat.log()}
    lap = 0
    while storm.killed.total() < KILLS:
        lap += 1
        storm.chat.setup(faults=FAULTS, mixed=True, latency_s=0.03)
        with small_disk_at(tmp_path / f"disk{lap}", "400m") as disk:
            root = disk / "root"
            began = storm.killed["judge"]
            for number, stage in enumerate(STRUCK):
                if storm.killed.total() < KILLS:
                    storm.strike(root, stage, number)
                if number == STRUCK.index("judge") and not storm.events["full disk"]:
                    storm.fill(root)
            carried_out(storm.config, root)
            found = contents(root)
            assert found.keys() == expected.keys()
            assert [path for path in expected if expected[path] != found[path]] == []
            delivered = Counter(entry["question"] for entry in storm.chat.log() if entry["action"] == "ok")
            assert set(delivered) == questions
            fingerprint = resolve(load(storm.config, [f"execution.root={root}"]))["judge"].fingerprint
            spent = (Artifact(Store(str(root)), "judge", fingerprint).manifest() or {})["spent"]["llm"]
            asked = len(storm.chat.log())
            print(f"root {lap}: {storm.killed['judge'] - began} kills in judge, {asked:,} requests")
            print(f"{delivered.total() - len(delivered):,} of {len(delivered):,} answers were bought twice")
            print(f"books: {spent['calls']:,.0f} calls, and at most {spent['calls_uncounted']:,.0f} more")
            assert spent["calls"] <= asked <= spent["calls"] + spent["calls_uncounted"]
    print(dict(storm.killed), dict(storm.events))
