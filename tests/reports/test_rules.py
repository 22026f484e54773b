"""The page of compared rules: whole whatever is missing, self-contained, every rule named, no claim without cause."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import pytest

from anmi_ray.evaluation.significance import Estimate, SystemComparison
from anmi_ray.reports import page, rule_charts, rules
from anmi_ray.reports.data import GapBand
from anmi_ray.reports.rules import ComparedRule, OptimalGap, Overlap, RulesData, to_json

from .test_run import Page

NONE = Estimate(None, None, None, 0)
EDGES = (-100.0, 0.0, 100.0, 200.0, 300.0, 400.0)
BANDS = (
    GapBand("danger", None, 100.0, 0.0),
    GapBand("goldilocks", 100.0, 300.0, 1.0),
    GapBand("easy", 300.0, None, 0.3),
)

OPTIMUM = OptimalGap(
    costs=(0.1, 1.0, 10.0),
    errors=(100.0, 140.0, 300.0),
    gaps=((0.0, 90.0, 200.0), (10.0, 160.0, 310.0), (20.0, None, None)),
    zone=(0.9, 7.5),
)


def estimate(mean: float, half: float = 0.01, n: int = 50) -> Estimate:
    return Estimate(mean, mean - half, mean + half, n)


def make_rule(name: str, rho: float, **more: Any) -> ComparedRule:
    fields: dict[str, Any] = {
        "rule": name,
        "composition": f"{name} -> top",
        "artifact": "0123456789abcdef",
        "examples": 40,
        "queries": 38,
        "rejected": 2,
        "negatives_per_example": 6.5,
        "categories": {"soft": 1.0, "goldilocks": 2.5},
        "weight": estimate(0.61),
        "gap": estimate(312.0, 12.0),
        "gap_se": 140.0,
        "estimated": estimate(rho),
        "estimated_all": estimate(rho + 0.002),
        "weights": (NONE, estimate(0.0, 0.0), estimate(0.2), estimate(0.9), Estimate(0.5, None, None, 1)),
        "taken": (NONE, estimate(0.0, 0.0), estimate(0.1), estimate(0.5), NONE),
        "true": estimate(rho + 0.01, 0.02),
        "true_all": estimate(rho),
        "information": estimate(0.4),
    }
    return ComparedRule(**fields | more)


def make_data(*rules: ComparedRule, **more: Any) -> RulesData:
    size = len(rules)
    matrix = tuple(tuple(1.0 if i == j else 0.25 for j in range(size)) for i in range(size))
    fields: dict[str, Any] = {
        "run": "some run",
        "collection": "a collection",
        "baseline": rules[0].rule,
        "rules": rules,
        "left_out": {},
        "queries": 40,
        "sampled": 40,
        "pooled": 40,
        "false_negative_gap": 100.0,
        "bands": BANDS,
        "edges": EDGES,
        "overlap": Overlap(matrix, matrix, matrix, tuple(tuple(40 for _ in rules) for _ in rules)),
        "optimum": OPTIMUM,
        "true_known": True,
    }
    return RulesData(**fields | more)


def against(name: str, difference: float, p: float) -> SystemComparison:
    ends = (difference - 0.01, difference + 0.01)
    return SystemComparison(name, "share", 38, 0.1, 0.05, 0.15, difference, *ends, p, p)


def words(data: RulesData) -> str:
    html = rules.to_html(data)
    parsed = Page(html)
    assert [tag for tag, _ in parsed.tags if tag in {"link", "img", "iframe", "script", "object", "base", "form"}] == []
    for tag, attributes in parsed.tags:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#"), tag
    assert not re.search(r"\bnan\b|\binf\b|None", "".join(re.findall(r"<svg.*?</svg>", html)))
    assert "None" not in parsed.words()
    json.loads(to_json(data))
    return parsed.words()


def both(**more: Any) -> RulesData:
    second = make_rule("uniform", 0.09, against=against("uniform", 0.06, 0.001), thresholds=(120.0, 260.0))
    return make_data(make_rule("posterior", 0.02), second, **more)


def test_every_rule_is_named_everywhere() -> None:
    data = both(left_out={"beta-mixture": "no mixture was fitted"})
    html, said = rules.to_html(data), words(data)
    assert html.count("uniform") >= 5
    assert "beta-mixture no mixture was fitted" in said
    assert "thresholds 120, 260" in said
    assert html.count('stroke-dasharray="5,3"') == 1  # of both thresholds, which share their look
    assert "+6.00 +5.00 to +7.00, p = 0.001" in said
    assert html.count("<svg") == 1 + 2 + 1 + 1
    assert html == rules.to_html(both(left_out={"beta-mixture": "no mixture was fitted"}))


def test_the_page_says_the_numbers_of_the_json() -> None:
    data = both(hidden=17)
    said = words(data)
    for rule in json.loads(to_json(data))["rules"]:
        for name in ("estimated", "estimated_all", "true", "true_all"):
            assert rules.share(rule[name]["mean"]) in said
        for name, places in (("weight", 2), ("gap", 0), ("information", 3)):
            ends = (rule[name]["low"], rule[name]["high"])
            low, high = (page.decimal(end, places) for end in ends)
            assert f"{page.decimal(rule[name]['mean'], places)} {low} to {high}" in said
        assert f"{rule['examples']} {rule['rejected']} {page.decimal(rule['negatives_per_example'], 1)}" in said


def test_the_finding_says_what_the_tests_say() -> None:
    assert rules.finding(both()) == "Posterior: 3.0 % of the weight lies on false negatives"
    assert rules.evidence(both()) == (
        "(95 % CI 1.0 to 5.0 %, 40 train queries). Of 1 other rule 0 admit less of it per query and 1 more; "
        "0 cannot be told apart"
    )
    unsure = make_rule("uniform", 0.09, against=against("uniform", -0.06, 0.2))
    assert "0 admit less of it per query and 0 more; 1 cannot" in rules.evidence(
        make_data(make_rule("posterior", 0.02), unsure)
    )


def test_without_a_truth_nothing_claims_one() -> None:
    untrue = [replace(rule, true=None, true_all=None, information=None, against=None) for rule in both().rules]
    data = make_data(*untrue, true_known=False)
    said, html = words(data), rules.to_html(data)
    assert "an estimated 2.0 % of the weight" in said
    assert "by the ratings and their errors alone" in said
    assert "there is no truth to hold it against" in said
    assert "simulated" not in said
    assert "true, of the weight" not in said
    assert "by the truth" not in html
    assert "hidden positives" not in said


def test_hidden_positives_are_counted_with_their_interval() -> None:
    rules = (make_rule("posterior", 0.02, hidden=estimate(0.013, 0.004)), make_rule("uniform", 0.09, hidden=NONE))
    said = words(make_data(*rules, hidden=17))
    assert "17 known positives of these queries were hidden" in said
    assert "1.3 % 0.90 to 1.7 %" in said


def test_one_rule_alone() -> None:
    said = words(make_data(make_rule("table2", 0.02)))
    assert "1 mining rule on the same ratings" in said
    assert "nothing to overlap with" in said
    assert "other rule" not in said


def test_a_rule_that_left_nothing() -> None:
    unknown = ("weight", "gap", "estimated", "estimated_all", "true", "true_all", "information")
    counts = {"examples": 0, "queries": 0, "rejected": 40, "negatives_per_example": None, "gap_se": None}
    more = {"categories": {}, "weights": (NONE,) * 5, "taken": (NONE,) * 5}
    empty = make_rule("simans", 0.0, **dict.fromkeys(unknown, NONE), **counts, **more)
    said = words(make_data(make_rule("posterior", 0.02), empty))
    assert "took none" in said
    assert "simans -> top 0 40 —" in said
    alone = words(make_data(empty))
    assert "Simans left no rated negative" in alone
    assert "No rule took a rated negative" in alone


def test_no_gaps_no_optimum() -> None:
    assert "No gap was measured" in words(both(optimum=None))
    assert "between 150 and 300 points for λ from 0.9 to 7.5 bits" in words(both())
    assert "between 150 and 300 points at no cost" in words(both(optimum=replace(OPTIMUM, zone=None)))


def test_names_and_reasons_are_escaped() -> None:
    hostile = "<script>alert(1)</script>"
    html = rules.to_html(both(run=hostile, left_out={"denoise": hostile}, notes=(hostile,)))
    assert "<script" not in html
    assert html.count("&lt;script&gt;") == 4


def test_a_bin_without_an_interval_breaks_the_curve() -> None:
    known = estimate(0.5)
    rule = make_rule("table2", 0.1, weights=(known, known, NONE, known, known), taken=(NONE, NONE, known, NONE, NONE))
    runs, single = rule_charts.runs_of(EDGES, rule.weights)
    assert [row["run"] for row in runs] == [1, 1, 2, 2]
    assert not single
    runs, single = rule_charts.runs_of(EDGES, rule.taken)
    assert not runs
    assert [row["x"] for row in single] == [150.0]
    drawn = rule_charts.panel(rule.rule, rule.weights, rule.taken, (), EDGES, [(b.name, b.low, b.high) for b in BANDS])
    assert drawn.count("h0") == 1  # a dot is a stroke of no length


@pytest.mark.parametrize(
    ("value", "said"), [(0.0534, "5.3 %"), (0.00534, "0.53 %"), (0.0, "0.0 %"), (None, "—"), (0.00999, "1.0 %")]
)
def test_shares_in_words(value: float | None, said: str) -> None:
    assert rules.share(value) == said
