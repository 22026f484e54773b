"""The report: self-contained, escaped, byte-stable, and whole whatever is missing."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import MISSING, fields, replace
from html.parser import HTMLParser
from typing import Any

import numpy as np
import pytest

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core import identity
from anmi_ray.core.records import FIT, METRIC
from anmi_ray.evaluation.replicates import queries_needed
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.reports import audits, page, run
from anmi_ray.reports.run import ReportData

from . import synthetic

VOID = {"meta", "br", "input", "link", "img"}
HOSTILE = "</script><script>alert(1)</script>\"'><img src=http://evil.example/x onerror=alert(1)> & {{ 7 * 7 }}"


class Page(HTMLParser):
    """Elements, attributes and text of a page; fails on tags that do not close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text: list[str] = []
        self.feed(html)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)

    def words(self) -> str:
        return " ".join(" ".join(self.text).split())


@pytest.fixture(scope="module")
def data() -> ReportData:
    return synthetic.report_data()


@pytest.fixture(scope="module")
def html(data: ReportData) -> str:
    return run.to_html(data)


def bare(data: ReportData, **changes: Any) -> ReportData:
    """The data with every optional part left out."""
    required = [one.name for one in fields(data) if one.default is MISSING and one.default_factory is MISSING]
    return ReportData(**{name: getattr(data, name) for name in required} | changes)


def check_safe(html: str) -> Page:
    """Nothing is loaded from anywhere and no script runs but our own."""
    parsed = Page(html)
    assert [tag for tag, _ in parsed.tags if tag in {"link", "img", "iframe", "object", "embed", "base", "form"}] == []
    assert sum(tag == "script" for tag, _ in parsed.tags) == 1
    for tag, attributes in parsed.tags:
        assert not any(name.startswith("on") for name in attributes)
        assert "src" not in attributes
        href = attributes.get("href") or "#"
        assert href.startswith("#"), tag
    style = html[html.index("<style>") : html.index("</style>")]
    assert "url(" not in style
    assert "@import" not in style
    return parsed


def test_loads_nothing_and_runs_one_known_script(html: str):
    check_safe(html)
    script = re.search(r"<script>(.*?)</script>", html, re.DOTALL)
    assert script
    policy = base64.b64encode(hashlib.sha256(script[1].encode()).digest()).decode()
    assert f"script-src 'sha256-{policy}'" in html
    assert "default-src 'none'" in html


def test_same_data_same_bytes(html: str):
    again = synthetic.report_data()
    assert run.to_html(again) == html


def test_all_sections_are_filled(html: str):
    words = Page(html).words()
    assert 'class="missing"' not in html
    # three measures, per query, reliability, weight, gaps, three of training
    assert html.count('<svg class="figure"') == 10
    assert "find the n smallest values" in words
    assert not re.search(r"\bnan\b|\binf\b", "".join(re.findall(r"<svg.*?</svg>", html)))
    assert "None" not in words


def test_json_is_valid_and_holds_the_numbers(data: ReportData):
    content = json.loads(run.to_json(data))
    assert set(content) == {"format", "agreement"} | {item.name for item in fields(data)}
    assert len(content["metrics"]["query_id"]) == 276
    values = content["metrics"]["values"]["nDCG@10"]["reranked"]
    row = next(r for r in content["comparisons"] if (r["system"], r["measure"]) == ("reranked", "nDCG@10"))
    assert np.mean(values) == pytest.approx(row["mean"])
    assert content["gaps"]["bands"][0] == {"name": "danger", "low": None, "high": 100.0, "weight": 0.0}
    assert 0.6 < content["agreement"]["kendall_tau"] < 0.8


def test_the_page_says_the_numbers_of_the_json(html: str, data: ReportData):
    words = Page(html).words()
    content = json.loads(run.to_json(data))
    for row in content["comparisons"]:
        assert f"{page.decimal(row['mean'])} {page.decimal(row['low'])}–{page.decimal(row['high'])}" in words
        if row["difference"] is not None:
            ends = f"{page.signed(row['difference_low'])} to {page.signed(row['difference_high'])}"
            assert f"{page.signed(row['difference'])} {ends} {page.p_value(row['p'])}" in words
            assert f"{row['wins']:,} {row['ties']:,} {row['losses']:,}" in words
    for value in (value for judge in content["judges"] for value in judge["values"]):
        assert page.decimal(value["recovered"]) in words
    for name, gaps in content["gaps"]["gaps"].items():
        assert f"{len(gaps):,} {len(content['gaps']['chosen'][name]):,} {page.decimal(np.median(gaps), 0)}" in words
    for flow in (flow for stage in content["stages"] for flow in stage["flows"]):
        assert f"{flow['unit']} {flow['rows_in']:,} {flow['rows_out']:,} {flow['rejected']:,}" in words
    for key in ("kendall_tau", "pearson_r"):
        assert page.decimal(content["agreement"][key]) in words
    for document in content["example"]["documents"]:
        assert f"{page.signed(document['rating_elo'], 0)} {page.decimal(document['std_err_elo'], 0)}" in words
    for one in content["relevance"]["test"]["thresholds"]:
        if one["probability"] is not None:
            ends = " to ".join(page.decimal(one["precision"][end]) for end in ("low", "high"))
            said = (one["wanted"], one["probability"]), f"{page.decimal(one['precision']['mean'])} {ends}"
            assert f"{' '.join(page.decimal(value, 2) for value in said[0])} {said[1]}" in words
    for key, places in (("examples", 0), ("negatives_per_example", 1), ("mean_gap_elo", 0), ("mean_gap_se_elo", 0)):
        assert page.decimal(content["mining"][key], places) in words


