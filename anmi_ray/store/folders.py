"""Folders of files (a model) in the store, and where a task finds them on its own disk."""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path

import pyarrow.fs as pafs

from anmi_ray.core.errors import ConfigError, DamagedError, from_os_error
from anmi_ray.store import Artifact
from anmi_ray.store.uri import filesystem

_SEALED = ".files.json"  # ends the name of a folder's list of files with their SHA-256


@contextmanager
def new_folder(to: Path) -> Iterator[Path]:
    """A temporary folder that replaces `to` when the block ends without an error.

    Raises ConfigError where `to` exists and is not an empty folder, StoreError where the storage refuses.
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
    """List the files under `name` with their hashes; the list, written last, makes the folder complete."""
    top, hashes = f"{artifact.path}/{name}", dict[str, str]()
    for file in artifact.store.tree(top):
        with artifact.store.open_input(f"{top}/{file}") as stream:
            hashes[file] = hashlib.file_digest(stream, "sha256").hexdigest()  # type: ignore[arg-type]
    artifact.publish_json(f"{name}{_SEALED}", hashes)


def copy_sealed(artifact: Artifact, name: str, target: Path) -> None:
    """Copy the folder `name` to `target`. Raises DamagedError where a file is missing or damaged."""
    hidden = shutil.ignore_patterns(".*")  # left by killed writers
    shutil.copytree(local_folder(artifact, name), target, ignore=hidden, dirs_exist_ok=True)


@lru_cache(maxsize=16)  # once a process: a model's files are read whole
def local_folder(artifact: Artifact, name: str) -> Path:
    """A published folder on this machine's disk: the store's own when it is local, else a copy, fetched once.

    Raises DamagedError where a file is missing or damaged.
    """
    store = artifact.store
    folder = (store.local or Path(tempfile.gettempdir(), "anmi-folders")) / artifact.path / name
    for file, sealed in _sealed(artifact, name).items():
        path, copy = f"{artifact.path}/{name}/{file}", folder / file
        if store.local is None and not _is_whole(copy, sealed):
            copy.parent.mkdir(parents=True, exist_ok=True)
            scratch = copy.with_name(f".{copy.name}.{uuid.uuid4().hex}.part")  # other processes fetch it too
            try:
                store.fetch(path, scratch)
                scratch.replace(copy)
            finally:
                scratch.unlink(missing_ok=True)
        if not _is_whole(copy, sealed):
            raise DamagedError("expected the file that was written", store.where(path), store.rebuild(path))
    return folder


def _sealed(artifact: Artifact, name: str) -> dict[str, str]:
    files, path = artifact.read_json(f"{name}{_SEALED}"), f"{artifact.path}/{name}"
    if not isinstance(files, dict):
        raise DamagedError("not complete", artifact.store.where(path), artifact.store.rebuild(path))
    return files


def _is_whole(file: Path, sealed: str) -> bool:
    if not file.exists():
        return False
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest() == sealed


def publish_folder(folder: Path, target: str) -> None:
    """Replace `target`, a folder or a URI, by a local folder's content.

    Raises StoreError if this machine's disk refuses; then nothing of it is left there.
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
