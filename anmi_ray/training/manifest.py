"""What makes a checkpoint recognisable as whole: every worker lists its own files, last, with sizes and checksums.

A checkpoint is the union of the workers' folders, so the lists have names by rank. It is whole where the list of every
worker is there, reads as it was written, and every listed file has the bytes it had.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

_NAME = "manifest-{:05d}.json"
_PATTERN = "manifest-*.json"


@dataclass(frozen=True)
class Origin:
    """After which step a checkpoint was written, and by what: how many workers, which engine and ZeRO stage."""

    step: int
    world: int
    engine: str
    zero_stage: int


def seal(folder: Path, origin: Origin, rank: int) -> None:
    """List all files of `folder`, which worker `rank` wrote and nobody changes any more."""
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "blake2b": _file_hash(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }
    content = {"origin": asdict(origin), "rank": rank, "files": files}
    text = json.dumps({"content": content, "blake2b": _hash(content)}, indent=1)
    (folder / _NAME.format(rank)).write_text(text, encoding="utf-8")


def check(folder: Path, part: int = 0, parts: int = 1) -> Origin | str:
    """Where the checkpoint in `folder` comes from, or in words what is wrong with it.

    All lists are looked at, and every `parts`-th worker's files from worker `part` on: workers share the reading.
    """
    paths = sorted(folder.glob(_PATTERN))
    lists = [_read(path) for path in paths]
    if not lists:
        return "it has no list of its files"
    for path, content in zip(paths, lists, strict=True):
        if content is None:
            return f"{path.name} is damaged"
    by_rank: dict[int, dict[str, Any]] = {content["rank"]: content for content in lists if content is not None}
    origins = [Origin(**content["origin"]) for content in by_rank.values()]
    if len(set(origins)) > 1:
        return "its parts are of different checkpoints"
    for rank in range(origins[0].world):
        if rank not in by_rank:
            return f"the part of worker {rank} is missing"
    for rank in range(part, origins[0].world, parts):
        for name, what in by_rank[rank]["files"].items():
            if wrong := _wrong(folder / name, what):
                return f"{name} {wrong}"
    return origins[0]


def _wrong(path: Path, what: dict[str, Any]) -> str | None:
    """What is wrong with a listed file."""
    try:
        if not path.is_file():
            return "is missing"
        size = path.stat().st_size
        if size != what["bytes"]:
            return f"has {size:,} of its {what['bytes']:,} bytes"
        return None if _file_hash(path) == what["blake2b"] else "is damaged: its bytes are not those that were written"
    except OSError as error:
        return f"cannot be read: {error.strerror}"


def _read(path: Path) -> dict[str, Any] | None:
    """A worker's list, or None where it is not as `seal` wrote it."""
    try:
        sealed = json.loads(path.read_text(encoding="utf-8"))
        content = sealed["content"]
        return content if sealed["blake2b"] == _hash(content) else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _file_hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]


def _hash(content: dict[str, Any]) -> str:
    return hashlib.blake2b(json.dumps(content, sort_keys=True).encode(), digest_size=16).hexdigest()
