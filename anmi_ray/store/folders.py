"""Folders of files (a model) in the store: where a task finds them on its own disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import BinaryIO

import pyarrow.fs as pafs

from anmi_ray.core.errors import ConfigError, DamagedError, from_os_error
from anmi_ray.store import Artifact, Store
from anmi_ray.store.artifact import SEALED
from anmi_ray.store.uri import filesystem

_BLOCK = 1 << 22


@contextmanager
def new_folder(to: Path) -> Iterator[Path]:
    """A folder beside `to` to write in, which takes its place when the block ends well, and is gone when it does not.

    Raises ConfigError where `to` is there and no empty folder, StoreError where the storage refuses.
    """
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise ConfigError("is not empty", str(to), "give a new or an empty folder")
    try:
        to.absolute().parent.mkdir(parents=True, exist_ok=True)
        beside = Path(tempfile.mkdtemp(prefix=f".{to.name}-", dir=to.absolute().parent))
        try:
            yield beside
            beside.chmod(0o755)
            os.replace(beside, to)
        finally:
            shutil.rmtree(beside, ignore_errors=True)
    except OSError as error:
        raise from_os_error(error, str(to)) from error


def seal_folder(artifact: Artifact, name: str) -> None:
    """List the files under `name` with the hashes of their bytes; the list, written last, makes the folder complete."""
    top = f"{artifact.path}/{name}"
    found = {file: _hash(_blocks(artifact.store, f"{top}/{file}")) for file in artifact.store.tree(top)}
    artifact.publish_json(f"{name}{SEALED}", found)


def copy_sealed(artifact: Artifact, name: str, target: Path) -> None:
    """Copy the folder `name` to `target`. Raises StoreError where a file is not what was sealed."""
    for file, sealed in _sealed(artifact, name).items():
        check_file(artifact, f"{name}/{file}", sealed, target / file)


def _sealed(artifact: Artifact, name: str) -> dict[str, str]:
    """The hashes of a folder's files by their names."""
    files = artifact.read_json(f"{name}{SEALED}")
    if not isinstance(files, dict):
        raise DamagedError("is not sealed", artifact.store.where(f"{artifact.path}/{name}"), _remedy(artifact))
    return files


def check_file(artifact: Artifact, file: str, sealed: str, target: Path | None = None) -> None:
    """Read a file, to `target` where one is given. Raises DamagedError where it is gone or not what was sealed."""
    check_bytes(artifact.store, f"{artifact.path}/{file}", sealed, _remedy(artifact), target)


def check_bytes(store: Store, path: str, sealed: str, remedy: str, target: Path | None = None) -> None:
    """Read a file, to `target` where one is given. Raises DamagedError where it is gone or of another hash."""
    if not store.exists(path):
        raise DamagedError("is gone", store.where(path), remedy)
    if target is None:
        hashed = _hash(_blocks(store, path))
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("wb") as copy:
            hashed = _hash(_copied(_blocks(store, path), copy))
    if hashed != sealed:
        raise DamagedError("is corrupted: not what was sealed", store.where(path), remedy)


def _remedy(artifact: Artifact) -> str:
    return f"remove {artifact.store.where(artifact.path)} and run again, which makes it anew"


def _copied(blocks: Iterable[bytes], to: BinaryIO) -> Iterator[bytes]:
    for block in blocks:
        to.write(block)
        yield block


def _hash(blocks: Iterable[bytes]) -> str:
    hashed = hashlib.sha256()
    for block in blocks:
        hashed.update(block)
    return hashed.hexdigest()


def _blocks(store: Store, path: str) -> Iterator[bytes]:
    with store.open_input(path) as stream:
        while block := stream.read(_BLOCK):
            yield block


@lru_cache(maxsize=16)  # once a process: a model's files are read whole
def local_folder(artifact: Artifact, name: str) -> Path:
    """A published folder on this machine's disk: the store's own when it is local, else a copy, fetched once.

    Raises StoreError where a file is not what was sealed.
    """
    files = _sealed(artifact, name)
    if artifact.store.local is not None:
        for file, sealed in files.items():
            check_file(artifact, f"{name}/{file}", sealed)
        return artifact.store.local / artifact.path / name
    target = Path(tempfile.gettempdir()) / "anmi-folders" / artifact.fingerprint / name
    for file, sealed in files.items():
        path = target / file
        if not path.exists() or _hash(_local_blocks(path)) != sealed:
            scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.part")  # several processes may fetch it at once
            try:
                check_file(artifact, f"{name}/{file}", sealed, scratch)
                scratch.replace(path)
            finally:
                scratch.unlink(missing_ok=True)
    return target


def _local_blocks(path: Path) -> Iterator[bytes]:
    with path.open("rb") as stream:
        while block := stream.read(_BLOCK):
            yield block


def publish_folder(folder: Path, target: str) -> None:
    """Put a local folder's content in the place of `target`, a folder or a URI.

    Raises StoreError where this machine's disk refuses; then nothing is left of it there.
    """
    files, path = filesystem(target)
    if not isinstance(files, pafs.LocalFileSystem):
        pafs.copy_files(str(folder), path, source_filesystem=pafs.LocalFileSystem(), destination_filesystem=files)
        return
    beside = Path(f"{path}.{os.getpid()}")
    shutil.rmtree(beside, ignore_errors=True)
    try:
        beside.mkdir(parents=True)
        for file in (file for file in folder.rglob("*") if file.is_file()):  # copytree's own error has no errno
            to = beside / file.relative_to(folder)
            to.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, to)
        shutil.rmtree(path, ignore_errors=True)
        os.replace(beside, path)
    except OSError as error:
        raise from_os_error(error, target) from error
    finally:
        shutil.rmtree(beside, ignore_errors=True)
