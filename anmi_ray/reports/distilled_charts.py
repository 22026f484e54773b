"""Charts of a distilled pairwise judge: triangles of predictions, circles, ranks, buckets and segments.

Scores have five kinds, from "all for the first" to "all for the second", with a colour each. A prediction is a point
(P_A, P_B); folded ones are of pairs turned so that the model prefers the first document.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import altair as alt
import numpy as np
from markupsafe import Markup

from anmi_ray.evaluation.distilled import Circle, PointSample, Segment
from anmi_ray.evaluation.pairwise import KINDS, Cumulative, kinds
from anmi_ray.evaluation.pairwise_measures import Bucket
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.reports.charts import shade
from anmi_ray.reports.polygons import area, bounds, centroid, cut, wedge
from anmi_ray.reports.theme import BASE, CARD, COLOUR, DASH, FAINT, INK, MAIN, PAPER, REST, SECOND, THIRD, Canvas

COLOURS = tuple(f"var(--s{k})" for k in range(len(KINDS)))
_ON = ("var(--on0)", INK, INK, INK, "var(--on4)")  # of texts on these colours
_ROUNDS = 8  # points are drawn in so many rounds of kinds, so that no kind lies over all others
Corners = Sequence[tuple[float, float]]
Place = Callable[[float, float], tuple[float, float]]
_SHARES = alt.Scale(domain=[0, 1], nice=False)


def _unit(title: str | None, grid: bool = False, high: float = 1.0) -> dict[str, Any]:
    """An axis from 0 to `high`."""
    scale = alt.Scale(domain=[0, high], nice=False)
    return {"scale": scale, "axis": alt.Axis(title=title, grid=grid, tickCount=5)}


def _dots(canvas: Canvas, points: PointSample, place: Place, size: float, opacity: float = 1.0) -> alt.Chart:
    """Points in the colour of their score's kind."""
    kind = kinds(np.asarray(points.score, dtype=np.float64)).tolist()
    order = sorted(range(len(kind)), key=lambda k: (k % _ROUNDS, kind[k], k))
    rows = []
    for k in order:
        x, y = place(points.first[k], points.second[k])
        rows.append({"x": x, "y": y, "colour": COLOURS[kind[k]]})
    marks = canvas.rows(rows).mark_circle(size=size, opacity=1, fillOpacity=opacity)
    return marks.encode(x="x:Q", y="y:Q", color=COLOUR)


def _polygon(canvas: Canvas, corners: Corners, **look: Any) -> alt.Chart:
    """A closed shape."""
    rows = [{"x": a, "y": b, "n": n} for n, (a, b) in enumerate(corners)]
    look = {"strokeWidth": 1.0, **look}
    marks = canvas.rows(rows).mark_line(interpolate="linear-closed", **look)
    return marks.encode(x="x:Q", y="y:Q", order="n:Q")


def _words(canvas: Canvas, texts: Sequence[tuple[float, float, str]], **look: Any) -> alt.Chart:
    """Texts at places of the plot, readable over what lies below them."""
    rows = [{"x": x, "y": y, "said": said} for x, y, said in texts]
    marks = canvas.rows(rows).mark_text(stroke=PAPER, strokeWidth=3, fontSize=11.5, **look)
    return marks.encode(x="x:Q", y="y:Q", text="said:N")


def _same(a: float, b: float) -> tuple[float, float]:
    return a, b


def triangle(points: PointSample, step: int) -> Markup:
    """Every prediction of one checkpoint at (P_A, P_B)."""
    canvas = Canvas(f"triangle of predictions at step {step}", 186.0, 234.0)
    hidden = {
        "scale": _SHARES,
        "axis": alt.Axis(labels=False, grid=False, domain=False, titlePadding=4, titleFontSize=10),
    }
    frame = _polygon(canvas, [(0, 0), (1, 0), (0, 1)], color=FAINT, fill=CARD)
    middle = canvas.rows([{"x": 0, "y": 0}, {"x": 0.5, "y": 0.5}]).mark_line(color=FAINT, strokeDash=DASH)
    x = alt.X("x:Q", **hidden).title("P(A)")
    y = alt.Y("y:Q", **hidden).title("P(B)")
    return canvas.draw(frame.encode(x=x, y=y), middle.encode(x="x:Q", y="y:Q"), _dots(canvas, points, _same, 9.0))