def test_json_has_no_nan(data: ReportData):
    rows = ({"step": 1.0, "loss": float("nan")}, {"step": 2.0, "loss": float("inf")})
    content = json.loads(run.to_json(replace(data, training=rows)))
    assert [row["loss"] for row in content["training"]] == [None, None]


def test_hostile_texts_stay_texts(data: ReportData):
    hit = synthetic.hit(HOSTILE, HOSTILE, True)
    document = synthetic.document(HOSTILE, HOSTILE, 10.0, 5.0, True, 1.0)
    assert data.example
    bad = replace(
        data,
        run=HOSTILE,
        system=HOSTILE,
        comparisons=tuple(
            replace(row, system=HOSTILE) if row.system == "reranked" else row for row in data.comparisons
        ),
        collection={**data.collection, "name": HOSTILE, "queries": {HOSTILE: 1}},
        config_yaml=HOSTILE,
        example={**data.example, "query": HOSTILE, "documents": [document]},
        queries=(synthetic.ranked(HOSTILE, 0.1, 0.9, [hit], [hit]),),
        judges=[{**judge, "judge": HOSTILE} for judge in data.judges],
        gaps=synthetic.gaps_of({HOSTILE: np.array([1.0, 300.0])}, [synthetic.band(HOSTILE, None, None, 1.0)]),
        environment={HOSTILE: HOSTILE},
        notes=(HOSTILE,),
    )
    html = run.to_html(bad)
    assert "onerror" in check_safe(html).words()  # it is there, as text
    assert "<script>alert" not in html
    assert "evil.example" in html
    assert json.loads(run.to_json(bad))["run"] == HOSTILE


def test_the_badge_stands_wherever_simulation_reaches(html: str, data: ReportData):
    for section in ("queries", "judges", "ratings", "negatives", "training", "quality"):
        start = html.index(f'<section id="{section}"')
        assert "simulated judges</span>" in html[start : start + 400], section
    assert "simulated judges</span>" in html[: html.index("<h1>")]
    real = replace(data, simulated=False, judges=[{**j, "simulated": False} for j in data.judges], truth=None)
    assert 'class="badge"' not in run.to_html(real)
    assert "Against the truth" not in run.to_html(real)


def test_everything_optional_may_be_missing(data: ReportData):
    html = run.to_html(bare(data))
    check_safe(html)
    assert html.count('class="missing"') >= 6
    assert json.loads(run.to_json(bare(data)))["fusion"] is None


SILENT = ("first", "serving", "fusion", "relevance", "fits", "mining", "truth")  # left out; others say what is missing
OPTIONAL = "first serving fusion relevance judges fits truth example gaps mining training stages queries environment"


@pytest.mark.parametrize("name", OPTIONAL.split())
def test_each_section_degrades_alone(data: ReportData, name: str):
    empty = getattr(bare(data), name)
    html = run.to_html(replace(data, **{name: empty}))
    check_safe(html)
    assert ('class="missing"' in html) == (name not in SILENT)


def test_empty_and_degenerate_parts(data: ReportData):
    nothing = np.array([])
    thin = replace(
        data,
        collection={**data.collection, "labelled": {**data.collection["queries"], "test": 0}, "left_out": 7},
        metrics=METRIC.empty(),
        comparisons=(),
        truth={"query": nothing.astype(np.int64), "truth_elo": nothing, "rating_elo": nothing},
        gaps=synthetic.gaps_of({"danger": nothing}, ()),
        training=({"step": 1.0, "loss": 0.5},),
        queries=(synthetic.ranked("q", 0.5, 0.5, [], []),),
        example={**data.example, "documents": []} if data.example else None,
    )
    words = check_safe(run.to_html(thin)).words()
    assert json.loads(run.to_json(thin))["agreement"] is None
    assert "No test query is labelled: nothing was measured" in words
    assert (
        f"test queries {data.collection['queries']['test']}, 0 of them labelled unlabelled queries left out 7" in words
    )
    flat = replace(
        data,
        truth={"query": np.zeros(3, np.int64), "truth_elo": np.ones(3), "rating_elo": np.zeros(3)},
        gaps=synthetic.gaps_of({"easy": np.array([700.0])}, synthetic.BANDS),
    )
    check_safe(run.to_html(flat))


