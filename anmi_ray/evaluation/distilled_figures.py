"""The figures of a distilled pairwise judge as inline SVG: triangles, circles, ranks, buckets and segments.

Each takes numbers of `distilled_report` and returns markup; colours are CSS classes, s0 to s4 for the kinds of score
from "all for the first" to "all for the second". A dot is a stroke of no length: thousands of them stay small.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from markupsafe import Markup

from anmi_ray.evaluation import svg
from anmi_ray.evaluation.distilled_report import Checkpoint, Circle, Points, Segment
from anmi_ray.evaluation.pairwise import KINDS, Cumulative, kinds
from anmi_ray.evaluation.pairwise_measures import Bucket
from anmi_ray.evaluation.rules_report import Estimate

SHADES = 10
_LAYERS = 8  # dots are drawn in so many rounds of kinds, so that no kind lies over all others
Place = Callable[[float, float], tuple[float, float]]
Corner = tuple[float, float]


def accuracy(rows: Sequence[Checkpoint], others: Sequence[tuple[str, Estimate]]) -> Markup:
    """Figure 1: accuracy on full-consensus pairs by step; the other predictors are lines across."""
    left, top, bottom, right = 46.0, 30.0, 236.0, svg.WIDTH - 8
    known = [row for row in rows if row.accuracy.mean is not None]
    lines = [(name, one.mean) for name, one in others if one.mean is not None]
    ends = [v for row in known for v in (row.accuracy.low, row.accuracy.high) if v is not None]
    x = svg.axis([row.step for row in rows], left, right, 0.03)
    y = svg.axis([*ends, *(value for _, value in lines)], bottom, top, 0.06)
    parts = [svg.bottom_axis(x, bottom, top, "training step"), svg.left_axis(y, left, right, "accuracy")]
    for k, (name, value) in enumerate(lines):
        side = "start" if k % 2 else "end"
        at = left + 4 if k % 2 else right - 4
        parts += [
            svg.line(left, y(value), right, y(value), "reference"),
            svg.text(at, y(value) - 5, name, "small", side),
        ]
    middle = [(x(row.step), y(row.accuracy.mean)) for row in known if row.accuracy.mean is not None]
    for (at, height), row in zip(middle, known, strict=True):
        one = row.accuracy
        if one.low is not None and one.high is not None:
            parts.append(svg.line(at, y(one.low), at, y(one.high), "whisker main thin"))
        parts.append(svg.circle(at, height, 3.4, "dot main", f"step {row.step:,}: {one.mean:.3f}"))
    parts.append(svg.path(middle, "curve main"))
    return svg.picture(bottom + 42, "accuracy on full-consensus pairs by training step", *parts)


def triangle(points: Points, step: int) -> Markup:
    """Figure 2, one checkpoint: every prediction at (P_A, P_B)."""
    size, pad = 220.0, 34.0
    x, y = svg.Axis(0.0, 1.0, pad, size - 4), svg.Axis(0.0, 1.0, size - pad, 4.0)
    parts = [_frame(x, y, [(0, 0), (1, 0), (0, 1)]), svg.line(x(0), y(0), x(0.5), y(0.5), "reference")]
    parts += [_dots(points.first, points.second, points.score, lambda a, b: (x(a), y(b)), "small-dots")]
    parts += [svg.text(x(0.5), size - 10, "P(A)", "small"), svg.text(2, y(0.5), "P(B)", "small", "start")]
    return _picture(size, size, f"triangle of predictions at step {step}", *parts)


def folded_triangle(
    points: Points, marked: str = "", circles: Sequence[Circle] = (), strip: Sequence[Segment] = ()
) -> Markup:
    """Figures 3, 4 and 8: the folded points, with the wanted region, circles, or a strip of equal μ marked."""
    first, second, score = _fold(points)
    width = svg.WIDTH
    x, y = svg.Axis(0.0, 1.0, 40.0, width - 12), svg.Axis(0.0, 0.5, 238.0, 24.0)
    corners = [(0.0, 0.0), (1.0, 0.0), (0.5, 0.5)]
    parts = [svg.bottom_axis(x, y(0), y(0), "P(the preferred document is better)"), _frame(x, y, corners)]
    parts.append(svg.text(0, 12, "P(the other is better)", "label", "start"))
    parts += [svg.text(x(0) - 7, y(t) + 4, svg.number(t, 0.1), "tick", "end") for t in (0.1, 0.2, 0.3, 0.4, 0.5)]
    if marked:
        parts.append(_wedge(x, y, 0.25, "wanted"))
    if strip:
        low, high = min(one.mean_low for one in strip), max(one.mean_high for one in strip)
        inside = [_polygon(_cut(low, high, 0.0, 1.0), lambda a, b: (x(a), y(b)), "strip")]
        parts += inside
        middle = [(low <= 0.5 + (b - a) / 2 <= high) for a, b in zip(first, second, strict=True)]
        parts.append(_chosen(first, second, score, middle, lambda a, b: (x(a), y(b))))
    else:
        parts.append(_dots(first, second, score, lambda a, b: (x(a), y(b))))
    parts += [_wedge(x, y, one.radius, "circle") for one in circles]
    parts += [_radius_label(x, y, one) for one in circles]
    if marked:
        parts.append(svg.text(x(0.84) + 6, y(0.17), marked, "small", "start"))
    return svg.picture(282.0, "folded triangle of predictions", *parts)


def _radius_label(x: svg.Axis, y: svg.Axis, one: Circle) -> Markup:
    """Where the circle leaves the triangle: on y = 1 − x, or on y = x when it is wider than √½."""
    wide = one.radius > math.sqrt(0.5)
    b = (1 - math.sqrt(2 * one.radius**2 - 1)) / 2 if wide else one.radius * math.sqrt(0.5)
    a = b if wide else 1 - b
    return svg.text(
        x(a) + (-7 if wide else 7), y(b) - 3, f"r = {one.radius:g}", "small strong", "end" if wide else "start"
    )


def held(circles: Sequence[Circle]) -> Markup:
    """Beside figure 4: what each circle holds, as bars of kinds."""
    rows = [(f"r ≤ {one.radius:g}", f"{one.n:,} pairs", one.kinds, one.n) for one in circles]
    return _bars(rows, "scores within the circles")


def halves(strip: Sequence[Segment]) -> Markup:
    """Beside figure 8: the scores of the strip's halves of low and high P(tie)."""
    named = [
        (f"{label}: mean {1 - one.predicted_decided:.2f}", f"{one.n:,} pairs", one.kinds, one.n)
        for label, one in zip(("high P(tie)", "low P(tie)"), strip, strict=True)
    ]
    return _bars(named, "scores within the strip by P(tie)")


