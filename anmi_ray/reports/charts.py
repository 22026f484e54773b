"""The charts of the pages: each function takes plain numbers and returns markup.

A chart is layers of marks over rows (Altair) in the style of `theme`. Tooltips are `description`s of marks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import altair as alt
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from anmi_ray.evaluation.significance import Estimate, SystemComparison
from anmi_ray.reports.page import CATEGORIES, category_colour
from anmi_ray.reports.theme import (
    BASE,
    CARD,
    COLOUR,
    DASH,
    FAINT,
    GAIN,
    INK,
    LOSS,
    MAIN,
    REST,
    SECOND,
    SOFT,
    THIRD,
    Canvas,
    short,
)

MAX_BARS = 440
_BINS = 48
Limits = tuple[str, float | None, float | None]  # of a band: its name, from, to; None is open
Rows = Sequence[Mapping[str, float | None]]


@dataclass(frozen=True)
class Curve:
    """A named line through points."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = MAIN


def by_system(rows: Sequence[SystemComparison], system: str, baseline: str, level: float) -> Markup:
    """Means of one measure with their intervals, a line per system; a dashed line marks the baseline."""
    measure = rows[0].measure
    colours, inks = {baseline: BASE, system: MAIN}, {baseline: INK, system: MAIN}
    canvas = Canvas(f"{measure} by system", 36.0 * len(rows))
    scale = alt.Scale(zero=False, nice=False, padding=8)
    label = f"mean {measure} over queries, {100 * level:.0f} % interval"
    x = alt.X("mean:Q", scale=scale, axis=alt.Axis(title=label, tickCount=6))
    y = alt.Y("place:Q", scale=alt.Scale(domain=[len(rows) - 0.5, -0.5], nice=False), axis=None)
    lines = canvas.rows(
        [
            {
                "place": place, "mean": row.mean, "low": row.low, "high": row.high,
                "name": short(row.system), "value": f"{row.mean:.3f}",
                "tooltip": f"{row.system}: {row.mean:.4f} [{row.low:.4f}, {row.high:.4f}], {row.queries} queries",
                "colour": colours.get(row.system, REST), "ink": inks.get(row.system, SOFT),
            }
            for place, row in enumerate(rows)
        ]
    )  # fmt: skip
    reference = canvas.rows([{"at": row.mean} for row in rows if row.system == baseline])
    texts = lines.encode(y=y, color=alt.Color("ink:N", scale=None))
    return canvas.draw(
        reference.mark_rule(color=FAINT, strokeDash=DASH, strokeWidth=1.2).encode(x="at:Q"),
        lines.mark_rule(strokeWidth=2.5, strokeCap="round").encode(
            x=alt.X("low:Q", scale=scale), x2="high", y=y, color=COLOUR
        ),
        lines.mark_circle(size=90, opacity=1, aria=True).encode(x=x, y=y, color=COLOUR, description="tooltip:N"),
        texts.mark_text(align="right", dx=-10, fontSize=13).encode(x=alt.value(0), text="name:N"),
        texts.mark_text(align="left", dx=12, fontSize=13).encode(x=alt.value("width"), text="value:N"),
    )


def per_query(difference: NDArray[np.float64], measure: str, system: str, baseline: str) -> Markup:
    """Differences of all queries, largest first."""
    # at most one order statistic per pixel
    ordered = np.sort(difference)[::-1][evenly(len(difference), MAX_BARS)]
    rows = [{"x": i, "to": i + 0.86, "y": v, "colour": GAIN if v > 0 else LOSS} for i, v in enumerate(ordered.tolist())]
    canvas = Canvas(f"difference in {measure} per query", 186.0)
    queries = alt.Axis(labels=False, grid=False, title="queries, from largest gain to largest loss")
    bars = canvas.rows([row for row in rows if row["y"]]).encode(
        x=alt.X("x:Q", scale=alt.Scale(domain=[0, max(len(rows), 1)], nice=False), axis=queries),
        x2="to",
        y=alt.Y("y:Q", title=None),
        y2=alt.datum(0),
        color=COLOUR,
    )
    zero = canvas.rows([{"at": 0.0}]).mark_rule(color=FAINT).encode(y="at:Q")
    return canvas.draw(bars.mark_rect(), zero, title=f"{measure}: {system} − {baseline}")