def test_the_headline_is_the_comparison(data: ReportData):
    row = run.headline_row(data)
    assert row
    ends = f"[{row.difference_low:+.3f}, {row.difference_high:+.3f}]"
    assert run.finding(data) == f"Deploy: reranked is {row.difference:+.3f} nDCG@10 {ends} over hybrid"
    assert run.evidence(data) == "(p < 0.001) on 276 held-out queries"
    lost = replace(row, difference=-0.02, difference_low=-0.03, difference_high=-0.01, p=0.004)
    assert run.finding(replace(data, comparisons=(lost,))).startswith("Do not deploy: reranked is -0.020 nDCG@10")
    even = replace(row, difference=0.01, difference_low=-0.01, difference_high=0.03, p=0.4)
    more = queries_needed(0.04 / 3.92 * 276**0.5, 0.01) - 276
    assert run.finding(replace(data, comparisons=(even,))).startswith("Undecided: reranked is +0.010 nDCG@10")
    assert f"about {more:,} more test queries" in run.finding(replace(data, comparisons=(even,)))


def test_other_runs_are_named_next_to_the_verdict(data: ReportData):
    row = run.headline_row(data)
    assert row
    others = (replace(row, system="bm25", mean=0.5), replace(row, system="true-labels", mean=0.9), row)
    both = replace(data, comparisons=(*others, replace(row, system="hybrid", mean=0.25)), references=("true-labels",))
    assert run.evidence(both).endswith(
        f"Reranked {row.mean:.3f} nDCG@10: nothing trained (hybrid) 0.250, true-labels 0.900"
    )
    alone = replace(both, collection={**data.collection, "labelled": {"train": 0, "test": 276}})
    assert f"Judgments alone {row.mean:.3f} nDCG@10" in run.evidence(alone)
    assert "true-labels" not in run.evidence(replace(both, references=("other",)))


def test_the_first_screen_has_quality_cost_and_the_next_commands(html: str, data: ReportData):
    words = Page(html).words().partition("Quality on held-out queries")[0]
    assert data.first
    assert data.serving
    share = data.first.shares[0]
    row = run.headline_row(data)
    assert row
    for shown in (
        f"{page.signed(share.difference)} {page.signed(share.difference_low)} to {page.signed(share.difference_high)}",
        *(f"{number} " for number in (row.losses, row.wins, row.ties)),
        f"{1000 * data.serving['seconds'] / data.serving['queries']:.0f} ms",
        "22.7 M parameters, 90.9 MB",
        "reranked 0.70, dense 0.30",
        "anmi export quickstart --to FOLDER",
        "anmi rerank --model FOLDER",
    ):
        assert shown in words
    thin = replace(
        data,
        first=replace(data.first, weights={"reranked": 1.0}, shares=()),
        serving={**data.serving, "seconds": None, "parameters": None},
    )
    words = check_safe(run.to_html(thin)).words()
    assert "22.7 M" not in words
    assert "dense 0.30" not in words


def test_no_gain_on_dev_comes_first_in_the_headline(data: ReportData):
    assert data.first
    doubtful = replace(data, first=replace(data.first, dev={**data.first.dev, "reranked": 0.49}))
    row = run.headline_row(data)
    assert row
    found = run.finding(doubtful)
    assert "(nDCG@10 0.490 against 0.500)" in found
    assert found.startswith(f"Do not deploy: reranked is {row.difference:+.3f} nDCG@10")
    html = run.to_html(doubtful)
    assert found in Page(html[html.index("<h1>") : html.index("</h1>") + 5]).words()


def test_agreement_by_hand():
    sample = {
        "query": np.array([0, 0, 0, 1, 1, 1]),
        "truth_elo": np.array([1.0, 2, 3, 1, 2, 3]),
        "rating_elo": np.array([11.0, 12, 13, 3, 2, 4]),
    }
    found = run.agreement(sample)
    assert found
    assert found["kendall_tau"] == pytest.approx((1 + 1 / 3) / 2)
    assert found["pearson_r"] == pytest.approx((1 + 0.5) / 2)
    assert found["rmse_elo"] == pytest.approx(np.sqrt(2 / 6))


