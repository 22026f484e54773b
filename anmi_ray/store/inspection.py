"""Every file under a root, looked at: which are damaged or lost, what making them again costs, which are left over.

One folder or one artifact is listed at a time, and files are read a block at a time, so memory does not grow with a
root.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

import pyarrow as pa

from anmi_ray.core.errors import ConfigError, DamagedError, from_os_error
from anmi_ray.store import documents, parquet
from anmi_ray.store.artifact import COPIES, FILES, MADE_OF, MANIFEST, SEALED, Artifact
from anmi_ray.store.files import Store
from anmi_ray.store.folders import check_bytes, check_file
from anmi_ray.store.index_cache import is_whole

State = Literal["damaged", "lost", "left over"]
_FREE = "recomputed, nothing is bought: delete it and run again"
_AGAIN = "recomputed, nothing is bought: run again"
_TRAINED = "trained anew, nothing is bought: delete it and run again"
_INDEX = "recomputed, nothing is bought: the next run that needs it sees to it"
_ELSEWHERE = {
    "runs": "written anew, nothing is bought: delete it and carry out the run again",
    "spend": "not to be made again: delete it, and what it had spent is forgotten by its budget",
    "people": "not to be made again: restore it from a copy; deleted, what people answered there is lost",
    "campaigns": "chosen anew, nothing is bought: delete the campaign's folder and give the command again",
    "pilots": "asked again, from answers that are there: delete it and give the command again",
}
_KILLED = "of a killed writer: delete it, unless a run is at work"


@dataclass(frozen=True)
class Finding:
    """A file that is not as it should be: its full name, what is wrong, and what becomes of it."""

    state: State
    path: str
    wrong: str
    remedy: str


def _readable(read: Callable[[], Any]) -> Any:
    """What a document says, None where it is damaged: that is said where the document itself is looked at."""
    try:
        return read()
    except DamagedError:
        return None


@dataclass
class Inspection:
    """A look at all files of a root; the counts stand when `findings` has come to its end."""

    store: Store
    files: int = 0
    read: int = 0
    unsealed: int = 0
    unfinished: int = 0

    def findings(self) -> Iterator[Finding]:
        """What is wrong, folder by folder. ConfigError where there is no root, StoreError where storage fails."""
        files, folders = self.store.listing("")
        if "root.json" not in files and not folders:
            raise ConfigError("there is no root", self.store.where("").rstrip("/"), "give a root with --root")
        for top in folders:
            if top == "artifacts":
                for stage in self.store.listing(top)[1]:
                    for name in self.store.listing(f"{top}/{stage}")[1]:
                        yield from self._artifact(Artifact(self.store, stage, name))
            else:
                yield from self._folder(top, _ELSEWHERE.get(top, _FREE))
        yield from self._files("", files, "delete it and give execution.buckets as it was")

    def _folder(self, folder: str, remedy: str) -> Iterator[Finding]:
        files, folders = self.store.listing(folder)
        made_of = _readable(partial(self.store.read_json, f"{folder}/{MADE_OF}"))
        copies: dict[str, Any] = made_of.get(COPIES, {}) if isinstance(made_of, dict) else {}
        yield from self._copies(folder, files, copies)
        files = {name: size for name, size in files.items() if name not in copies}
        yield from self._files(f"{folder}/", files, remedy)
        for name in folders:
            yield from self._folder(f"{folder}/{name}", remedy)

    def _copies(self, folder: str, files: dict[str, int], copies: dict[str, Any]) -> Iterator[Finding]:
        """What was put into a report's folder: the pages and run files of a run."""
        for name, copy in copies.items():
            path = f"{folder}/{name}"
            if name in files:
                check = partial(check_bytes, self.store, path, copy["sha256"], _FREE)
                yield from self._checked(path, files[name], _FREE, check)
            else:
                yield self._finding("lost", path, "no such file", _AGAIN)

    def _files(self, folder: str, files: dict[str, int], remedy: str) -> Iterator[Finding]:
        for name, size in files.items():
            path = f"{folder}{name}"
            if folder.startswith("answers/"):
                remedy = self._bought(path, "answers")
            yield from self._checked(path, size, remedy)

    def _checked(self, path: str, size: int, remedy: str, check: Callable[[], Any] | None = None) -> Iterator[Finding]:
        """One file, looked at by `check`, or by what its name says it is."""
        self.files += 1
        if path.rpartition("/")[2].startswith("."):
            yield self._finding("left over", path, "a temporary file", _KILLED)
            return
        kinds = {"parquet": partial(self._parquet, path), "json": partial(self._document, path)}
        check = check or kinds.get(path.rpartition(".")[2])
        if check is None:
            return
        self.read += size
        try:
            check()
        except DamagedError as error:
            yield self._finding("damaged", path, error.message, remedy)

    def _finding(self, state: State, path: str, wrong: str, remedy: str) -> Finding:
        return Finding(state, self.store.where(path), wrong, remedy)

    def _document(self, path: str) -> None:
        self.store.read_json(path)
        self.unsealed += not documents.bears_checksum(self.store.read(path))

    def _parquet(self, path: str) -> None:
        try:
            with self.store.open_input(path) as stream:
                self.unsealed += parquet.verify(stream).pages is None
        except OSError as error:
            if error.errno is not None or self.store.local is None:  # the storage's, not the decoder's
                raise from_os_error(error, self.store.where(path)) from error
            raise DamagedError(str(error), self.store.where(path)) from error
        except (ValueError, pa.ArrowException) as error:
            raise DamagedError(f"not what was written: {str(error)[:300]}", self.store.where(path)) from error

    def _bought(self, path: str, what: str) -> str:
        """What a file costs whose rows were paid for."""
        footer = self.store.footer(path)
        count = f"up to {footer['rows']:,}" if footer is not None else "an unknown number of"
        return f"bought anew, {count} {what}: delete it and run again"

    def _artifact(self, artifact: Artifact) -> Iterator[Finding]:
        sizes = self.store.tree_sizes(artifact.path, hidden=True)
        manifest = _readable(artifact.manifest)
        listed = _readable(artifact.listed) or {}
        self.unfinished += MANIFEST not in sizes
        checks = self._hashes(artifact, sizes, listed)
        kept = f"{manifest['folder']}/" if manifest is not None and "folder" in manifest else None
        if kept is not None and not is_whole(artifact, manifest or {}):
            yield self._finding("damaged", f"{artifact.path}/{kept}", "not what it is called by", _INDEX)
        for name, size in sizes.items():
            path = f"{artifact.path}/{name}"
            if kept is not None and "/" in name:
                self.files += 1
                if not name.startswith(kept):
                    yield self._finding("left over", path, "of an index that was made again", "delete it")
                continue
            if listed and name not in (*listed, MANIFEST, FILES) and not name.rpartition("/")[2].startswith("."):
                yield self._finding("left over", path, "of no seal", "delete it")
            paid = name.startswith("bought/")
            trained = name in checks and "/" in name and f"{name.partition('/')[0]}{SEALED}" in sizes
            remedy = self._bought(path, "scores") if paid else _TRAINED if trained else _FREE
            yield from self._checked(path, size, remedy, checks.get(name))
        for name in listed.keys() - sizes.keys():
            yield self._finding("lost", f"{artifact.path}/{name}", "no such file", _AGAIN)

    def _hashes(
        self, artifact: Artifact, sizes: dict[str, int], listed: dict[str, dict[str, Any]]
    ) -> dict[str, Callable[[], Any]]:
        """Of files whose hashes stand in a list: what looks at each."""
        checks: dict[str, Callable[[], Any]] = {}
        for name, file in listed.items():
            if "sha256" in file and name in sizes:
                checks[name] = partial(check_bytes, self.store, f"{artifact.path}/{name}", file["sha256"], _FREE)
        for folder in [name.removesuffix(SEALED) for name in sizes if name.endswith(SEALED)]:
            sealed = _readable(partial(artifact.read_json, f"{folder}{SEALED}")) or {}
            paths = {f"{folder}/{name}": digest for name, digest in sealed.items()}
            checks |= {path: partial(check_file, artifact, path, digest) for path, digest in paths.items()}
        return checks