def folded_triangle(
    points: PointSample, marked: str = "", circles: Sequence[Circle] = (), strip: Sequence[Segment] = ()
) -> Markup:
    """The folded points, with the wanted region, circles, or a strip of equal μ marked."""
    canvas = Canvas("folded triangle of predictions", 214.0)
    x = alt.X("x:Q", **_unit("P(the preferred document is better)"))
    y = alt.Y("y:Q", **_unit(None, high=0.5))
    layers = [_polygon(canvas, [(0, 0), (1, 0), (0.5, 0.5)], color=FAINT, fill=CARD).encode(x=x, y=y)]
    turned = _fold(points)
    if marked:
        layers.append(_polygon(canvas, wedge(0.25), color=THIRD, fill=THIRD, fillOpacity=0.14, strokeDash=[4, 3]))
    if strip:
        low = min(one.mean_low for one in strip)
        high = max(one.mean_high for one in strip)
        layers.append(_polygon(canvas, cut(low, high, 0.0, 1.0), color=THIRD, fill=THIRD, fillOpacity=0.16))
        inside = [low <= 0.5 + (b - a) / 2 <= high for a, b in zip(turned.first, turned.second, strict=True)]
        layers.append(_dots(canvas, _some(turned, [not one for one in inside]), _same, 15.0, 0.16))
        turned = _some(turned, inside)
    layers.append(_dots(canvas, turned, _same, 15.0))
    layers += [_polygon(canvas, wedge(one.radius), color=THIRD, strokeWidth=1.8) for one in circles]
    for one in circles:
        layers.append(_radius_label(canvas, one.radius))
    if marked:
        layers.append(_words(canvas, [(0.84, 0.17, marked)], align="left", dx=6))
    return canvas.draw(*layers, title="P(the other is better)")


def _radius_label(canvas: Canvas, radius: float) -> alt.Chart:
    """Where the circle leaves the triangle: on y = 1 − x, or on y = x when it is wider than √½."""
    wide = radius > math.sqrt(0.5)
    b = (1 - math.sqrt(2 * radius**2 - 1)) / 2 if wide else radius * math.sqrt(0.5)
    place = (b if wide else 1 - b, b, f"r = {radius:g}")
    side = {"align": "right", "dx": -7} if wide else {"align": "left", "dx": 7}
    return _words(canvas, [place], color=INK, fontWeight=600, dy=-6, **side)


def _fold(points: PointSample) -> PointSample:
    rows = zip(points.first, points.second, points.score, strict=True)
    turned = [(b, a, 1 - c) if b > a else (a, b, c) for a, b, c in rows]
    return PointSample(*(tuple(row[k] for row in turned) for k in range(3)))


def _some(points: PointSample, chosen: Sequence[bool]) -> PointSample:
    columns = (points.first, points.second, points.score)
    return PointSample(*(tuple(v for v, one in zip(column, chosen, strict=True) if one) for column in columns))


def confidence(points: PointSample) -> Markup:
    """The folded points by what their two distances measure, E[C] and E|C|."""
    canvas = Canvas("predictions by E[C] and E|C|", 264.0)
    title = "E[C], folded: 0 is sure of the preferred document, ½ knows no better"
    x = alt.X("x:Q", **_unit(title, True, 0.5))
    y = alt.Y("y:Q", **_unit(None, True))
    edge = canvas.rows([{"x": 0, "y": 1}, {"x": 0.5, "y": 0}]).mark_line(color=FAINT, strokeWidth=1)
    bold = {"color": INK, "fontWeight": 600}
    return canvas.draw(
        edge.encode(x=x, y=y),
        _dots(canvas, _fold(points), lambda a, b: (0.5 + (b - a) / 2, min(a + b, 1.0)), 15.0),
        _words(canvas, [(0.49, 0.13, "ties"), (0.49, 0.95, "hard pairs")], align="right", **bold),
        _words(canvas, [(0.01, 0.95, "clear pairs")], align="left", **bold),
        _words(canvas, [(0.11, 0.3, "impossible: E|C| < 1 − 2 E[C]")]),
        title="E|C|: 1 if all judges will agree",
    )


