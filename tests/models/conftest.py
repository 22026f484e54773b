"""A tiny BERT, written once, which tests leave as it is."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.models.tiny import write_tiny_bert


@pytest.fixture(scope="session")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("bert"))
