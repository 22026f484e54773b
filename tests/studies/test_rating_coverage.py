"""The study of coverage: intervals cover about as often as they say, and a small study writes its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.studies import rating_coverage as study


@pytest.mark.studies
def test_a_small_study_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "HELD", [study.Design(4, 1, 1.0)])
    monkeypatch.setattr(study, "BROKEN", [study.Design(4, 3, 1.0, 0.6)])
    study.main(["--queries", "20", "--documents", "40", "--out", str(tmp_path)])
    assert capsys.readouterr().out.count("\n| 4 | ") == 2
    assert (tmp_path / "rating_coverage.md").is_file()


@pytest.mark.slow
def test_intervals_of_known_ratings_cover_them() -> None:
    cells = study.measure(study.Design(8, 3, 1.0), 40, 50, "mean")
    for name in ("random pairs", "known positive"):
        assert 0.9 < cells[name].coverage < 0.99
        assert abs(cells[name].bias) < 30