def test_extremes(data: ReportData):
    rows = {"a": (0.1, 0.9), "b": (0.5, 0.5), "c": (0.8, 0.1), "d": (0.2, 0.4)}
    table = METRIC.table(
        {
            "query_id": [identity.query_id(q) for q in rows for _ in range(2)],
            "system": ["h", "r"] * 4,
            "measure": ["nDCG@10"] * 8,
            "value": [v for pair in rows.values() for v in pair],
        }
    )
    gains, losses = run.extremes(table, "nDCG@10", "r", "h", 3)
    assert (gains, losses) == ([identity.query_id(q) for q in "ad"], [identity.query_id("c")])


def test_audits_become_rows():
    figures = {
        "failure_rate": 0.01,
        "order_inconsistent_rate": 0.2,
        "intervals": {"order_inconsistent_rate": [0.1, 0.3]},
        "tie_rate": None,
        "position_bias": {"pairs": 10, "probability": 0.02, "interval": [0.0, 0.04], "probit": 0.05},
    }
    audit = {
        "judges": {"a": figures, "b": figures},
        "panel": {"alpha": 0.6, "error_correlation": {"a ~ b": 0.1}},
    }
    a, b = audits.judge_audits(audit, JudgeConfig.model_validate({"judges": [{"kind": "simulated", "name": "a"}]}))
    assert (b["values"][-1]["low"], b["values"][-1]["high"]) == (0.1, 0.3)
    assert (a["simulated"], b["simulated"]) == (True, False)
    assert a["values"] == b["values"]
    assert [value["quantity"] for value in b["values"]] == [
        "preference for the first shown (share above ½)",
        "failures (share)",
        "ties (share)",
        "both orders do not agree (share)",
    ]
    assert [value["recovered"] for value in audits.panel_values(audit)] == [0.6, 0.1]
    assert audits.judge_audits({}) == audits.panel_values({}) == []


def test_what_distilling_cost_and_saved(data: ReportData):
    summary = {
        "accuracy_consensus": [0.91, 0.87, 0.94],
        "brier": [0.051, 0.04, 0.06],
        "ece": 0.03,
        "calibration_slope": [0.98, None, None],
    }
    values = audits.distilled_values(summary)
    assert [(one["recovered"], one["low"], one["high"]) for one in values] == [
        (0.91, 0.87, 0.94),
        (0.051, 0.04, 0.06),
        (0.98, None, None),
        (0.03, None, None),
    ]
    curve = ((0.25, Estimate(0.2, 0.1, 0.3, 200)), (0.75, Estimate(0.8, 0.7, 0.9, 200)))
    facts = {"judges": ["small"], "ensemble": ["large", HOSTILE], "pairs": 2000, "judgments": 12_000, "asked": 300_800}
    facts |= {"saved": 0.99335, "test_pairs": 400, "values": values, "curve": curve}
    html = run.to_html(replace(data, distilled=facts))
    said = check_safe(html).words()
    for text in ("2,000 pairs", "12,000 judgments", "99.3 %", "0.910 0.870 to 0.940"):
        assert text in said
    content = json.loads(run.to_json(replace(data, distilled=facts)))["distilled"]
    assert content["judgments"] == 12_000
    assert content["curve"][1][1]["mean"] == 0.8
    unmeasured = {**facts, "saved": None, "test_pairs": None, "values": [], "curve": []}
    assert run.to_html(replace(data, distilled=unmeasured)).count("<svg") == html.count("<svg") - 1


def test_fit_facts_are_shown(html: str, data: ReportData):
    words = Page(html).words()
    shown = ["1,918", "12 0.6 %:", "3.6 % of 107,408 triads"]
    assert [figure for figure in shown if figure not in words] == []
    none = audits.fit_facts([FIT.empty()])
    assert "triads" not in run.to_html(replace(data, fits=none))


def test_fit_facts():
    assert list(audits.fit_facts([], "p").values()) == [0, 0, 0, 0, 0, 0, 0, None, "p"]
    ids = [identity.query_id(q) for q in "abc"]
    rows = {name: [1.0, 2.0, 3.0] for name in FIT.schema.names} | {
        "query_id": ids,
        "converged": [True, False, True],
        "estimate": ["mean", "mode", "mean"],
        "components": [1, 2, 1],
        "documents": [9, 9, 9],
        "comparisons": [18, 7, 8],
        "triads": [10, 0, 30],
        "cycle_rate": [0.1, None, 0.2],
        "equal_ratings_p": [0.05, 0.06, float("nan")],
    }
    fits = FIT.table(rows)
    found = audits.fit_facts([fits.slice(0, 1), fits.slice(1, 2)], "p")
    counts = [found[key] for key in ("queries", "not_converged", "disconnected", "equal", "documents", "comparisons")]
    assert counts == [3, 1, 1, 1, 9, 11]
    assert found["cycle_rate"] == pytest.approx((1 + 6) / 40)