def kind_bars(rows: Sequence[tuple[str, str, Sequence[float]]], label: str) -> Markup:
    """Shares of the kinds of score, a bar a row of (name, what stands to the right, shares)."""
    canvas = Canvas(label, 58.0 * len(rows))
    bars = []
    heads = []
    for k, (name, more, shares) in enumerate(rows):
        heads.append({"y": 58 * k + 12, "name": name, "more": more})
        bars += _stacked(shares, {"y": 58 * k + 24, "bottom": 58 * k + 44, "middle": 58 * k + 34})
    x = alt.X("x:Q", axis=None, scale=_SHARES)
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[58 * len(rows), 0], nice=False))
    head = canvas.rows(heads).encode(y=y)
    boxes = canvas.rows(bars).encode(x=x, x2="to", y=y, y2="bottom", description="tooltip:N")
    texts = canvas.rows([row for row in bars if row["to"] - row["x"] >= 0.07])
    return canvas.draw(
        boxes.mark_rect(aria=True).encode(color=COLOUR),
        texts.mark_text().encode(
            x=alt.X("at:Q", axis=None),
            y=alt.Y("middle:Q", axis=None),
            text="said:N",
            color=alt.Color("on:N", scale=None),
        ),
        head.mark_text(align="left", fontSize=13).encode(x=alt.value(0), text="name:N"),
        head.mark_text(align="right").encode(x=alt.value("width"), text="more:N"),
    )


