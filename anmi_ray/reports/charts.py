"""The charts of the pages, declared: each function takes plain numbers and returns markup; none reads data or settings.

A chart is layers of marks over rows (Altair); `theme` says how it looks. Tooltips are `description`s of marks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import altair as alt
import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from anmi_ray.evaluation.significance import Estimate
from anmi_ray.reports import theme
from anmi_ray.reports.page import CATEGORIES, category_colour
from anmi_ray.reports.theme import BASE, CARD, COLOUR, DASH, FAINT, GAIN, INK, LOSS, MAIN, REST, SECOND, Canvas

MAX_POINTS = 1_500
MAX_BARS = 440
SHADES = 10
_BINS = 48
_NUMBERED = 20  # up to so many names the cells of a matrix hold their number
Limits = tuple[str, float | None, float | None]  # of a band: its name, from, to; None is open


@dataclass(frozen=True)
class IntervalLine:
    """A line of a chart of intervals: its place from the top, the estimate with its ends, and what stands beside it.

    name stands to the left, said to the right, in the colour `ink`; tooltip is of the dot. What is None is not drawn.
    """

    place: float
    value: float | None
    low: float | None
    high: float | None
    name: str = ""
    said: str = ""
    tooltip: str = ""
    colour: str = MAIN
    ink: str = INK


@dataclass(frozen=True)
class Curve:
    """A named line through points."""

    name: str
    points: Sequence[tuple[float, float]]
    colour: str = MAIN


def intervals(
    rows: Sequence[IntervalLine],
    label: str,
    x_label: str,
    reference: float | None = None,
    breaks: Sequence[float] = (),
    title: Sequence[str] = (),
    step: float = 30.0,
    width: float = theme.WIDE,
) -> Markup:
    """Estimates below one another with their intervals; `reference` is a dashed line across, `breaks` lines between."""
    places = [row.place for row in rows]
    low = min(places, default=0.0) - 0.5
    high = max(places, default=0.0) + 0.5
    canvas = Canvas(label, step * (high - low), width)
    scale = alt.Scale(zero=False, nice=False, padding=8)
    x = alt.X("value:Q", scale=scale, axis=alt.Axis(title=x_label, tickCount=6))
    y = alt.Y("place:Q", scale=alt.Scale(domain=[high, low], nice=False), axis=None)
    all_rows = [{**vars(row), "name": theme.short(row.name)} for row in rows]
    base = canvas.rows(all_rows).encode(y=y, color=alt.Color("ink:N", scale=None))
    valued = canvas.rows([row for row in all_rows if row["value"] is not None])
    known = valued.encode(x=x, y=y, color=COLOUR)
    whole = canvas.rows([row for row in all_rows if row["low"] is not None and row["high"] is not None])
    line = whole.encode(x=alt.X("low:Q", scale=scale), x2="high", y=y, color=COLOUR)
    across = canvas.rows([] if reference is None else [{"at": reference}])
    layers = [
        across.mark_rule(color=FAINT, strokeDash=DASH, strokeWidth=1.2).encode(x="at:Q"),
        canvas.rows([{"place": at} for at in breaks]).mark_rule(color=FAINT).encode(y=y),
        line.mark_rule(strokeWidth=2.5, strokeCap="round"),
        known.mark_circle(size=90, opacity=1, aria=True).encode(description="tooltip:N"),
        _beside(base, "name", -10.0),
        _beside(base, "said", 12.0),
    ]
    return canvas.draw(*layers, title=title)


def _beside(base: alt.Chart, field: str, shift: float) -> alt.Chart:
    """Texts left of the plot (a negative shift) or right of it."""
    side = alt.value(0) if shift < 0 else alt.value("width")
    return base.mark_text(align="right" if shift < 0 else "left", dx=shift, fontSize=13).encode(
        x=side, text=f"{field}:N"
    )


def per_query(difference: NDArray[np.float64], measure: str, system: str, baseline: str) -> Markup:
    """Differences of all queries, largest first: how many gain, how many lose, and how much."""
    # Of many queries as many equally spaced order statistics as there are pixels.
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
    """At most `limit` of the places 0..count-1, evenly chosen, the first and the last among them.

    >>> evenly(9, 3).tolist()
    [0, 4, 8]
    """
    return np.unique(np.linspace(0, count - 1, min(limit, count)).round().astype(np.int64))


def scatter(x_values: NDArray[np.float64], y_values: NDArray[np.float64], x_label: str, y_label: str) -> Markup:
    """Points with the line y = x; at most MAX_POINTS of them are drawn, evenly picked."""
    picked = evenly(len(x_values), MAX_POINTS)
    xs = x_values[picked].tolist()
    ys = y_values[picked].tolist()
    canvas = Canvas(f"{y_label} against {x_label}", 300.0)
    x = alt.X("x:Q", title=x_label, scale=alt.Scale(zero=False, nice=False, padding=8))
    y = alt.Y("y:Q", title=None, scale=alt.Scale(zero=False, nice=False, padding=8))
    points = canvas.rows([{"x": a, "y": b} for a, b in zip(xs, ys, strict=True)]).encode(x=x, y=y)
    low = max(min(xs, default=0.0), min(ys, default=0.0))
    high = min(max(xs, default=0.0), max(ys, default=0.0))
    perfect = canvas.rows([{"x": at, "y": at} for at in (low, high) if low < high]).encode(x=x, y=y)
    dots = points.mark_circle(size=15, color=MAIN, opacity=1, fillOpacity=0.32)
    return canvas.draw(dots, perfect.mark_line(color=FAINT, strokeDash=DASH, strokeWidth=1.2), title=y_label)


def histogram(
    groups: Mapping[str, NDArray[np.float64]],
    chosen: Mapping[str, NDArray[np.float64]],
    bands: Sequence[Limits],
    label: str,
) -> Markup:
    """Stacked counts of each group's values over shaded bands.

    Where some are `chosen`, those stand solid in front of all, which fade. What lies beyond the picture counts in its
    first or last bar.
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
    """A bar a group and bin, on top of one another, known categories in their order."""
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
    """Shaded ranges of x with their names above the plot; what lies beyond the `ends` of the axis is cut."""
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
    colour = alt.Color("name:N", scale=alt.Scale(domain=names, range=colours), legend=_legend(names))
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


