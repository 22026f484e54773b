"""Folders of files (a model) in the store: where a task finds them on its own disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs

from anmi_ray.core.errors import ConfigError, StoreError, from_os_error
from anmi_ray.store import Artifact, Store
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
    found = {file: _hash(artifact.store, f"{top}/{file}") for file in artifact.store.tree(top)}
    artifact.publish_json(f"{name}.files.json", found)


def copy_sealed(artifact: Artifact, name: str, target: Path) -> None:
    """Copy the folder `name` to `target`. Raises StoreError where a file is not what was sealed."""
    top = f"{artifact.path}/{name}"
    files = artifact.read_json(f"{name}.files.json")
    remedy = f"remove {artifact.store.where(artifact.path)} and run again, which makes it anew"
    if not isinstance(files, dict):
        raise StoreError("is not sealed", artifact.store.where(top), remedy)
    for file, sealed in files.items():
        path = target / file
        hashed = hashlib.sha256()
        path.parent.mkdir(parents=True, exist_ok=True)
        if not artifact.store.exists(f"{top}/{file}"):
            raise StoreError("is gone", artifact.store.where(f"{top}/{file}"), remedy)
        with path.open("wb") as copy:
            for block in _blocks(artifact.store, f"{top}/{file}"):
                hashed.update(block)
                copy.write(block)
        if hashed.hexdigest() != sealed:
            raise StoreError("is corrupted: not what was sealed", artifact.store.where(f"{top}/{file}"), remedy)


def _hash(store: Store, path: str) -> str:
    hashed = hashlib.sha256()
    for block in _blocks(store, path):
        hashed.update(block)
    return hashed.hexdigest()


def _blocks(store: Store, path: str) -> Iterator[bytes]:
    with store.open_input(path) as stream:
        while block := stream.read(_BLOCK):
            yield block


def local_folder(artifact: Artifact, name: str) -> Path:
    """A published folder on this machine's disk: the store's own when it is local, else a copy, fetched once."""
    files = artifact.read_json(f"{name}.files.json")
    if files is None:
        raise StoreError("is not complete", artifact.store.where(f"{artifact.path}/{name}"), "run its stage again")
    if artifact.store.local is not None:
        return artifact.store.local / artifact.path / name
    target = Path(tempfile.gettempdir()) / "anmi-folders" / artifact.fingerprint / name
    for file in files:
        path = target / file
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            scratch = path.with_name(f".{path.name}.part")
            artifact.store.fetch(f"{artifact.path}/{name}/{file}", scratch)
            scratch.replace(path)
    return target


def publish_folder(folder: Path, target: str) -> None:
    """Put a local folder's content in the place of `target`, a folder or a URI."""
    files, path = filesystem(target)
    if not isinstance(files, pafs.LocalFileSystem):
        pafs.copy_files(str(folder), path, source_filesystem=pafs.LocalFileSystem(), destination_filesystem=files)
        return
    beside = Path(f"{path}.{os.getpid()}")
    shutil.copytree(folder, beside)
    shutil.rmtree(path, ignore_errors=True)
    os.replace(beside, path)
