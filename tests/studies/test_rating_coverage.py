"""The study of coverage: intervals cover about as often as they say, and a small study writes its page."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.config.rate import RateConfig
from jobs.studies import rating_coverage as study
from jobs.studies.both_orders import gap_error, judged


@pytest.mark.studies
def test_a_small_study_writes_its_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(study, "HELD", [study.Design(4, 1, 1.0)])
    monkeypatch.setattr(study, "BROKEN", [study.Design(4, 3, 1.0, 0.6)])
    monkeypatch.setattr(study, "LEANINGS", ((0.0, 0.0, 0.0),))
    study.main(["--queries", "20", "--documents", "40", "--out", str(tmp_path)])
    out = capsys.readouterr().out
    assert out.count("\n| 4 | ") == 2
    assert out.count("offsets |") == 1
    assert (tmp_path / "rating_coverage.md").is_file()


@pytest.mark.slow
def test_intervals_of_known_ratings_cover_them() -> None:
    cells = study.measure(study.Design(8, 3, 1.0), 40, 50, "mean")
    for name in ("random pairs", "known positive"):
        assert 0.9 < cells[name].coverage < 0.99
        assert abs(cells[name].bias) < 30


@pytest.mark.slow
@pytest.mark.parametrize("leanings", study.LEANINGS)
def test_gaps_are_right_whatever_judges_lean(leanings: tuple[float, float, float]) -> None:
    """By the default, through both orders as the stage reads them; half strength gives a slope of .87 at leaning 0."""
    found = gap_error(judged(leanings, 60, 50), RateConfig())
    assert found.slope == pytest.approx(1.0, abs=0.06)
    assert abs(found.bias) < 25
    assert 0.92 < found.coverage < 0.98