def _bars(rows: Sequence[tuple[str, str, Sequence[float], int]], label: str) -> Markup:
    x, parts = svg.Axis(0.0, 1.0, 0.0, svg.WIDTH - 4), []
    for k, (name, more, kind, n) in enumerate(rows):
        y = 18 + 58.0 * k
        parts += [svg.text(0, y, name, "name", "start"), svg.text(svg.WIDTH - 4, y, more, "tick", "end")]
        at = 0.0
        for s, share in enumerate(kind if n else ()):
            title = f"{KINDS[s]}: {100 * share:.1f} %"
            parts.append(svg.rect(x(at), y + 8, x(at + share) - x(at), 20, f"s{s}", title))
            if share >= 0.07:
                parts.append(svg.text(x(at + share / 2), y + 22.5, f"{100 * share:.0f} %", f"on on{s}"))
            at += share
    return svg.picture(20 + 58.0 * len(rows), label, *parts)


def cumulative(found: Cumulative, by_rank: bool) -> Markup:
    """Figures 5 and 6: kinds of score within the circle, stacked, over its radius (with the yield) or over rank."""
    left, top, bottom, right = 46.0, 30.0, 250.0, svg.WIDTH - 8
    x, y = svg.Axis(0.0, 1.0, left, right), svg.Axis(0.0, 1.0, bottom, top)
    across = found.rank if by_rank else found.radius
    curve = found.radius if by_rank else found.rank
    stack = np.concatenate([np.zeros((len(across), 1)), np.cumsum(found.kind, axis=1)], axis=1)
    parts = [
        svg.bottom_axis(x, bottom, bottom, "rank, surest first (share of all pairs)" if by_rank else "radius r"),
        svg.left_axis(y, left, right, f"share of the pairs within; line: {'radius' if by_rank else 'yield'}"),
    ]
    places = [float(x(min(float(v), 1.0))) for v in across]
    for s in range(len(KINDS)):
        low = [(at, y(float(v))) for at, v in zip(places, stack[:, s], strict=True)]
        high = [(at, y(float(min(v, 1.0)))) for at, v in zip(places, stack[:, s + 1], strict=True)]
        around = [svg.xy(*point) for point in (*high, *reversed(low))]
        if float(found.kind[:, s].max()) > 0 and len(low) > 1:
            parts.append(Markup('<path class="stack s{}" d="M{}Z"/>').format(s, "L".join(around)))
    line = [(at, y(min(float(v), 1.0))) for at, v in zip(places, curve, strict=True)]
    parts += [svg.path(line, "curve halo"), svg.path(line, "curve third wide")]
    return svg.picture(292.0, f"cumulative kinds of score by {'rank' if by_rank else 'radius'}", *parts)


