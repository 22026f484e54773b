"""The page of a tuning campaign: what it says, that it loads nothing, and that equal data give equal bytes."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from anmi_ray.core.identity import rng
from anmi_ray.evaluation.replicates import contrast, family
from anmi_ray.reports import campaign, page
from anmi_ray.reports.campaign import CampaignData, RepeatData, RepeatRow, Status, Trial, to_json

from .test_run import Page


def trial(number: int, status: Status) -> Trial:
    random = rng("trial", number)
    params = {"train.learning_rate": 10 ** random.uniform(-4, -2), "rule": ("posterior", "<table2>")[number % 2]}
    if number % 2 == 0:
        params["rule=posterior: mine.allow.0.largest"] = random.uniform(0, 0.2)
    shares = {"complete": 4, "stopped": 1 + number % 2, "failed": 0, "running": 1}[status]
    curve = tuple((0.25 * (k + 1), 0.4 + 0.05 * k + 0.05 * random.random()) for k in range(shares))
    dev = max(value for _, value in curve) if status == "complete" else None
    message = "loss: it is <nan>" if status == "failed" else None
    return Trial(number, status, params, curve, dev, 12.0 + number, message, f"tune-t{number:03d}", f"f{number}")


def repeats(gain: float) -> RepeatData:
    base = rng("queries").uniform(0.2, 0.8, (3, 60))
    rows = {"best": base + gain + 0.01 * rng("noise").normal(size=(3, 60)), "default": base, "hybrid": base[:1] - 0.1}
    pairs = (("best", "default"), ("best", "hybrid"), ("default", "hybrid"))
    found = family([contrast(a, b, [rows[a] - rows[b]], rounds=500) for a, b in pairs])
    levels = tuple(RepeatRow(name, tuple(row.mean(1).tolist())) for name, row in rows.items())
    return RepeatData((11, 12, 13), 60, levels, found)


def data(gain: float = 0.05) -> CampaignData:
    end: dict[str, Status] = {"c": "complete", "s": "stopped", "f": "failed", "r": "running"}
    trials = tuple(trial(number, end[letter]) for number, letter in enumerate("csscfscsr"))
    complete = [one for one in trials if one.dev is not None]
    best = max(complete, key=lambda one: one.dev or 0.0)
    return CampaignData(
        name="tune",
        collection="docs & more",
        measure="nDCG@10",
        fingerprint="0123456789abcdef",
        wanted=12,
        trials=trials,
        best=best.number,
        importances={"train.learning_rate": 0.7, "curriculum": 0.2, "rule": 0.1},
        repeats=repeats(gain),
        simulated=True,
        environment={"cores": "2"},
    )


def test_the_page_loads_nothing_and_escapes_what_it_shows() -> None:
    html = campaign.to_html(data())
    assert "default-src 'none'" in html
    assert "<script" not in html
    assert "http://" not in html
    assert "https://" not in html
    assert "<table2>" not in html
    assert "docs &amp; more" in html
    assert "loss: it is &lt;nan&gt;" in html


def test_equal_data_give_equal_bytes() -> None:
    assert campaign.to_html(data()) == campaign.to_html(data())
    assert to_json(data()) == to_json(data())


@pytest.mark.parametrize(
    ("gain", "said"),
    [(0.05, "beat the default"), (-0.05, "fall behind the default"), (0.0, "No significant difference")],
)
def test_the_finding_is_the_repeats_not_the_search(gain: float, said: str) -> None:
    found = data(gain)
    assert said in campaign.finding(found)
    assert "60 test queries, 3 fresh seeds" in campaign.evidence(found)


def test_without_repeats_nothing_is_claimed() -> None:
    html = campaign.to_html(replace(data(), repeats=None, importances={}))
    assert html.count('class="missing"') == 2


def test_every_trial_is_in_the_table_and_its_end_is_marked() -> None:
    found = data()
    html = campaign.to_html(found)
    assert html.count('<td class="unit status') == len(found.trials)
    for one in found.trials:
        assert (f"trial {one.number}, {one.status}: dev" in html) == (one.last is not None)


def test_the_page_says_the_numbers_of_the_json() -> None:
    found = data()
    words = Page(campaign.to_html(found)).words()
    content = json.loads(to_json(found))
    assert (content["format"], len(content["trials"])) == (2, 9)
    for one in content["trials"]:
        last = one["dev"] if one["dev"] is not None else one["curve"][-1][1] if one["curve"] else None
        assert f"{one['number']} {one['status']} {page.decimal(last, 4)}" in words
    for row in content["repeats"]["contrasts"]:
        ends = f"{page.signed(row['low'])} to {page.signed(row['high'])}"
        assert f"{page.signed(row['difference'])} {ends} {page.p_value(row['p_holm'])}" in words
    for row in content["repeats"]["rows"]:
        assert f"{row['system']} {page.decimal(sum(row['values']) / len(row['values']))}" in words
    for name, share in content["importances"].items():
        assert f"{100 * share:.0f} %" in words
        assert name in words
