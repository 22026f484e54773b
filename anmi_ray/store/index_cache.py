"""The store's shelf: what is made once of a set of texts, as an artifact named by the texts and the settings.

So a new shard adds its indexes and touches no other's, and runs share them. An artifact whose files are not those of
its manifest (cut off, partly gone, a bit changed) is made again; two workers that make the same one at once write the
same.
"""

from __future__ import annotations

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import pyarrow as pa

from anmi_ray.core import identity
from anmi_ray.core.errors import DamagedError
from anmi_ray.store import Artifact, Store, fingerprint

_BLOCK = 1 << 22


def content_of_documents(documents: pa.Table) -> str:
    """A hash of a Document table's ids and texts, whatever their order."""
    titles = documents["title"].to_pylist()
    texts = documents["text"].to_pylist()
    hashes = (identity.text_hash(title, text) for title, text in zip(titles, texts, strict=True))
    return _content(documents["doc_id"].to_pylist(), hashes)


def content_of_queries(queries: pa.Table) -> str:
    """A hash of a Query table's ids and texts, whatever their order."""
    return _content(queries["query_id"].to_pylist(), queries["text_hash"].to_pylist())


def _content(ids: list[bytes], text_hashes: Iterable[bytes]) -> str:
    pairs = sorted(zip(ids, text_hashes, strict=True))
    return hashlib.blake2b(b"".join(map(b"".join, pairs)), digest_size=16).hexdigest()


class StoreShelf:
    """Keeps what is made of the texts of this `content` under the store's root; see `retrieval.shelf.Shelf`.

    `made`: the kinds that were made by this object; `mended`: those of them whose files were there, but damaged.
    """

    def __init__(self, store: Store, content: str, local: Path) -> None:
        self._store = store
        self._content = content
        self._local = local
        self.made: list[str] = []
        self.mended: list[str] = []

    def __call__(self, kind: str, version: int, settings: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        artifact = Artifact(self._store, kind, fingerprint(kind, version, settings, [self._content]))
        found = self._found(artifact)
        if found is None:
            self.made.append(kind)
            with tempfile.TemporaryDirectory(prefix="made-", dir=self._local) as folder:
                make(Path(folder))
                kept = _keep(artifact, Path(folder), version=version, settings=dict(settings), content=self._content)
            found = self._folder(kept)
        return found

    def _found(self, artifact: Artifact) -> Path | None:
        """The folder of what was made before, or None where its bytes are not those that it is called by."""
        try:
            manifest = artifact.manifest()
        except DamagedError:
            manifest = {}
        if manifest is None:
            return None
        kept = _whole(artifact, manifest)
        if kept is not None:
            folder = self._folder(kept)
            if _digest(folder / name for name in sorted(kept.files)) == manifest["folder"]:
                return folder
            if self._store.local is None:
                shutil.rmtree(folder)  # the copy: what is made anew is fetched in its place
        self.mended.append(artifact.stage)
        return None

    def _folder(self, kept: _Kept) -> Path:
        """Where the files are on this machine; fetched where the store is not on it."""
        if self._store.local is not None:
            return self._store.local / kept.path
        folder = self._local / kept.path.replace("/", "-")
        folder.mkdir(exist_ok=True)
        for name in kept.files:
            if not (folder / name).is_file():
                self._store.fetch(f"{kept.path}/{name}", folder / name)
        return folder


@dataclass(frozen=True)
class _Kept:
    """A folder of the store, and the bytes of its files by their names."""

    path: str
    files: dict[str, int]


def _keep(artifact: Artifact, made: Path, **facts: Any) -> _Kept:
    """Publish the files of a folder, in one called after their bytes: two makers never mix theirs."""
    files = sorted(made.iterdir())
    digest = _digest(files)
    kept = _Kept(f"{artifact.path}/{digest}", {path.name: path.stat().st_size for path in files})
    for path in files:
        artifact.store.publish_file(f"{kept.path}/{path.name}", path)
    artifact.complete([], folder=digest, files=kept.files, **facts)
    return kept


def _digest(files: Iterable[Path]) -> str:
    return _combined((path.name, path.open("rb")) for path in files)


def _combined(files: Iterable[tuple[str, IO[bytes] | pa.NativeFile]]) -> str:
    """The hash of files' names and bytes, given open in order of their names; each is closed when it is read."""
    digest = hashlib.blake2b(digest_size=8)
    for name, stream in files:
        hashed = hashlib.blake2b(person=name.encode()[:16])
        with stream:
            while block := stream.read(_BLOCK):
                hashed.update(block)
        digest.update(hashed.digest())
    return digest.hexdigest()


def is_whole(artifact: Artifact, manifest: Mapping[str, Any]) -> bool:
    """Whether the bytes of what is kept are those that it is called by; they are read where the store is."""
    kept = _whole(artifact, manifest)
    if kept is None:
        return False
    opened = ((name, artifact.store.open_input(f"{kept.path}/{name}")) for name in sorted(kept.files))
    return _combined(opened) == manifest["folder"]


def _whole(artifact: Artifact, manifest: Mapping[str, Any]) -> _Kept | None:
    """What a complete artifact keeps, or None where a file is not there or not of the length that the manifest says."""
    if not {"folder", "files"} <= manifest.keys():
        return None
    kept = _Kept(f"{artifact.path}/{manifest['folder']}", manifest["files"])
    there = artifact.store.sizes(kept.path)
    return kept if all(there.get(name) == size for name, size in kept.files.items()) else None


@contextmanager
def shelf_of(store: Store, content: str) -> Iterator[StoreShelf]:
    """A shelf of the store, with room on this machine for what is fetched or made."""
    with tempfile.TemporaryDirectory(prefix="anmi-shelf-") as local:
        yield StoreShelf(store, content, Path(local))
