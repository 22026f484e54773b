"""The store's shelf: what is made once of a set of texts, as an artifact named by the texts and the settings.

So a new shard adds its indexes and touches no other's, and runs share them. Files are checked against the digest that
names their folder. Two workers that make the same one at once write the same.
"""

from __future__ import annotations

import hashlib
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa

from anmi_ray.core import identity
from anmi_ray.core.errors import DamagedError
from anmi_ray.store import Artifact, Store, fingerprint

Shelf = Callable[[str, int, Mapping[str, Any], Callable[[Path], None]], Path]
"""`StoreShelf.__call__`: the local folder of something made of one set of texts."""


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
    """Keeps what is made of the texts of this `content` under the store's root.

    `made`: the kinds that were made by this object. Raises DamagedError where files are missing or damaged.
    """

    def __init__(self, store: Store, content: str, local: Path) -> None:
        self._store = store
        self._content = content
        self._local = local
        self.made: list[str] = []

    def __call__(self, kind: str, version: int, settings: Mapping[str, Any], make: Callable[[Path], None]) -> Path:
        """The local folder of `kind`, made by `make` in an empty folder if it is not there yet.

        `version` and `settings` are all that it follows from besides the texts.
        """
        artifact = Artifact(self._store, kind, fingerprint(kind, version, settings, [self._content]))
        manifest = artifact.manifest()
        if manifest is None:
            self.made.append(kind)
            with tempfile.TemporaryDirectory(prefix="made-", dir=self._local) as made:
                make(Path(made))
                manifest = _publish(
                    artifact, Path(made), version=version, settings=dict(settings), content=self._content
                )
            return self._folder(artifact, manifest)
        path = f"{artifact.path}/{manifest['folder']}"
        if manifest["files"].items() <= self._store.sizes(path).items():
            folder = self._folder(artifact, manifest)
            if _digest(folder / name for name in sorted(manifest["files"])) == manifest["folder"]:
                return folder
        remedy = self._store.rebuild(path)
        raise DamagedError("expected the files that were written", self._store.where(path), remedy)

    def _folder(self, artifact: Artifact, manifest: Mapping[str, Any]) -> Path:
        """The files on this machine, fetched if the store is elsewhere."""
        path = f"{artifact.path}/{manifest['folder']}"
        if self._store.local is not None:
            return self._store.local / path
        folder = self._local / path.replace("/", "-")
        folder.mkdir(exist_ok=True)
        for name in manifest["files"]:
            if not (folder / name).is_file():
                self._store.fetch(f"{path}/{name}", folder / name)
        return folder


def _publish(artifact: Artifact, made: Path, **facts: Any) -> dict[str, Any]:
    """Publish the files of a folder under a digest of them, so that two makers never mix theirs; the manifest."""
    files = sorted(made.iterdir())
    digest = _digest(files)
    for path in files:
        artifact.store.publish_file(f"{artifact.path}/{digest}/{path.name}", path)
    sizes = {path.name: path.stat().st_size for path in files}
    return artifact.complete([], folder=digest, files=sizes, **facts)


def _digest(files: Iterable[Path]) -> str:
    """The hash of files' names and bytes, in order of their names."""
    digest = hashlib.blake2b(digest_size=8)
    for path in files:
        with path.open("rb") as stream:
            hashed = hashlib.file_digest(stream, partial(hashlib.blake2b, person=path.name.encode()[:16]))
        digest.update(hashed.digest())
    return digest.hexdigest()


@contextmanager
def shelf_of(store: Store, content: str) -> Iterator[StoreShelf]:
    """A shelf of the store, with room on this machine for what is fetched or made."""
    with tempfile.TemporaryDirectory(prefix="anmi-shelf-") as local:
        yield StoreShelf(store, content, Path(local))
