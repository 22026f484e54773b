"""The page of a run: what its report says, and what it draws."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import NormalDist
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from anmi_ray.config.evaluate import START
from anmi_ray.evaluation.measures import depth_of
from anmi_ray.evaluation.relevance import Relevance
from anmi_ray.evaluation.replicates import queries_needed, smallest_difference
from anmi_ray.evaluation.significance import SystemComparison, by_system
from anmi_ray.reports.data import (
    GapSample,
    Json,
    ReportData,
    agreement,
    centred,
    headline_row,
    judges_alone,
    shown,
)
from anmi_ray.reports.page import asset, capital, category_colour, count, decimal, p_value, percent, render, signed

_SECTIONS = ("quality", "queries", "judges", "ratings", "negatives", "training", "cost", "provenance")


def to_html(data: ReportData) -> str:
    """report.html as one self-contained text."""
    top = (finding(data), evidence(data))
    alone = judges_alone(data)
    data = shown(data)
    measures = list(dict.fromkeys(row.measure for row in data.comparisons))
    # Best first under the headline measure, and in that order everywhere.
    best = sorted((row for row in data.comparisons if row.measure == data.measure), key=lambda row: -row.mean)
    systems = list(dict.fromkeys(row.system for row in (*best, *data.comparisons)))
    return render(
        "run",
        data,
        *top,
        {name: capital(name) for name in _SECTIONS},
        "report.json",
        data.simulated,
        script=asset("sort.js.txt"),
        filters={"effect": effect, "capital": capital},
        by_judges=alone,
        depth=depth_of(data.measure),
        row=headline_row(data),
        undecided=undecided(data),
        measures=measures,
        rows={name: _rows(data, name, systems) for name in measures},
        systems=systems,
        quantities=list(dict.fromkeys(value["quantity"] for judge in data.judges for value in judge["values"])),
        fig=_figures(data, measures, systems),
        agreement=agreement(data.truth) if data.truth is not None else None,
        strips=_strips(data.example, data.level) if data.example is not None else [],
        categories=_categories(data.gaps) if data.gaps is not None else [],
        total_seconds=sum(stage["seconds"] for stage in data.stages),
        longest_seconds=max((stage["seconds"] for stage in data.stages), default=0.0),
    )


def headline(data: ReportData) -> str:
    """The finding and its evidence in one sentence, in plain text."""
    return f"{finding(data)} {evidence(data)}".strip()


def finding(data: ReportData) -> str:
    """What came out: better, worse, or not to be told apart at the level of the intervals; and where judges say so."""
    if judges_alone(data):
        return f"By judges, not labels: {_found(shown(data))}"
    return beside(data) or _found(data)


def beside(data: ReportData) -> str:
    """What the reranker reached, beside nothing trained and other runs' rerankers; "" where there are no such."""
    mean = {row.system: row.mean for row in data.comparisons if row.measure == data.measure}
    others = [name for name in data.references if name in mean]
    if not others or "reranked" not in mean:
        return ""
    who = "reranked" if data.collection["labelled"].get("train", 1) else "judgments alone"
    untrained = next((name for name in (START, data.baseline) if name in mean), "")
    named = {f"nothing trained ({untrained})": untrained} | {name: name for name in others}
    said = [f"{name} {decimal(mean[system])}" for name, system in named.items() if system]
    return f"{capital(who)} {decimal(mean['reranked'])} {data.measure}: {', '.join(said)}"


def _found(data: ReportData) -> str:
    if not data.metrics.num_rows:
        return "No test query is labelled: nothing was measured"
    row = headline_row(data)
    if row is None or row.p is None or row.difference is None:
        return f"No comparison of {data.system} with {data.baseline} under {data.measure}"
    apart = row.p < 1 - data.level
    verb = "beats" if row.difference > 0 else "falls behind"
    change = f"{signed(row.difference)} {data.measure}"
    doubt = data.first.no_better() if data.first is not None else ""
    if doubt:
        found = f"it {verb} it by" if apart else "they cannot be told apart:"
        return f"{capital(doubt)}. On test {found} {change}"
    if apart:
        return f"{capital(row.system)} {verb} {data.baseline} by {change}"
    return f"{capital(row.system)} and {data.baseline} cannot be told apart: {change}"


def undecided(data: ReportData) -> str:
    """How many queries would tell the headline's systems apart, where these do not; empty where they do."""
    row = headline_row(data)
    difference = _per_query(data)
    if row is None or row.p is None or row.p < 1 - data.level or difference is None or len(difference) < 2:
        return ""
    sd = float(difference.std(ddof=1))
    least = smallest_difference({row.system: sd}, {row.system: row.queries}, level=1 - data.level)
    seen = f"{count(row.queries)} queries show a difference of ±{decimal(least)} or more, four times of five"
    if not row.difference:
        return seen
    needed = queries_needed(sd, row.difference, 1 - data.level)
    if needed <= row.queries:
        return seen
    more = f"{count(needed - row.queries)} more test queries"
    return f"{seen}. If it is really {signed(row.difference)}, about {more} would decide as often"


def _per_query(data: ReportData) -> NDArray[np.float64] | None:
    """The headline's differences, query by query in order of id; None where they were not measured."""
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
    said = f"({interval}, {p_value(row.p)}) on {count(row.queries)} held-out {queries}"
    return f"{_found(data)} {said}" if beside(data) else said


def _rows(data: ReportData, measure: str, systems: Sequence[str]) -> list[SystemComparison]:
    rows = [row for row in data.comparisons if row.measure == measure]
    return sorted(rows, key=lambda row: systems.index(row.system))