def evenly(count: int, limit: int) -> NDArray[np.int64]:
    """At most `limit` of the numbers 0..count-1, evenly spaced, the first and the last included.

    >>> evenly(9, 3).tolist()
    [0, 4, 8]
    """
    return np.unique(np.linspace(0, count - 1, min(limit, count)).round().astype(np.int64))


def histogram(
    groups: Mapping[str, NDArray[np.float64]],
    chosen: Mapping[str, NDArray[np.float64]],
    bands: Sequence[Limits],
    label: str,
) -> Markup:
    """Stacked counts of each group's values over shaded bands.

    `chosen` values are solid, in front of all values, which are faded. Values beyond the axis count in the first or
    last bar.
    """
    everything = np.concatenate([np.asarray(values, dtype=np.float64) for values in groups.values()])
    limits = [bound for _, start, stop in bands for bound in (start, stop) if bound is not None]
    first, last = (float(v) for v in np.quantile(everything, [0.002, 0.998]))
    low = min([first, *(bound - 60 for bound in limits)])
    high = max([last, *(bound + 60 for bound in limits)])
    edges = np.linspace(low, high if high > low else low + 1.0, _BINS + 1)
    canvas = Canvas(f"distribution of {label}", 218.0)
    front = any(len(values) for values in chosen.values())
    x = alt.X(
        "x:Q", title=label, scale=alt.Scale(domain=[low, float(edges[-1])], nice=False), axis=alt.Axis(grid=False)
    )
    y = alt.Y("y:Q", title=None, axis=alt.Axis(tickCount=4))
    layers = _bands_behind(canvas, bands, x, (low, float(edges[-1])))
    for counted, opacity in ((groups, 0.3 if front else 1.0), (chosen, 1.0)):
        bars = canvas.rows(_stack(counted, edges)).encode(
            x=x, x2="to", y=y, y2="top", color=COLOUR, description="tooltip:N"
        )
        layers.append(bars.mark_rect(fillOpacity=opacity, aria=True))
    return canvas.draw(*layers, title="documents")


def _stack(groups: Mapping[str, NDArray[np.float64]], edges: NDArray[np.float64]) -> list[dict[str, Any]]:
    """Bars per group and bin, stacked, known categories in their order."""
    base = np.zeros(len(edges) - 1)
    gap = 0.06 * float(edges[1] - edges[0])
    rows: list[dict[str, Any]] = []
    for name in sorted(groups, key=lambda n: (CATEGORIES.index(n) if n in CATEGORIES else len(CATEGORIES), n)):
        counts = np.histogram(np.clip(groups[name], edges[0], edges[-1]), edges)[0]
        for b in np.flatnonzero(counts).tolist():
            x = float(edges[b])
            to = float(edges[b + 1])
            y = float(base[b])
            top = float(base[b] + counts[b])
            said = f"{name}: {counts[b]:,} between {x:.0f} and {to:.0f}"
            place = {"x": x + gap, "to": to - gap, "y": y, "top": top}
            rows.append({**place, "colour": category_colour(name), "tooltip": said})
        base += counts
    return rows


