"""A published folder of an object store is fetched by several processes of a node at once."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow.fs as pafs
import pytest

from anmi_ray.store import Artifact, Store
from anmi_ray.store.folders import local_folder, seal_folder


def test_all_who_fetch_a_folder_at_once_have_it_whole(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "disk"))
    (tmp_path / "bucket" / "root").mkdir(parents=True)
    store = Store("root", pafs.SubTreeFileSystem(str(tmp_path / "bucket"), pafs.LocalFileSystem()))
    artifact = Artifact(store, "distill", "abcd")
    weights = os.urandom(8 << 20)
    store.publish(f"{artifact.path}/model/weights", weights)
    seal_folder(artifact, "model")
    fetch = local_folder.__wrapped__  # what each process does: the cache is a process's own
    with ThreadPoolExecutor(8) as pool:
        folders = list(pool.map(lambda _: fetch(artifact, "model"), range(8)))
    assert len(set(folders)) == 1
    assert {path.name: path.read_bytes() for path in folders[0].iterdir()} == {"weights": weights}
