"""The page of a run: its headline, charts and tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.evaluate import START
from anmi_ray.evaluation.measures import depth_of
from anmi_ray.evaluation.replicates import queries_needed, smallest_difference
from anmi_ray.evaluation.significance import SystemComparison, by_system
from anmi_ray.reports.data import (
    Json,
    ReportData,
    agreement,
    headline_row,
    judges_alone,
    shown,
)
from anmi_ray.reports.page import asset, capital, category_colour, count, decimal, p_value, percent, render, signed

_SECTIONS = ("quality", "queries", "judges", "ratings", "negatives", "training", "cost", "provenance")


def to_html(data: ReportData) -> str:
    """report.html as one self-contained text."""
    top = {"finding": finding(data), "evidence": evidence(data)}
    alone = judges_alone(data)
    data = shown(data)
    measures = list(dict.fromkeys(row.measure for row in data.comparisons))
    # best first under the headline measure, and in that order everywhere
    best = sorted((row for row in data.comparisons if row.measure == data.measure), key=lambda row: -row.mean)
    systems = list(dict.fromkeys(row.system for row in (*best, *data.comparisons)))
    ordered = sorted(data.comparisons, key=lambda row: systems.index(row.system))
    rows = {measure: [row for row in ordered if row.measure == measure] for measure in measures}
    return render(
        "run",
        data,
        {name: capital(name) for name in _SECTIONS},
        script=asset("sort.js.txt"),
        **top,
        json="report.json",
        simulated=data.simulated,
        by_judges=alone,
        depth=depth_of(data.measure),
        row=headline_row(data),
        undecided=undecided(data),
        measures=measures,
        rows=rows,
        systems=systems,
        quantities=list(dict.fromkeys(value["quantity"] for judge in data.judges for value in judge["values"])),
        fig=_figures(data, rows),
        agreement=agreement(data.truth) if data.truth is not None else None,
        categories=_categories(data.gaps) if data.gaps is not None else [],
        total_seconds=sum(stage["seconds"] for stage in data.stages),
        longest_seconds=max((stage["seconds"] for stage in data.stages), default=0.0),
    )


def finding(data: ReportData) -> str:
    """The result: better, worse, or not distinguishable at the level of the intervals."""
    if judges_alone(data):
        return f"By judges, not labels: {_found(shown(data))}"
    return _references(data) or _found(data)


def _references(data: ReportData) -> str:
    """Means of the reranker, of the best untrained system, and of other runs' rerankers; "" without such runs."""
    mean = {row.system: row.mean for row in data.comparisons if row.measure == data.measure}
    others = [name for name in data.references if name in mean]
    if not others or "reranked" not in mean:
        return ""
    who = "Reranked" if data.collection["labelled"].get("train", 1) else "Judgments alone"
    untrained = next((name for name in (START, data.baseline) if name in mean), "")
    named = {f"nothing trained ({untrained})": untrained} | {name: name for name in others}
    means = ", ".join(f"{name} {decimal(mean[system])}" for name, system in named.items() if system)
    return f"{who} {decimal(mean['reranked'])} {data.measure}: {means}"


def _found(data: ReportData) -> str:
    if not data.metrics.num_rows:
        return "No test query is labelled: nothing was measured"
    row = headline_row(data)
    if row is None or row.p is None or row.difference is None:
        return f"No comparison of {data.system} with {data.baseline} under {data.measure}"
    verb = "beats" if row.difference > 0 else "falls behind"
    change = f"{signed(row.difference)} {data.measure}"
    significant = row.p < 1 - data.level
    doubt = data.first.no_better() if data.first is not None else ""
    if doubt:
        found = f"it {verb} it by" if significant else "no significant difference:"
        return f"{capital(doubt)}. On test {found} {change}"
    if significant:
        return f"{capital(row.system)} {verb} {data.baseline} by {change}"
    return f"No significant difference between {row.system} and {data.baseline}: {change}"