def _bands_behind(canvas: Canvas, bands: Sequence[Limits], x: alt.X, ends: tuple[float, float]) -> list[alt.Chart]:
    """Shaded ranges of x, cut at the `ends` of the axis, with their names above the plot."""
    low, high = ends
    rows: list[dict[str, Any]] = []
    for name, start, stop in bands:
        row = {"x": low if start is None else max(start, low), "to": high if stop is None else min(stop, high)}
        if row["to"] > row["x"]:
            fits = (row["to"] - row["x"]) / (high - low) * 420.0 > 5.6 * len(name)
            middle = {"middle": (row["x"] + row["to"]) / 2, "name": name if fits else ""}
            rows.append({**row, **middle, "colour": category_colour(name), "edge": row["x"]})
    shade = canvas.rows(rows).encode(x=x, x2="to", color=COLOUR)
    names = canvas.rows([row for row in rows if row["name"]]).encode(x="middle:Q", text="name:N", y=alt.value(-6))
    edges = canvas.rows([row for row in rows if row["edge"] > low]).encode(x="edge:Q")
    whole = {"y": alt.value(-13), "y2": alt.value("height")}
    return [
        shade.mark_rect(fillOpacity=0.1).encode(**whole),
        edges.mark_rule(color=CARD, strokeWidth=1.5).encode(**whole),
        names.mark_text(fontSize=10.5),
    ]


def lines(
    curves: Sequence[Curve],
    x_label: str,
    y_label: str,
    zero: bool = False,
    ring: tuple[float, float] | None = None,
) -> Markup:
    """Curves over one pair of axes, with a legend if there are several; `ring` marks one point."""
    canvas = Canvas(f"{y_label} over {x_label}", 186.0)
    x = alt.X("x:Q", title=x_label, scale=alt.Scale(zero=False, nice=False, padding=4))
    y = alt.Y("y:Q", title=None, scale=alt.Scale(zero=zero), axis=alt.Axis(tickCount=5))
    rows = [{"x": a, "y": b, "name": one.name} for one in curves for a, b in one.points]
    names = [one.name for one in curves]
    colours = [one.colour for one in curves]
    legend = alt.Legend(columns=max(1, int(62 / (max(map(len, names)) + 5)))) if len(names) > 1 else None
    colour = alt.Color("name:N", scale=alt.Scale(domain=names, range=colours), legend=legend)
    points = {one.name for one in curves if len(one.points) <= 40}
    few = [{**row, "tooltip": f"{row['x']:,.6g}: {row['y']:.4g}"} for row in rows if row["name"] in points]
    layers = [
        canvas.rows(rows).mark_line().encode(x=x, y=y, color=colour),
        canvas.rows(few)
        .mark_circle(size=24, opacity=1, aria=True)
        .encode(x=x, y=y, color=colour, description="tooltip:N"),
    ]
    if ring is not None:
        mark = canvas.rows([{"x": ring[0], "y": ring[1]}]).mark_point(size=150, color=MAIN, strokeWidth=1.6, opacity=1)
        layers.append(mark.encode(x=x, y=y))
    return canvas.draw(*layers, title=y_label)


def calibration(named: Mapping[str, Sequence[tuple[float, Estimate]]], predicted: str, observed: str) -> Markup:
    """At most four reliability curves, the first with intervals: observed over predicted means of buckets."""
    canvas = Canvas("calibration", 290.0)
    names = list(named)[:4]
    colours = [MAIN, SECOND, BASE, REST]
    rows = [
        {"x": at, "y": one.mean, "low": one.low, "high": one.high, "name": name,
         "tooltip": f"predicted {at:.3f}, observed {one.mean:.3f}, {one.n:,} pairs"}
        for name in names
        for at, one in named[name]
        if one.mean is not None
    ]  # fmt: skip
    first = [row for row in rows if row["name"] == names[0]]
    others = [row for row in rows if row["name"] != names[0]]
    share = alt.Scale(domain=[0, 1], nice=False)
    x = alt.X("x:Q", scale=share, axis=alt.Axis(title=predicted, grid=True, tickCount=5))
    y = alt.Y("y:Q", scale=share, axis=alt.Axis(title=None, grid=True, tickCount=5))
    scale = alt.Scale(domain=names, range=colours[: len(names)])
    colour = alt.Color("name:N", scale=scale, legend=alt.Legend(columns=2) if len(names) > 1 else None)
    perfect = canvas.rows([{"x": 0, "y": 0}, {"x": 1, "y": 1}]).mark_line(color=FAINT, strokeDash=DASH)
    whole = canvas.rows([row for row in first if row["low"] is not None and row["high"] is not None])
    dots = canvas.rows(first).mark_circle(size=45, opacity=1, aria=True)
    return canvas.draw(
        perfect.encode(x=x, y=y),
        canvas.rows(others).mark_line().encode(x=x, y=y, color=colour),
        canvas.rows(others).mark_circle(size=18, opacity=1).encode(x=x, y=y, color=colour),
        whole.mark_rule(color=MAIN, strokeWidth=1.3).encode(x=x, y=alt.Y("low:Q"), y2="high"),
        dots.encode(x=x, y=y, color=colour, description="tooltip:N"),
        title=observed,
    )


