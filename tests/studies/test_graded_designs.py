"""Designs replayed on grades: who grades higher prefers, a panel is of several teams, people's grades only measure."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from anmi_ray import comparisons
from anmi_ray.config.compare import CompareConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import find_rows
from jobs.studies.designs import Design
from jobs.studies.graded_designs import Track, measured, read

JUDGES = ("a-1", "a-2", "b-1", "c-1", "d-1")


@pytest.fixture(scope="module")
def track(tmp_path_factory: pytest.TempPathFactory) -> Track:
    """Two queries of 24 passages; judges see people's grades, but c-1 gives none of the scale to the second query."""
    folder = tmp_path_factory.mktemp("track")
    texts = [json.dumps({"_id": f"d{d}", "title": "", "text": "river " * (d % 3) + "leak"}) for d in range(48)]
    (folder / "corpus.jsonl").write_text("\n".join(texts))
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": q, "text": "river"}) for q in ("q0", "q1")))
    lines = [",".join(("qid", "docid", "human", *JUDGES))]
    for d in range(48):
        grade = d % 4
        seen = [9 if judge == "c-1" and d >= 24 else grade for judge in JUDGES]
        lines.append(",".join(map(str, (f"q{d // 24}", f"d{d}", grade, *seen))))
    (folder / "labels.csv").write_text("\n".join(lines))
    return read(str(folder), str(folder / "labels.csv"))


def test_a_track_is_ranked_by_bm25(track: Track) -> None:
    assert len(track.people) == 48
    assert track.teams == ["a", "a", "b", "c", "d"]
    assert np.array_equal(track.grades[:, 0], track.people)
    rank = track.candidates["rank"].to_numpy()
    assert np.array_equal(rank, np.tile(np.arange(1, 25), 2))


def test_who_grades_higher_prefers_and_a_grade_off_the_scale_is_no_answer(track: Track) -> None:
    pairs, _ = comparisons.compare(track.candidates, CompareConfig(degree=4), 0)
    panel = next(one for one in map(track.panel, range(20)) if (one.grades == 9).any())
    found = panel.judgments(pairs, (0.0,) * 3)
    assert len(found) == 3 * len(pairs)
    assert found["p_a"].null_count == len(pairs) // 2
    pair = find_rows(pairs, {"comparison_id": found["comparison_id"]})
    first, second = (track.people[panel.row(pairs, name)[pair]] for name in ("doc_a", "doc_b"))
    told = ~np.isnan(p := found["p_a"].to_numpy())
    assert np.array_equal(p[told], (0.5 + 0.5 * np.sign(first - second))[told])


def test_a_panel_is_of_as_many_teams_and_drawn_by_its_number(track: Track) -> None:
    assert np.array_equal(track.panel(3).grades, track.panel(3).grades)
    assert {track.panel(number).grades.shape for number in range(5)} == {(48, 3)}


def test_judges_who_grade_as_people_do_find_their_order(track: Track) -> None:
    first, ratings, both = measured(track, 1, Design("top", 6)).mean(axis=(1, 2)).tolist()
    assert ratings > 0.95 > first
    assert both > 0.95


def test_a_file_without_the_columns_is_refused(tmp_path: Path) -> None:
    (tmp_path / "labels.csv").write_text("qid,docid\nq,d\n")
    with pytest.raises(ConfigError, match="no columns qid, docid, human"):
        read(str(tmp_path), str(tmp_path / "labels.csv"))