def _legend(names: Sequence[str]) -> alt.Legend | None:
    if len(names) < 2:
        return None
    return alt.Legend(columns=max(1, int(62 / (max(map(len, names)) + 5))))


def calibration(named: Mapping[str, Sequence[tuple[float, Estimate]]], predicted: str, observed: str) -> Markup:
    """Reliability curves: observed over predicted means of buckets; the first one with intervals, at most four.

    predicted, observed: titles of the axes.
    """
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
    """At most about `target` points: means of equal runs of neighbours, for a curve of thousands of steps."""
    run = -(-len(points) // target)
    if run <= 1:
        return list(points)
    array = np.asarray(points, dtype=np.float64)
    groups = np.split(array, range(run, len(array), run))
    return [(float(part[:, 0].mean()), float(part[:, 1].mean())) for part in groups]


def matrix(
    names: Sequence[str],
    cells: Sequence[Mapping[str, Any]],
    ends: tuple[float, float],
    what: str,
    label: str,
    title: Sequence[str] = (),
) -> Markup:
    """A square of every two names, columns numbered as the rows; darker is more.

    cells: row and column, the value between 0 and 1 and a tooltip; what is left out stays empty. ends: the values that
    the lightest and the darkest shade stand for; what says below the square what they are.
    """
    count = len(names)
    size = min(46.0, max(14.0, 520.0 / max(count, 1)))
    side = size * count
    canvas = Canvas(label, side + 34.0, max(side, 1.0), fitted=False)
    rows = [_shaded(cell, size, ends) for cell in cells]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, max(side, 1.0)], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[side + 34.0, 0], nice=False))
    squares = canvas.rows(rows).encode(
        x=x, x2="to", y=y, y2="bottom", fillOpacity=alt.FillOpacity("shade:Q", scale=None), description="tooltip:N"
    )
    number = canvas.rows(rows if count <= _NUMBERED else []).mark_text(fontSize=12)
    named = [{"y": size * (i + 0.5), "name": theme.short(name), "n": str(i + 1)} for i, name in enumerate(names)]
    heads = canvas.rows([{"x": size * (i + 0.5), "n": str(i + 1)} for i in range(count)])
    listed = canvas.rows(named).encode(y=y)
    return canvas.draw(
        squares.mark_rect(fill=MAIN, aria=True),
        number.encode(
            x=alt.X("cx:Q", axis=None), y=alt.Y("cy:Q", axis=None), text="said:N", color=alt.Color("ink:N", scale=None)
        ),
        listed.mark_text(align="right", dx=-32, fontSize=13, color=INK).encode(x=alt.value(0), text="name:N"),
        listed.mark_text(align="right", dx=-10).encode(x=alt.value(0), text="n:N"),
        heads.mark_text(fontSize=12 if size > 20 else 10).encode(x=x, y=alt.value(-8), text="n:N"),
        *_shades(canvas, side + 16.0, ends, what, (x, y)),
        title=title,
    )


def _shaded(cell: Mapping[str, Any], size: float, ends: tuple[float, float]) -> dict[str, Any]:
    x = size * cell["column"]
    y = size * cell["row"]
    share = (cell["value"] - ends[0]) / (ends[1] - ends[0])
    place = {"x": x + 0.5, "to": x + size - 0.5, "y": y + 0.5, "bottom": y + size - 0.5}
    said = {"cx": x + size / 2, "cy": y + size / 2, "said": f"{100 * cell['value']:.0f}", "tooltip": cell["tooltip"]}
    return {**place, **said, "shade": shade(share), "ink": CARD if share >= 0.62 else INK}


def shade(share: float) -> float:
    """One of SHADES opacities for a share between 0 and 1."""
    level = min(max(math.floor(SHADES * share), 0), SHADES - 1)
    return round(0.06 + 0.94 * level / (SHADES - 1), 2)


def _shades(
    canvas: Canvas, top: float, ends: tuple[float, float], what: str, axes: tuple[alt.X, alt.Y]
) -> list[alt.Chart]:
    """What the shades stand for."""
    x, y = axes
    steps = [
        {"x": 18.0 * k, "to": 18.0 * k + 18, "y": top, "b": top + 12, "s": shade(k / SHADES)} for k in range(SHADES)
    ]
    words = [{"x": 18.0 * SHADES + 8, "y": top + 6, "said": f"{100 * ends[1]:.0f} % {what}"}]
    first = [{"x": -6.0, "y": top + 6, "said": f"{100 * ends[0]:.0f} %"}]
    boxes = canvas.rows(steps).encode(x=x, x2="to", y=y, y2="b", fillOpacity=alt.FillOpacity("s:Q", scale=None))
    texts: tuple[tuple[list[dict[str, Any]], Literal["left", "right"]], ...] = ((words, "left"), (first, "right"))
    said = [canvas.rows(rows).mark_text(align=side).encode(x=x, y=y, text="said:N") for rows, side in texts]
    return [boxes.mark_rect(fill=MAIN), *said]