def rank_buckets(rows: Sequence[Bucket]) -> Markup:
    """Figure 7: kinds of score in buckets of rank, with the predicted and the observed mean for the preferred."""
    left, top, bottom, right = 46.0, 30.0, 250.0, svg.WIDTH - 8
    x, y = svg.Axis(0.0, 1.0, left, right), svg.Axis(0.0, 1.0, bottom, top)
    parts = [
        svg.bottom_axis(x, bottom, bottom, f"rank by radius, surest first, {len(rows)} equal buckets"),
        svg.left_axis(y, left, right, "share of the pairs; lines: mean score for the preferred document"),
    ]
    middles = []
    for k, row in enumerate(rows):
        start, stop, at = x(k / len(rows)), x((k + 1) / len(rows)), 0.0
        middles.append((start + stop) / 2)
        for s, share in enumerate(row.kinds):
            if share:
                title = f"{KINDS[s]}: {100 * share:.0f} % of {row.n:,}"
                parts.append(
                    svg.rect(start + 0.7, y(at + share), stop - start - 1.4, y(at) - y(at + share), f"s{s}", title)
                )
            at += share
    predicted = [(at, y(row.predicted)) for at, row in zip(middles, rows, strict=True)]
    observed = [(at, y(row.observed.mean or 0.0)) for at, row in zip(middles, rows, strict=True)]
    parts += [svg.path(predicted, "curve halo"), svg.path(predicted, "curve third wide")]
    for (at, _), row in zip(observed, rows, strict=True):
        if row.observed.low is not None and row.observed.high is not None:
            parts.append(svg.line(at, y(row.observed.low), at, y(row.observed.high), "whisker ink thin"))
    parts += [svg.path(observed, "curve ink")]
    parts += [svg.circle(at, height, 2.6, "dot ink") for at, height in observed]
    return svg.picture(292.0, "kinds of score by rank of radius", *parts)


def calibration(rows: Sequence[Bucket], others: Sequence[tuple[str, Sequence[Bucket]]], name: str) -> Markup:
    """Observed over predicted mean score in buckets of μ; on the dashed line a prediction means what it says."""
    left, top, bottom, right = 46.0, 50.0, 340.0, svg.WIDTH - 30
    x, y = svg.Axis(0.0, 1.0, left, right), svg.Axis(0.0, 1.0, bottom, top)
    parts = [
        svg.bottom_axis(x, bottom, top, "predicted μ, mean of the bucket"),
        svg.left_axis(y, left, right, "mean score of the ensemble"),
        svg.line(x(0), y(0), x(1), y(1), "reference"),
    ]
    for css, buckets in zip(("second", "base", "rest"), (rows_ for _, rows_ in others), strict=False):
        points = [(x(one.predicted), y(one.observed.mean)) for one in buckets if one.observed.mean is not None]
        parts += [svg.path(points, f"curve {css}"), *(svg.circle(*point, 2.2, f"dot {css}") for point in points)]
    for row in rows:
        if row.observed.low is not None and row.observed.high is not None:
            at = x(row.predicted)
            parts.append(svg.line(at, y(row.observed.low), at, y(row.observed.high), "whisker main thin"))
    for row in rows:
        if row.observed.mean is not None:
            title = f"predicted {row.predicted:.3f}, observed {row.observed.mean:.3f}, {row.n:,} pairs"
            parts.append(svg.circle(x(row.predicted), y(row.observed.mean), 3.4, "dot main", title))
    named = [("main", name), *zip(("second", "base", "rest"), (other for other, _ in others), strict=False)]
    return svg.picture(382.0, "calibration", svg.legend(named, left, 34), *parts)


