"""What the report says of an adaptive design's rounds, held against a plain reading of their artifacts."""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.compute as pc
import pytest

from anmi_ray.core.records import COMPARISON, JUDGMENT, RATING, by_query
from anmi_ray.reports import page
from anmi_ray.reports.page import Json
from anmi_ray.reports.run import to_html, to_json, uniform_pairs
from anmi_ray.stages.report.figures import design_rounds
from tests.reports import synthetic
from tests.small import start_from
from tests.stages.runs import World

NAMES = (("compare-1", "judge-1", "rate-1"), ("compare-2", "judge-2", "rate-2"), ("compare", "judge", "rate"))
SETTINGS: dict[str, object] = {
    "compare": {"design": "adaptive", "degree": 4, "rounds": 3},
    "judge": {"preset": "panel", "orders": "one"},
    "rate": {"judge_offsets": True},
}


@pytest.mark.ray
@pytest.mark.slow
def test_rounds_are_told_as_their_artifacts_say(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    world = World(tmp_path, small_collection, **SETTINGS)
    start_from(prepared, world.root, "retrieve")
    done = world.carry_out(last="rate")
    experiment, part = done.settings, done.part
    artifacts = {name: done.artifact(name) for name in done.record["stages"]}
    found = design_rounds(artifacts, experiment, range(experiment.execution.buckets))
    assert found is not None
    assert [one["number"] for one in found["rounds"]] == [1, 2, 3]
    for one, (compared, judged, rated) in zip(found["rounds"], NAMES, strict=True):
        pairs = Counter(part(compared, "comparisons", COMPARISON)["query_id"].to_pylist())
        new = part(compared, "comparisons", COMPARISON).filter(pc.field("round") == one["number"] - 1)
        assert one["queries"] == len(set(new["query_id"].to_pylist())) > 0
        assert one["pairs"] == pytest.approx(np.mean(list(pairs.values())))
        rows = part(judged, "judgments", JUDGMENT).to_pylist()
        answers = Counter(row["judge"] for row in rows if row["error"] is None)
        assert len(answers) == len(experiment.judge.judges)
        assert one["answers"] == pytest.approx(np.mean(list(answers.values())))
        errors: list[float] = []
        best: list[float] = []
        for _, ratings in by_query(part(rated, "ratings", RATING)):
            said = sorted(ratings.to_pylist(), key=lambda row: -row["rating_elo"])
            errors += [row["std_err_elo"] for row in said]
            best += [row["std_err_elo"] for row in said[:10]]
        assert len(best) < len(errors)
        assert one["std_err_elo"] == pytest.approx(np.mean(errors))
        assert one["top_std_err_elo"] == pytest.approx(np.mean(best))
    for before, after in zip(found["rounds"], found["rounds"][1:], strict=False):
        assert after["pairs"] > before["pairs"]
        assert after["answers"] > before["answers"]
        assert (after["std_err_elo"] or 0.0) < (before["std_err_elo"] or 0.0)
        assert (after["top_std_err_elo"] or 0.0) < (before["top_std_err_elo"] or 0.0)
    check_page(found)


def check_page(found: Json) -> None:
    """The page and its JSON say the figures."""
    data = replace(synthetic.report_data(), rounds=found)
    assert json.loads(to_json(data))["rounds"] == page.plain(found)
    html = to_html(data)
    section = html[html.index('id="rounds"') : html.index('<section id="negatives"')]
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in section.split("<tr>")]
    assert [row for row in rows if row] == [
        [
            str(one["number"]),
            page.count(one["queries"]),
            page.decimal(one["pairs"], 1),
            page.count(one["answers"]),
            page.decimal(one["std_err_elo"], 1),
            page.decimal(one["top_std_err_elo"], 1),
        ]
        for one in found["rounds"]
    ]
    assert f"about <b>{page.decimal(found['uniform_pairs'], 1)} pairs a query</b>" in section
    assert "Extrapolated" in section


def design_round(number: int, queries: int, pairs: float, answers: float, *errors: float | None) -> Json:
    names = ("number", "queries", "pairs", "answers", "std_err_elo", "top_std_err_elo", "prior_elo")
    return dict(zip(names, (number, queries, pairs, answers, *errors, None), strict=True))


@pytest.mark.slow
def test_what_was_not_rated_is_not_extrapolated() -> None:
    rounds = (design_round(1, 3, 14.0, 12.0, None, None), design_round(2, 2, 20.0, 18.0, None, None))
    assert uniform_pairs(rounds) is None
    html = to_html(replace(synthetic.report_data(), rounds={"rounds": rounds, "top": 10, "uniform_pairs": None}))
    assert "<td>18</td><td>—</td><td>—</td>" in html
    assert "Extrapolated" not in html
    assert 'id="rounds"' not in to_html(synthetic.report_data())  # a design that asks once


def test_uniform_pairs_by_hand() -> None:
    rounds = (design_round(1, 3, 14.0, 12.0, 200.0, 150.0), design_round(2, 2, 21.0, 18.0, 170.0, 100.0))
    assert uniform_pairs(rounds) == pytest.approx(14.0 * 2.25)
