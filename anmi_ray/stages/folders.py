"""Folders of files (a model) in the store: where a task finds them on its own disk."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

import pyarrow.fs as pafs

from anmi_ray.errors import StoreError
from anmi_ray.store import Artifact


def seal_folder(artifact: Artifact, name: str) -> None:
    """List the files that stand under `name`; the list, written last, makes the folder complete."""
    artifact.publish_json(f"{name}.files.json", artifact.store.tree(f"{artifact.path}/{name}"))


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
            scratch.write_bytes(artifact.store.read(f"{artifact.path}/{name}/{file}"))
            scratch.replace(path)
    return target


def publish_folder(folder: Path, target: str) -> None:
    """Put a local folder's content in the place of `target`, a folder or a URI."""
    if "://" in target:
        filesystem, path = pafs.FileSystem.from_uri(target)
        pafs.copy_files(str(folder), path, source_filesystem=pafs.LocalFileSystem(), destination_filesystem=filesystem)
        return
    beside = Path(f"{target}.{os.getpid()}")
    shutil.copytree(folder, beside)
    shutil.rmtree(target, ignore_errors=True)
    os.replace(beside, target)
