"""Stores on every kind of filesystem: a folder, a file:// URI, a subtree, and an S3 endpoint."""

from __future__ import annotations

from pathlib import Path

import pyarrow.fs as pafs
import pytest

from anmi_ray.store import Store


@pytest.fixture(params=["folder", "file-uri", "subtree", pytest.param("s3", marks=pytest.mark.s3)])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    """An empty store on each kind of filesystem."""
    if request.param == "s3":
        return Store(request.getfixturevalue("s3").uri("root"))
    if request.param == "file-uri":
        return Store((tmp_path / "root").as_uri())
    if request.param == "subtree":  # not a LocalFileSystem to the store: the way of every other filesystem
        return Store("root", pafs.SubTreeFileSystem(str(tmp_path), pafs.LocalFileSystem()))
    return Store(str(tmp_path / "root"))