def undecided(data: ReportData) -> str:
    """How many queries a decision needs if the headline's difference is not significant, else ""."""
    row = headline_row(data)
    difference = _per_query(data)
    if row is None or row.p is None or row.p < 1 - data.level or difference is None or len(difference) < 2:
        return ""
    sd = float(difference.std(ddof=1))
    least = smallest_difference({row.system: sd}, {row.system: row.queries}, level=1 - data.level)
    detectable = f"{count(row.queries)} queries detect a difference of ±{decimal(least)} with a probability of 80 %"
    needed = queries_needed(sd, row.difference, 1 - data.level) if row.difference else 0
    if needed <= row.queries:
        return detectable
    return f"{detectable}; to detect {signed(row.difference)}: about {count(needed - row.queries)} more test queries"


def _per_query(data: ReportData) -> NDArray[np.float64] | None:
    """The headline's differences, ordered by query id; None if not measured."""
    values = by_system(data.metrics, data.measure)
    if data.system == data.baseline or not {data.system, data.baseline} <= set(values):
        return None
    return values[data.system][1] - values[data.baseline][1]


def evidence(data: ReportData) -> str:
    """The interval of the difference, the p-value and the number of queries; empty without a comparison."""
    data = shown(data)
    row = headline_row(data)
    if row is None:
        return ""
    interval = f"{percent(data.level, 0)} CI {signed(row.difference_low)} to {signed(row.difference_high)}"
    queries = "query" if row.queries == 1 else "queries"
    details = f"({interval}, {p_value(row.p)}) on {count(row.queries)} held-out {queries}"
    return f"{_found(data)} {details}" if _references(data) else details


def _figures(data: ReportData, rows: Mapping[str, Sequence[SystemComparison]]) -> dict[str, Any]:
    """Charts by name, those that the data allow."""
    from anmi_ray.reports import charts  # Altair is slow to import

    quality = {name: charts.by_system(some, data.system, data.baseline, data.level) for name, some in rows.items()}
    drawn: dict[str, Any] = {"quality": quality}
    difference = _per_query(data)
    if difference is not None and np.any(difference):
        drawn["per_query"] = charts.per_query(difference, data.measure, data.system, data.baseline)
    if data.fusion is not None:
        best = (data.fusion.chosen[0], data.fusion.value)
        curve = charts.Curve("dev", data.fusion.curve())
        drawn["fusion"] = charts.lines([curve], "weight of the reranked score", f"dev {data.fusion.measure}", ring=best)
    if data.gaps is not None and any(len(values) for values in data.gaps["gaps"].values()):
        bands = [(band["name"], band["low"], band["high"]) for band in data.gaps["bands"]]
        drawn["gaps"] = charts.histogram(data.gaps["gaps"], data.gaps["chosen"], bands, "gap below the anchor (Elo)")
    if data.relevance is not None:
        curves = {"dev, out of fold": data.relevance.dev.curve}
        if data.relevance.test is not None:
            curves = {"test": data.relevance.test.curve, **curves}  # the first has intervals
        drawn["relevance"] = charts.calibration(curves, "P(relevant), mean of the documents", "share that is relevant")
    if data.distilled is not None and data.distilled["curve"]:
        curve = {", ".join(data.distilled["judges"]): data.distilled["curve"]}
        drawn["distilled"] = charts.calibration(curve, "predicted score", "the ensemble's score")
    return drawn | charts.training(data.training)


def _categories(sample: Json) -> list[dict[str, Any]]:
    """Rows of the table next to the gap histogram: category, band, weight, documents, share, median gap."""
    gaps, chosen = sample["gaps"], sample["chosen"]
    total = sum(map(len, gaps.values()))
    bands = {band["name"]: band for band in sample["bands"]}
    names = sorted(gaps, key=lambda n: (list(bands).index(n) if n in bands else len(bands), n))
    return [
        {
            "name": name,
            "colour": category_colour(name),
            "band": _band(bands[name]["low"], bands[name]["high"]) if name in bands else "",
            "weight": bands[name]["weight"] if name in bands else None,
            "documents": len(gaps[name]),
            "chosen": len(chosen.get(name, ())),
            "share": len(gaps[name]) / total if total else 0.0,
            "median": float(np.median(gaps[name])) if len(gaps[name]) else None,
        }
        for name in names
    ]


def _band(low: float | None, high: float | None) -> str:
    if low is None:
        return "all" if high is None else f"< {high:g}"
    return f"> {low:g}" if high is None else f"{low:g}–{high:g}"
