"""The study of queries that are made of documents: it measures them beside real ones, and writes its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.studies import queries as study


@pytest.mark.studies
def test_a_small_study_writes_its_page(
    small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    of_data = study.collections
    monkeypatch.setattr(study, "collections", lambda data: {"small": of_data(data)["small"]})
    study.main(["--data", f"small={small_collection}", "--number", "40", "--out", str(tmp_path)])
    assert "| small | real | 80 |" in capsys.readouterr().out
    assert (tmp_path / "queries.md").is_file()
