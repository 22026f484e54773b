"""ReportData becomes HTML: the figures are drawn, numbers get their formats, and the template puts them in order."""

from __future__ import annotations

import base64
import hashlib
import math
from collections.abc import Callable, Sequence
from functools import cache
from importlib import resources
from statistics import NormalDist
from typing import Any

import numpy as np
from jinja2 import Environment, PackageLoader, StrictUndefined, Template
from markupsafe import Markup

from anmi_ray.evaluation import figures
from anmi_ray.evaluation.report import (
    GapSample,
    RatedQuery,
    ReportData,
    agreement,
    centred,
    headline_row,
)
from anmi_ray.evaluation.significance import SystemComparison, by_system
from anmi_ray.evaluation.training_figures import curves

SNIPPET = 280  # characters of a document's text that the page shows


def render(data: ReportData) -> str:
    """The page. Its policy forbids every load from elsewhere and every script but its own, whatever a text holds."""
    script, style = asset("report.js.txt"), asset("report.css")
    measures = list(dict.fromkeys(row.measure for row in data.comparisons))
    # Best first under the headline measure, and in that order everywhere.
    best = sorted((row for row in data.comparisons if row.measure == data.measure), key=lambda row: -row.mean)
    systems = list(dict.fromkeys(row.system for row in (*best, *data.comparisons)))
    return template("report.html.j2").render(
        data=data,
        style=Markup(style),
        script=Markup(script),
        script_hash=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        finding=finding(data),
        evidence=evidence(data),
        row=headline_row(data),
        measures=measures,
        rows={name: _rows(data, name, systems) for name in measures},
        systems=systems,
        quantities=list(dict.fromkeys(value.quantity for judge in data.judges for value in judge.values)),
        fig=_figures(data, measures, systems),
        agreement=agreement(data.truth) if data.truth is not None else None,
        strips=_strips(data.example, data.level) if data.example is not None else [],
        categories=_categories(data.gaps) if data.gaps is not None else [],
        total_seconds=sum(stage.seconds for stage in data.stages),
        longest_seconds=max((stage.seconds for stage in data.stages), default=0.0),
        snippet=SNIPPET,
    )


def asset(name: str) -> str:
    """The text of a file beside the templates."""
    return resources.files("anmi_ray.evaluation").joinpath(f"templates/{name}").read_text(encoding="utf-8")