def _figures(data: ReportData, measures: Sequence[str], systems: Sequence[str]) -> dict[str, Any]:
    """Every figure that the data allow, by name."""
    from anmi_ray.reports import charts
    from anmi_ray.reports.training_curves import curves

    drawn: dict[str, Any] = {"quality": {name: _quality(_rows(data, name, systems), data) for name in measures}}
    difference = _per_query(data)
    if difference is not None and np.any(difference):
        drawn["per_query"] = charts.per_query(difference, data.measure, data.system, data.baseline)
    if data.fusion is not None:
        best = (data.fusion.chosen[0], data.fusion.value)
        curve = charts.Curve("dev", data.fusion.curve())
        drawn["fusion"] = charts.lines([curve], "weight of the reranked score", f"dev {data.fusion.measure}", ring=best)
    if data.truth is not None and len(data.truth.query):
        middle = centred(data.truth)
        drawn["truth"] = charts.scatter(
            middle.truth_elo, middle.rating_elo, "true relevance (Elo, query mean 0)", "rating (Elo, query mean 0)"
        )
    if data.gaps is not None and any(len(values) for values in data.gaps.gaps.values()):
        bands = [(band["name"], band["low"], band["high"]) for band in data.gaps.bands]
        drawn["gaps"] = charts.histogram(data.gaps.gaps, data.gaps.chosen, bands, "gap below the anchor (Elo)")
    if data.relevance is not None:
        drawn["relevance"] = _reliability(data.relevance)
    if data.distilled is not None and data.distilled["curve"]:
        curve = {", ".join(data.distilled["judges"]): data.distilled["curve"]}
        drawn["distilled"] = charts.calibration(curve, "predicted score", "the ensemble's score")
    return drawn | curves(data.training)


def _reliability(found: Relevance) -> Markup:
    """How often documents are relevant, over the probability that they are."""
    from anmi_ray.reports.charts import calibration

    held = {"dev, out of fold": found.dev, **({"test": found.test} if found.test is not None else {})}
    named = {name: one.curve for name, one in reversed(held.items())}  # the first has intervals
    return calibration(named, "P(relevant), mean of the documents", "share that is relevant")


def _strips(example: Json, level: float) -> list[dict[str, float | None]]:
    """Where each document's rating, its interval, the truth and zero stand on one strip, as shares of its width."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    documents = example["documents"]
    ends = [d["rating_elo"] + side * z * d["std_err_elo"] for d in documents for side in (-1, 1)]
    ends += [d["truth_elo"] for d in documents if d["truth_elo"] is not None]
    low = min(ends, default=0.0)
    high = max(ends, default=0.0)
    margin = (high - low) * 0.02 or 1.0

    def at(value: float) -> float:
        return (value - low + margin) / (high - low + 2 * margin)

    return [
        {
            "low": at(d["rating_elo"] - z * d["std_err_elo"]),
            "middle": at(d["rating_elo"]),
            "high": at(d["rating_elo"] + z * d["std_err_elo"]),
            "mark": None if d["truth_elo"] is None else at(d["truth_elo"]),
            "zero": at(0.0) if low <= 0 <= high else None,
        }
        for d in documents
    ]


def _categories(sample: GapSample) -> list[dict[str, Any]]:
    """Rows of the table beside the gap histogram: category, band, weight, documents, share, median gap."""
    total = sum(len(values) for values in sample.gaps.values())
    bands = {band["name"]: band for band in sample.bands}
    names = sorted(sample.gaps, key=lambda n: (list(bands).index(n) if n in bands else len(bands), n))
    return [
        {
            "name": name,
            "colour": category_colour(name),
            "band": _band(bands[name]["low"], bands[name]["high"]) if name in bands else "",
            "weight": bands[name]["weight"] if name in bands else None,
            "documents": len(sample.gaps[name]),
            "chosen": len(sample.chosen.get(name, ())),
            "share": len(sample.gaps[name]) / total if total else 0.0,
            "median": float(np.median(sample.gaps[name])) if len(sample.gaps[name]) else None,
        }
        for name in names
    ]


def _band(low: float | None, high: float | None) -> str:
    if low is None:
        return "all" if high is None else f"< {high:g}"
    return f"> {low:g}" if high is None else f"{low:g}–{high:g}"


def _quality(rows: Sequence[SystemComparison], data: ReportData) -> Markup:
    """Mean of one measure per system with its interval; a dashed line marks the baseline."""
    from anmi_ray.reports import charts, theme  # Altair is slow to import: only where something is drawn

    measure = rows[0].measure
    colours = {data.baseline: theme.BASE, data.system: theme.MAIN}
    inks = {data.baseline: theme.INK, data.system: theme.MAIN}
    lines = [
        charts.IntervalLine(
            k, row.mean, row.low, row.high, row.system, f"{row.mean:.3f}",
            f"{row.system}: {row.mean:.4f} [{row.low:.4f}, {row.high:.4f}], {row.queries} queries",
            colours.get(row.system, theme.REST), inks.get(row.system, theme.SOFT),
        )
        for k, row in enumerate(rows)
    ]  # fmt: skip
    reference = next((row.mean for row in rows if row.system == data.baseline), None)
    label = f"mean {measure} over queries, {100 * data.level:.0f} % interval"
    return charts.intervals(lines, f"{measure} by system", label, reference, step=36.0, width=theme.WIDTH)


def effect(row: SystemComparison, level: float) -> str:
    """Class of a difference: gain or loss when the test says so, else even."""
    if row.p is None or row.difference is None or row.p >= 1 - level:
        return "even"
    return "gain" if row.difference > 0 else "loss"