def _stacked(shares: Sequence[float], place: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Pieces of one bar along x."""
    rows = []
    at = 0.0
    for kind, share in enumerate(shares):
        said = {"said": f"{100 * share:.0f} %", "tooltip": f"{KINDS[kind]}: {100 * share:.1f} %"}
        look = {"colour": COLOURS[kind], "on": _ON[kind]}
        if share:
            rows.append({"x": at, "to": at + share, "at": at + share / 2, **look, **said, **place})
        at += share
    return rows


def cumulative(found: Cumulative, by_rank: bool) -> Markup:
    """Kinds of score within the circle, stacked, over its radius (with the yield) or over rank (with the radius)."""
    canvas = Canvas(f"cumulative kinds of score by {'rank' if by_rank else 'radius'}", 220.0)
    across, curve = (found.rank, found.radius) if by_rank else (found.radius, found.rank)
    x = alt.X("x:Q", **_unit("rank, surest first (share of all pairs)" if by_rank else "radius r"))
    stack = np.concatenate([np.zeros((len(across), 1)), np.cumsum(found.kind, axis=1)], axis=1).clip(0.0, 1.0)
    rows = [
        {"x": min(at, 1.0), "y": float(stack[n, k]), "to": float(stack[n, k + 1]), "kind": k, "colour": COLOURS[k]}
        for k in range(len(KINDS))
        if np.any(found.kind[:, k] > 0)
        for n, at in enumerate(across.tolist())
    ]
    line = [{"x": min(a, 1.0), "y": min(b, 1.0)} for a, b in zip(across.tolist(), curve.tolist(), strict=True)]
    areas = canvas.rows(rows).mark_area(opacity=1).encode(x=x, y=alt.Y("y:Q", **_unit(None)), y2="to", detail="kind:N")
    title = f"share of the pairs within; line: {'radius' if by_rank else 'yield'}"
    return canvas.draw(areas.encode(color=COLOUR), *_haloed(canvas, line, THIRD), title=title)


def _haloed(canvas: Canvas, rows: Sequence[Mapping[str, Any]], colour: str) -> list[alt.Chart]:
    """A line that stays visible over colours."""
    line = canvas.rows(rows).encode(x="x:Q", y="y:Q", order="x:Q")
    return [line.mark_line(color=CARD, strokeWidth=5), line.mark_line(color=colour, strokeWidth=2.4)]


def rank_buckets(rows: Sequence[Bucket]) -> Markup:
    """Kinds of score in buckets of rank, with the predicted and the observed mean for the preferred document."""
    canvas = Canvas("kinds of score by rank of radius", 220.0)
    x = alt.X("x:Q", **_unit(f"rank by radius, surest first, {len(rows)} equal buckets"))
    y = alt.Y("y:Q", **_unit(None))
    bars: list[dict[str, Any]] = []
    for k, row in enumerate(rows):
        place = {"left": (k + 0.04) / len(rows), "right": (k + 0.96) / len(rows)}
        bars += [
            {"x": place["left"], "right": place["right"], "y": one["x"], "to": one["to"], "colour": one["colour"],
             "tooltip": f"{one['tooltip']} of {row.n:,}"}
            for one in _stacked(row.kinds, place)
        ]  # fmt: skip
    middle = [(k + 0.5) / len(rows) for k in range(len(rows))]
    predicted = [{"x": at, "y": row.predicted} for at, row in zip(middle, rows, strict=True)]
    observed = [
        {"x": at, "y": row.observed.mean or 0.0, "low": row.observed.low, "high": row.observed.high}
        for at, row in zip(middle, rows, strict=True)
    ]
    boxes = canvas.rows(bars).mark_rect(aria=True).encode(x=x, x2="right", y=y, y2="to", description="tooltip:N")
    known = canvas.rows([row for row in observed if row["low"] is not None and row["high"] is not None])
    line = canvas.rows(observed).encode(x="x:Q", y="y:Q")
    return canvas.draw(
        boxes.encode(color=COLOUR),
        *_haloed(canvas, predicted, THIRD),
        known.mark_rule(color=INK, strokeWidth=1.3).encode(x="x:Q", y="low:Q", y2="high"),
        line.mark_line(color=INK, strokeWidth=1.6),
        line.mark_circle(color=INK, size=24, opacity=1),
        title="share of the pairs; lines: mean score for the preferred document",
    )


def calibration(named: Mapping[str, Sequence[tuple[float, Estimate]]], predicted: str, observed: str) -> Markup:
    """What was observed over what was predicted, bucket by bucket, the first predictor with intervals, at most four.

    predicted, observed: in words, what the two axes are.
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
    x = alt.X("x:Q", **_unit(predicted, True))
    y = alt.Y("y:Q", **_unit(None, True))
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


def segments(rows: Sequence[Segment], decided: bool) -> Markup:
    """The folded triangle cut in segments of equal population, darker where more was observed.

    decided: of |2C − 1|, else of the score for the preferred document.
    """
    what = "observed |2C − 1|" if decided else "observed score for the preferred document"
    canvas = Canvas(f"segments of the triangle: {what}", 236.0)
    corners: list[dict[str, Any]] = []
    texts: list[dict[str, Any]] = []
    for k, (row, limits) in enumerate(zip(rows, bounds(rows), strict=True)):
        around = cut(*limits)
        if len(around) < 3:
            continue
        value = (row.observed_decided.mean if decided else 1.0 - (row.observed_mean.mean or 0.0)) or 0.0
        share = value if decided else (value - 0.5) * 2
        predicted = row.predicted_decided if decided else 1.0 - row.predicted_mean
        look = {"shade": shade(share), "segment": k}
        look["tooltip"] = f"observed {value:.2f}, predicted {predicted:.2f}, {row.n:,} pairs"
        corners += [{"x": a, "y": b, "n": n, **look} for n, (a, b) in enumerate(around)]
        if area(around) > 0.0065:
            a, b = centroid(around)
            said = f"{value:.2f}".removeprefix("0") if value < 1 else "1"
            texts.append({"x": a, "y": b, "said": said, "ink": CARD if share >= 0.6 else INK})
    title = "P(the preferred document is better), from 0 to 1"
    x = alt.X("x:Q", scale=_SHARES, axis=alt.Axis(title=title, labels=False, grid=False))
    y = alt.Y("y:Q", scale=alt.Scale(domain=[0, 0.5], nice=False), axis=None)
    shapes = canvas.rows(corners).mark_line(
        interpolate="linear-closed", fill=MAIN, color="var(--rule)", strokeWidth=1, aria=True
    )
    number = canvas.rows(texts).mark_text(fontSize=11)
    return canvas.draw(
        shapes.encode(
            x=x, y=y, order="n:Q", detail="segment:N", fillOpacity=alt.FillOpacity("shade:Q", scale=None),
            description="tooltip:N",
        ),
        number.encode(x="x:Q", y=alt.Y("y:Q", axis=None), text="said:N", color=alt.Color("ink:N", scale=None)),
        *_scale(canvas, ("0", "1") if decided else ("½", "1")),
        title=what,
    )  # fmt: skip


def _scale(canvas: Canvas, ends: tuple[str, str]) -> list[alt.Chart]:
    """What the shades stand for, in the empty corner of the plot."""
    steps = [{"x": 0.034 * k, "to": 0.034 * (k + 1), "s": shade(k / 10)} for k in range(10)]
    boxes = canvas.rows(steps).mark_rect(fill=MAIN).encode(
        x="x:Q", x2="to", y=alt.value(4), y2=alt.value(15), fillOpacity=alt.FillOpacity("s:Q", scale=None)
    )  # fmt: skip
    low = canvas.rows([{"x": 0.0, "said": ends[0]}]).mark_text(align="left")
    high = canvas.rows([{"x": 0.34, "said": ends[1]}]).mark_text(align="right")
    return [boxes, *(text.encode(x="x:Q", y=alt.value(24), text="said:N") for text in (low, high))]
