"""A run whose judge's key is not set ends before its first stage, and not after hours of retrieval."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.commands import refused
from tests.small import write_config

ENDPOINT = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "key_env": "KEY_OF_NOBODY"}


@pytest.mark.parametrize("value", [None, " ", "two words"])
def test_a_key_that_is_not_there_is_said_before_the_work(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None
) -> None:
    monkeypatch.delenv("KEY_OF_NOBODY", raising=False)
    if value is not None:
        monkeypatch.setenv("KEY_OF_NOBODY", value)
    judge = {"judges": [{"kind": "api", "endpoint": ENDPOINT}]}
    config = write_config(tmp_path / "small.yaml", small_collection, judge=judge)
    said = refused("run", config, "--root", tmp_path / "root")
    assert "http://127.0.0.1:9/v1: key_env: the environment variable KEY_OF_NOBODY" in said
    assert not (tmp_path / "root").exists()