def confidence(points: Points) -> Markup:
    """Figure 9: the folded points by what the two distances measure, E[C] and E|C|."""
    first, second, score = _fold(points)
    left, top, bottom, right = 46.0, 46.0, 310.0, svg.WIDTH - 12
    x, y = svg.Axis(0.0, 0.5, left, right), svg.Axis(0.0, 1.0, bottom, top)

    def place(a: float, b: float) -> tuple[float, float]:
        return x(0.5 + (b - a) / 2), y(min(a + b, 1.0))

    parts = [
        svg.bottom_axis(x, bottom, top, "E[C], folded: 0 is sure of the preferred document, ½ knows no better"),
        svg.left_axis(y, left, right, "E|C|: 1 if all judges will agree"),
        svg.path([(x(0), y(1)), (x(0.5), y(0))], "axis"),
        _dots(first, second, score, place),
        svg.text(x(0.49), y(0.13), "ties", "small strong", "end"),
        svg.text(x(0.49), y(1) - 10, "hard pairs", "small strong", "end"),
        svg.text(x(0.01), y(1) - 10, "clear pairs", "small strong", "start"),
        svg.text(x(0.11), y(0.3), "impossible: E|C| < 1 − 2 E[C]", "small"),
    ]
    return svg.picture(352.0, "predictions by E[C] and E|C|", *parts)


def segments(rows: Sequence[Segment], decided: bool) -> Markup:
    """Figure 10: the folded triangle cut in segments of equal population, darker where more was observed.

    decided: of |2C − 1|, else of the score for the preferred document.
    """
    x, y = svg.Axis(0.0, 1.0, 12.0, svg.WIDTH - 12), svg.Axis(0.0, 0.5, 244.0, 16.0)
    parts, labels = [], []
    for row, (mean_low, mean_high, low, high) in zip(rows, _bounds(rows), strict=True):
        observed = row.observed_decided.mean if decided else 1.0 - (row.observed_mean.mean or 0.0)
        value = observed or 0.0
        level = value if decided else (value - 0.5) * 2
        shade = min(max(int(SHADES * level), 0), SHADES - 1)
        corners = _cut(mean_low, mean_high, low, high)
        if len(corners) < 3:
            continue
        predicted = row.predicted_decided if decided else 1.0 - row.predicted_mean
        title = f"observed {value:.2f}, predicted {predicted:.2f}, {row.n:,} pairs"
        parts.append(_polygon(corners, lambda a, b: (x(a), y(b)), f"cell shade-{shade}", title))
        if _area(corners) > 0.0065:
            a, b = _middle(corners)
            dark = " dark" if shade >= 0.6 * SHADES else ""
            labels.append(
                svg.text(x(a), y(b) + 4, f"{value:.2f}".removeprefix("0") if value < 1 else "1", f"number{dark}")
            )
    what = "observed |2C − 1|" if decided else "observed score for the preferred document"
    low_end, high_end = ("0", "1") if decided else ("½", "1")
    parts += labels + [svg.rect(12 + 16 * k, 24, 16, 11, f"shade-{k}") for k in range(SHADES)]
    parts += [svg.text(12, 16, what, "label", "start"), svg.text(12, 50, low_end, "tick", "start")]
    parts.append(svg.text(12 + 16 * SHADES, 50, high_end, "tick", "end"))
    parts.append(svg.text((x.start + x.stop) / 2, 262, "P(the preferred document is better), from 0 to 1", "label"))
    return svg.picture(270.0, f"segments of the triangle: {what}", *parts)


def _bounds(rows: Sequence[Segment]) -> list[tuple[float, float, float, float]]:
    """Bounds of the segments (E[C] from and to, E|C| from and to), stretched to meet halfway and fill the triangle."""
    columns = [[row for row in rows if row.column == c] for c in sorted({row.column for row in rows})]
    found = []
    for c, column in enumerate(columns):
        low = 0.0 if c == 0 else _between(columns[c - 1], column)
        high = 0.5 if c == len(columns) - 1 else _between(column, columns[c + 1])
        for k, row in enumerate(column):
            start = 0.0 if k == 0 else (column[k - 1].decided_high + row.decided_low) / 2
            stop = 1.0 if k == len(column) - 1 else (row.decided_high + column[k + 1].decided_low) / 2
            found.append((low, high, start, stop))
    return found


def _between(column: Sequence[Segment], after: Sequence[Segment]) -> float:
    return (max(one.mean_high for one in column) + min(one.mean_low for one in after)) / 2


