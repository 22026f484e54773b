"""Checkpoints of a training under way: which ones are complete, resuming from the newest, and SIGTERM as a notice.

A checkpoint is the union of the workers' folders. Every worker lists its own files, last, with sizes and checksums. It
is complete if every worker's list is there and every listed file has the bytes that were written.
"""

from __future__ import annotations

import hashlib
import json
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from anmi_ray.core.errors import ConfigError
from anmi_ray.training.engine import Engine

_NAME = "manifest-{:05d}.json"


class Checkpoints(Protocol):
    """Storage of checkpoints. All workers call `open`, `save` and `wanted` at the same steps."""

    def names(self) -> list[str]:
        """Checkpoints on storage, newest first; called on rank 0 only."""
        ...

    def open(self, name: str) -> Path:
        """A local folder with all files of a checkpoint."""
        ...

    def save(self, write: Callable[[Path], None], step: int, dev: float | None) -> None:
        """Let every worker's `write` fill a folder; keep their union as the checkpoint after `step` steps."""
        ...

    def wanted(self) -> bool:
        """Whether to save at once, because workers will soon be stopped."""
        ...


@dataclass(frozen=True)
class Origin:
    """The step after which a checkpoint was written, and by how many workers, which engine and ZeRO stage."""

    step: int
    world: int
    engine: str
    zero_stage: int


def newest_complete(
    checkpoints: Checkpoints, now: Origin, engine: Engine, notice: Callable[[str], None]
) -> tuple[Path, Origin] | None:
    """The newest complete checkpoint, the same on all workers, who share the reading; None without one.

    `notice` receives, on rank 0, each broken checkpoint and what follows. Raises ConfigError if `now` cannot resume it.
    """
    [names, *_] = engine.gather(checkpoints.names() if engine.rank == 0 else [])
    broken = 0
    for name in names:
        folder = checkpoints.open(name)
        checked = engine.gather(check(folder, engine.rank, engine.world))
        problems = [problem for problem in checked if isinstance(problem, str)]
        if not problems:
            _check_resumable(checked[0], now, name)
            if broken and engine.rank == 0:
                notice(f"training resumes from the checkpoint before, after step {checked[0].step:,}")
            return folder, checked[0]
        broken += 1
        if engine.rank == 0:
            notice(f"checkpoint {name} is broken and skipped: {problems[0]}")
    if broken and engine.rank == 0:
        notice("no complete checkpoint is left: training starts over")
    return None


def _check_resumable(written: Origin, now: Origin, name: str) -> None:
    """Raise ConfigError unless `now` can resume: ZeRO splits the optimiser's state by worker."""
    place = f"checkpoint {name}"
    if (written.engine, written.zero_stage) != (now.engine, now.zero_stage):
        raise ConfigError(
            f"was written with train.engine: {written.engine} and train.zero_stage: {written.zero_stage}",
            place,
            f"resume with these (engine: auto does so with {written.world} workers), or remove the checkpoints to "
            "train anew",
        )
    if written.world != now.world and written.engine == "deepspeed" and written.zero_stage > 0:
        raise ConfigError(
            f"holds the optimiser's state in {written.world} parts (ZeRO stage {written.zero_stage}), which needs as "
            f"many workers; execution.train.num_workers is {now.world}",
            place,
            f"set execution.train.num_workers: {written.world} to resume; train.engine: ddp trains anew, and resumes "
            "with any number of workers",
        )


def seal(folder: Path, origin: Origin, rank: int) -> None:
    """List all files of `folder`, which worker `rank` has finished writing."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "blake2b": _file_hash(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    content = {"origin": asdict(origin), "rank": rank, "files": files}
    text = json.dumps({"content": content, "blake2b": _hash(content)}, indent=1)
    (folder / _NAME.format(rank)).write_text(text, encoding="utf-8")


def check(folder: Path, part: int = 0, parts: int = 1) -> Origin | str:
    """Return the origin of the checkpoint in `folder`, or what is wrong with it.

    Reads all lists, and the files of every `parts`-th worker from worker `part` on: workers share the reading.
    """
    by_rank: dict[int, dict[str, Any]] = {}
    for path in sorted(folder.glob("manifest-*.json")):
        try:
            sealed = json.loads(path.read_text(encoding="utf-8"))
            content = sealed["content"]
            if sealed["blake2b"] != _hash(content):
                return f"{path.name} is damaged"
        except (OSError, ValueError, KeyError, TypeError):
            return f"{path.name} is damaged"
        by_rank[content["rank"]] = content
    origins = [Origin(**content["origin"]) for content in by_rank.values()]
    if not origins:
        return "it has no list of its files"
    if len(set(origins)) > 1:
        return "its parts are of different checkpoints"
    for rank in range(origins[0].world):
        if rank not in by_rank:
            return f"the part of worker {rank} is missing"
    for rank in range(part, origins[0].world, parts):
        for name, listed in by_rank[rank]["files"].items():
            if problem := _problem(folder / name, listed):
                return f"{name} {problem}"
    return origins[0]


def _problem(path: Path, listed: dict[str, Any]) -> str | None:
    try:
        if not path.is_file():
            return "is missing"
        size = path.stat().st_size
        if size != listed["bytes"]:
            return f"has {size:,} of its {listed['bytes']:,} bytes"
        return (
            None if _file_hash(path) == listed["blake2b"] else "is damaged: its bytes are not those that were written"
        )
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]


def _hash(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()


class Notice:
    """SIGTERM to this process: true while a checkpoint is due because of it; afterwards the next one takes effect.

    The process continues, since only the sender knows when it must end.
    """

    def __init__(self) -> None:
        self._received = self._saved = False
        self._before: Any = None

    def __bool__(self) -> bool:
        return self._received and not self._saved

    def saved(self) -> None:
        """Record that a checkpoint was written."""
        self._saved = self._received

    def listen(self) -> None:
        """Handle SIGTERM for the rest of the process. Call it from the main thread."""
        if signal.getsignal(signal.SIGTERM) != self._on_signal:
            self._received = self._saved = False
            self._before = signal.signal(signal.SIGTERM, self._on_signal)

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Handle SIGTERM inside the context, if this is the main thread."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        self.listen()
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, self._before)

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        if not self._saved:
            self._received = True
        elif callable(self._before):
            self._before(number, frame)
        elif self._before == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)


NOTICE = Notice()  # signals belong to the process


def listen() -> None:
    """Let this process's `NOTICE` handle SIGTERM; Ray calls it by name in each worker."""
    NOTICE.listen()