def smooth(points: Sequence[tuple[float, float]], target: int = 160) -> list[tuple[float, float]]:
    """At most about `target` points: means of equal runs of neighbours."""
    run = -(-len(points) // target)
    if run <= 1:
        return list(points)
    array = np.asarray(points, dtype=np.float64)
    groups = np.split(array, range(run, len(array), run))
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in groups]


def history(points: Sequence[tuple[int, float, bool, str]], best: int, measure: str) -> Markup:
    """Draw dev of each trial in order, and the running best; points: number, dev, complete, tooltip."""
    canvas = Canvas("dev of the trials in order", 218.0)
    rows = [
        {"x": number, "y": dev, "colour": MAIN if number == best else BASE if complete else REST, "tooltip": tooltip}
        for number, dev, complete, tooltip in points
    ]
    ended = [(number, dev) for number, dev, complete, _ in points if complete]
    so_far = accumulate((dev for _, dev in ended), max)
    line = [{"x": number, "y": dev} for (number, _), dev in zip(ended, so_far, strict=True)]
    x = alt.X("x:Q", axis=alt.Axis(title="trial", tickMinStep=1, format="d", grid=False))
    y = alt.Y("y:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    dots = canvas.rows(rows).mark_circle(size=42, opacity=1, aria=True)
    return canvas.draw(
        canvas.rows(line).mark_line(color=MAIN, interpolate="step-after").encode(x=x, y=y),
        dots.encode(x=x, y=y, color=COLOUR, description="tooltip:N"),
        title=f"dev {measure}",
    )


def training(log: Rows) -> dict[str, Markup]:
    """Charts of a training log by name, those whose columns it has."""
    peak = max((value for _, value in _column(log, "learning_rate")), default=0.0)
    # chart: label of the y axis, its curves by column of the log, whether the axis begins at 0
    charts: dict[str, tuple[str, dict[str, tuple[str, str]], bool]] = {
        "loss": (
            "training loss",
            {"loss": ("total", MAIN), "ranking": ("ranking", SECOND), "regression": ("regression", THIRD)},
            False,
        ),
    }
    if peak > 0:
        log = [{**row, "rate": None if (rate := row.get("learning_rate")) is None else rate / peak} for row in log]
        rates = {"rate": ("learning rate / peak", MAIN), "alpha": ("α, share of the ranking term", SECOND)}
        charts["schedule"] = ("schedule", rates, True)
    drawn: dict[str, Markup] = {}
    for name, (label, columns, zero) in charts.items():
        curves = [Curve(title, smooth(_column(log, one)), colour) for one, (title, colour) in columns.items()]
        shown = [curve for curve in curves if len(curve.points) > 1]
        if shown:
            drawn[name] = lines(shown, "optimiser step", label, zero=zero)
    dev = _column(log, "dev")
    if len(dev) > 1:
        best = max(dev, key=lambda point: point[1])
        drawn["dev"] = lines([Curve("dev", dev)], "optimiser step", "dev measure", ring=best)
    return drawn


def _column(rows: Rows, name: str) -> list[tuple[float, float]]:
    """(step, value) where both are known and finite."""
    pairs = [(row.get("step"), row.get(name)) for row in rows]
    return [(float(x), float(y)) for x, y in pairs if x is not None and y is not None and math.isfinite(x + y)]