def _cut(mean_low: float, mean_high: float, low: float, high: float) -> list[Corner]:
    """Corners (P_A, P_B) of what lies between two E[C] and two E|C|, without what is below P_B = 0."""
    around = [(mean_low, low), (mean_high, low), (mean_high, high), (mean_low, high)]
    corners = [((s - (2 * mean - 1)) / 2, (s + (2 * mean - 1)) / 2) for mean, s in around]
    kept: list[Corner] = []
    for (a, b), (c, d) in zip(corners, [*corners[1:], corners[0]], strict=True):
        if b >= 0:
            kept.append((a, b))
        if (b < 0) != (d < 0):
            kept.append((a + (c - a) * b / (b - d), 0.0))
    return kept


def _area(corners: Sequence[Corner]) -> float:
    turned = [*corners[1:], corners[0]]
    return abs(sum(a * d - c * b for (a, b), (c, d) in zip(corners, turned, strict=True))) / 2


def _middle(corners: Sequence[Corner]) -> Corner:
    """The centroid of a polygon."""
    turned, area, a_sum, b_sum = [*corners[1:], corners[0]], 0.0, 0.0, 0.0
    for (a, b), (c, d) in zip(corners, turned, strict=True):
        cross = a * d - c * b
        area, a_sum, b_sum = area + cross, a_sum + (a + c) * cross, b_sum + (b + d) * cross
    return a_sum / (3 * area), b_sum / (3 * area)


def _polygon(corners: Sequence[Corner], place: Place, css: str, title: str | None = None) -> Markup:
    around = "L".join(svg.xy(*place(*corner)) for corner in corners)
    shape = Markup('<path class="{}" d="M{}Z"').format(css, around)
    return shape + (Markup("/>") if title is None else Markup("><title>{}</title></path>").format(title))


def _frame(x: svg.Axis, y: svg.Axis, corners: Sequence[Corner]) -> Markup:
    return _polygon(corners, lambda a, b: (x(a), y(b)), "frame")


def _wedge(x: svg.Axis, y: svg.Axis, radius: float, css: str) -> Markup:
    """What of the circle around (1, 0) lies in the folded triangle: up to y = 1 − x, and to y = x when it is wide."""
    stop = math.pi * 3 / 4
    if radius > math.sqrt(0.5):  # from y = x on: 1 + r cos = r sin
        stop = math.pi - (math.asin(1 / (radius * math.sqrt(2))) - math.pi / 4)
    arc = [(1 + radius * math.cos(t), radius * math.sin(t)) for t in np.linspace(math.pi, stop, 33)]
    corner = [(1.0, 0.0)] if radius <= math.sqrt(0.5) else [(0.5, 0.5), (1.0, 0.0)]
    return _polygon([*arc, *corner], lambda a, b: (x(a), y(b)), css)


def _fold(points: Points) -> tuple[list[float], list[float], list[float]]:
    turned = [
        (b, a, 1 - c) if b > a else (a, b, c) for a, b, c in zip(points.first, points.second, points.score, strict=True)
    ]
    first, second, score = (list(column) for column in zip(*turned, strict=True))
    return first, second, score


def _dots(
    first: Sequence[float], second: Sequence[float], score: Sequence[float], place: Place, css: str = ""
) -> Markup:
    """Dots in the colour of their score's kind, in _LAYERS rounds."""
    kind = kinds(np.asarray(score, dtype=np.float64))
    parts: list[Markup] = []
    for layer in range(_LAYERS):
        for s in range(len(KINDS)):
            rows = np.flatnonzero(kind[layer::_LAYERS] == s) * _LAYERS + layer
            if len(rows):
                at = "".join(f"M{svg.xy(*place(first[k], second[k]))}h0" for k in rows)
                parts.append(Markup('<path class="{}" d="{}"/>').format(f"dots s{s} {css}".strip(), at))
    return svg.join(parts)


def _chosen(
    first: Sequence[float], second: Sequence[float], score: Sequence[float], chosen: Sequence[bool], place: Place
) -> Markup:
    """All dots faded but the chosen ones."""
    parts = []
    for wanted, css in ((False, "faded"), (True, "")):
        rows = [k for k, one in enumerate(chosen) if one == wanted]
        parts.append(_dots([first[k] for k in rows], [second[k] for k in rows], [score[k] for k in rows], place, css))
    return svg.join(parts)


def _picture(width: float, height: float, label: str, *parts: Markup) -> Markup:
    return Markup('<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        svg.xy(width), svg.xy(height), label, svg.join(parts)
    )