@cache
def template(name: str, **filters: Callable[..., str]) -> Template:
    """A page's template, with FILTERS and `filters`; what is not defined there is an error."""
    environment = Environment(
        loader=PackageLoader("anmi_ray.evaluation", "templates"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= FILTERS | filters
    return environment.get_template(name)


def headline(data: ReportData) -> str:
    """The finding and its evidence in one sentence, in plain text."""
    return f"{finding(data)} {evidence(data)}".strip()


def finding(data: ReportData) -> str:
    """What came out: better, worse, or not to be told apart at the level of the intervals."""
    row = headline_row(data)
    if row is None or row.p is None or row.difference is None:
        return f"No comparison of {data.system} with {data.baseline} under {data.measure}"
    system = row.system[:1].upper() + row.system[1:]
    change = f"{signed(row.difference)} {data.measure}"
    if row.p >= 1 - data.level:
        return f"{system} and {data.baseline} cannot be told apart: {change}"
    return f"{system} {'beats' if row.difference > 0 else 'falls behind'} {data.baseline} by {change}"


def evidence(data: ReportData) -> str:
    """The interval of the difference, the p-value and the number of queries; empty without a comparison."""
    row = headline_row(data)
    if row is None:
        return ""
    interval = f"{percent(data.level, 0)} CI {signed(row.difference_low)} to {signed(row.difference_high)}"
    return (
        f"({interval}, {p_value(row.p)}) on {count(row.queries)} held-out {'query' if row.queries == 1 else 'queries'}"
    )


def _rows(data: ReportData, measure: str, systems: Sequence[str]) -> list[SystemComparison]:
    rows = [row for row in data.comparisons if row.measure == measure]
    return sorted(rows, key=lambda row: systems.index(row.system))


def _figures(data: ReportData, measures: Sequence[str], systems: Sequence[str]) -> dict[str, Any]:
    """Every figure that the data allow, by name."""
    drawn: dict[str, Any] = {
        "quality": {
            name: figures.quality(_rows(data, name, systems), data.baseline, data.system, data.level)
            for name in measures
        }
    }
    values = by_system(data.metrics, data.measure)
    if data.system in values and data.baseline in values and data.system != data.baseline:
        difference = values[data.system][1] - values[data.baseline][1]
        if np.any(difference):
            drawn["per_query"] = figures.per_query(difference, data.measure, data.system, data.baseline)
    if data.fusion is not None:
        curve = data.fusion.curve()
        best = (data.fusion.chosen[0], data.fusion.value)
        drawn["fusion"] = figures.lines(
            [("main", "dev", curve)], "weight of the reranked score", f"dev {data.fusion.measure}", mark=best
        )
    if data.truth is not None and len(data.truth.query):
        middle = centred(data.truth)
        drawn["truth"] = figures.scatter(
            middle.truth_elo, middle.rating_elo, "true relevance (Elo, query mean 0)", "rating (Elo, query mean 0)"
        )
    if data.gaps is not None and any(len(values) for values in data.gaps.gaps.values()):
        bands = [(band.name, band.low, band.high) for band in data.gaps.bands]
        drawn["gaps"] = figures.histogram(data.gaps.gaps, data.gaps.chosen, bands, "gap below the anchor (Elo)")
    return drawn | curves(data.training)


def _strips(example: RatedQuery, level: float) -> list[Markup]:
    """An interval strip per document of the example query, on one scale."""
    z = NormalDist().inv_cdf((1 + level) / 2)
    ends = [d.rating_elo + side * z * d.std_err_elo for d in example.documents for side in (-1, 1)]
    ends += [d.truth_elo for d in example.documents if d.truth_elo is not None]
    if not ends:
        return []
    low, high = min(ends), max(ends)
    margin = (high - low) * 0.02 or 1.0
    return [
        figures.interval(
            d.rating_elo,
            d.std_err_elo,
            low - margin,
            high + margin,
            "main" if d.is_positive else "rest",
            d.truth_elo,
            z,
        )
        for d in example.documents
    ]


def _categories(sample: GapSample) -> list[dict[str, Any]]:
    """Rows of the table beside the gap histogram: category, band, weight, documents, share, median gap."""
    total = sum(len(values) for values in sample.gaps.values())
    bands = {band.name: band for band in sample.bands}
    names = sorted(sample.gaps, key=lambda n: (list(bands).index(n) if n in bands else len(bands), n))
    return [
        {
            "name": name,
            "css": figures.category_css(name),
            "band": _band(bands[name].low, bands[name].high) if name in bands else "",
            "weight": bands[name].weight if name in bands else None,
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


def decimal(value: float | None, places: int = 3) -> str:
    """A number with a true minus sign; a dash where there is none.

    >>> decimal(-0.5, 2)
    '−0.50'
    """
    if value is None or not math.isfinite(value):
        return "—"
    text = f"{value:,.{places}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def signed(value: float | None, places: int = 3) -> str:
    """A difference with its sign: +0.112, −0.020, ±0.000."""
    text = decimal(value, places)
    if value is None or text == "—" or text.startswith("−"):
        return text
    return f"+{text}" if text.strip("0.,") else f"±{text}"


def p_value(p: float | None) -> str:
    """p = 0.032, p < 0.001 below that; a dash where there is no test."""
    if p is None:
        return "—"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return "—" if value is None else f"{value:,.0f}"


def percent(value: float | None, places: int = 1) -> str:
    """A share as a percentage."""
    return "—" if value is None else f"{100 * value:.{places}f} %"


def seconds(value: float) -> str:
    """A duration: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min.

    >>> seconds(185.0)
    '3 min 05 s'
    """
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def clip(text: str, length: int = SNIPPET) -> str:
    """The beginning of a text on one line, cut at a word."""
    flat = " ".join(text.split())
    if len(flat) <= length:
        return flat
    head = flat[:length]
    return (head.rsplit(" ", 1)[0] if " " in head[length // 2 :] else head) + " …"


def effect(row: SystemComparison, level: float) -> str:
    """Class of a difference: gain or loss when the test says so, else even."""
    if row.p is None or row.difference is None or row.p >= 1 - level:
        return "even"
    return "gain" if row.difference > 0 else "loss"


FILTERS = {
    "decimal": decimal,
    "signed": signed,
    "p_value": p_value,
    "count": count,
    "percent": percent,
    "seconds": seconds,
    "clip": clip,
    "effect": effect,
}
