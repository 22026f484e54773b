"""Pictures of `anmi compare-rules`: false negatives by rule, weights by gap, overlap, the optimal gap. Inline SVG.

Each takes plain numbers and returns markup; colours are CSS classes, so that a picture follows light and dark.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from markupsafe import Markup

from anmi_ray.evaluation import svg
from anmi_ray.evaluation.figures import category_css
from anmi_ray.evaluation.report import Band
from anmi_ray.evaluation.rules_report import Estimate, OptimalGap, Overlap, Rule

SHADES = 10
_WIDTH = 760.0
_ROW = 30.0
_LETTER = 7.2  # width of a letter of a name
_NUMBERED = 20  # up to so many rules the cells hold their number
_PANEL = (330.0, 178.0)
_SHARES = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 1.0)
_POSTULATED = (150.0, 300.0)  # Theorem 12's range of the optimal gap


def _picture(width: float, height: float, label: str, *parts: Markup, css: str = "figure wide") -> Markup:
    return Markup('<svg class="{}" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        css, svg.xy(width), svg.xy(height), label, svg.join(parts)
    )


def _area(low: Sequence[tuple[float, float]], high: Sequence[tuple[float, float]], css: str) -> Markup:
    """What lies between two lines over the same places."""
    around = [svg.xy(x, y) for x, y in (*high, *reversed(low))]
    return Markup('<path class="area {}" d="M{}Z"/>').format(css, "L".join(around)) if len(low) > 1 else Markup()


def _percent(value: float | None) -> str:
    if value is None:
        return "—"
    return f"{100 * value:.{1 if value >= 0.00995 or not value else 2}f}"


def false_negatives(rules: Sequence[Rule]) -> Markup:
    """Per rule the estimated share with its interval, and below it the true one where it is known."""
    known = any(rule.true is not None for rule in rules)
    left, right, top = 14.0 + _LETTER * max(len(rule.rule) for rule in rules), _WIDTH - 112.0, 34.0
    bottom = top + _ROW * len(rules)
    estimates = [one for rule in rules for one in (rule.estimated, rule.true) if one is not None]
    ends = [value for one in estimates for value in (one.mean, one.high) if value is not None]
    x = svg.Axis(0.0, math.sqrt(max([*ends, 0.01]) * 1.05), left, right)  # of the root: small shares stay apart
    parts = [_shares_axis(x, bottom, top), svg.legend(_legend(known), left, 16)]
    for k, rule in enumerate(rules):
        y = top + _ROW * (k + 0.5)
        parts.append(svg.text(0, y + 4.5, rule.rule, "name", "start"))
        parts.append(_whisker(x, y - (5 if known else 0), rule.estimated, "main", f"{rule.rule}, estimated"))
        said = _percent(rule.estimated.mean)
        if known:
            parts.append(_whisker(x, y + 5, rule.true, "second", f"{rule.rule}, true"))
            said += f" · {_percent(rule.true.mean if rule.true else None)}"
        parts.append(svg.text(_WIDTH, y + 4.5, f"{said} %" if rule.estimated.n else "took none", "value", "end"))
    what = "estimated and true share of false negatives by rule" if known else "estimated share of false negatives"
    return _picture(_WIDTH, bottom + 44, what, *parts)


def _legend(known: bool) -> list[tuple[str, str]]:
    return [("main", "estimated from the ratings"), *([("second", "by the truth")] if known else [])]


def _shares_axis(x: svg.Axis, bottom: float, top: float) -> Markup:
    """Ticks at round shares on an axis of their roots."""
    parts, last = [], -math.inf
    for share in _SHARES:
        place = x(math.sqrt(share))
        if math.sqrt(share) <= x.high and place - last >= 34:
            label = f"{100 * share:g}"
            parts += [svg.line(place, bottom, place, top, "grid"), svg.text(place, bottom + 16, label)]
            last = place
    label = "% of the weight, 95 % interval (the axis is of the square root)"
    return svg.join(
        [
            *parts,
            svg.line(x.start, bottom, x.stop, bottom, "axis"),
            svg.text(x.start, bottom + 36, label, "label", "start"),
        ]
    )


def _whisker(x: svg.Axis, y: float, found: Estimate | None, css: str, name: str) -> Markup:
    if found is None or found.mean is None:
        return Markup()
    said, parts = f"{name}: {_percent(found.mean)} %", []
    if found.low is not None and found.high is not None:
        ends = (x(math.sqrt(max(end, 0.0))) for end in (found.low, found.high))
        parts.append(svg.line(next(ends), y, next(ends), y, f"whisker {css}"))
        said += f" [{_percent(found.low)}, {_percent(found.high)}]"
    return svg.join([*parts, svg.circle(x(math.sqrt(max(found.mean, 0.0))), y, 4.2, f"dot {css}", said)])


def panel(rule: Rule, edges: Sequence[float], bands: Sequence[Band]) -> Markup:
    """A rule's mean weight, and the share that it took, by gap; the bands are shaded, discovered thresholds drawn."""
    width, height = _PANEL
    left, top, bottom = 30.0, 8.0, height - 38.0
    x = svg.Axis(edges[0], edges[-1], left, width - 6)
    y = svg.Axis(0.0, 1.0, bottom, top)
    parts = [_band(x, top, bottom, band) for band in bands]
    for share, label in ((0.0, "0"), (0.5, "½"), (1.0, "1")):
        parts.append(svg.line(left, y(share), x.stop, y(share), "grid"))
        parts.append(svg.text(left - 6, y(share) + 4, label, "tick", "end"))
    parts.append(svg.bottom_axis(x, bottom, bottom, "gap below the anchor (Elo)", 5))
    parts += [svg.line(x(at), bottom, x(at), top, "threshold") for at in rule.thresholds if x.low <= at <= x.high]
    parts += [_curve(x, y, edges, rule.taken, "second"), _curve(x, y, edges, rule.weights, "main")]
    return _picture(width, height, f"{rule.rule}: weight and share taken by gap", *parts, css="figure")


def _band(x: svg.Axis, top: float, bottom: float, band: Band) -> Markup:
    start = x(x.low if band.low is None else min(max(band.low, x.low), x.high))
    stop = x(x.high if band.high is None else min(max(band.high, x.low), x.high))
    if stop - start < 0.5:
        return Markup()
    return svg.rect(start, top, stop - start, bottom - top, f"band {category_css(band.name)}", band.name)


def _curve(x: svg.Axis, y: svg.Axis, edges: Sequence[float], bins: Sequence[Estimate], css: str) -> Markup:
    """Means at the middles of their bins with their intervals; a bin without an interval breaks the line."""
    parts: list[Markup] = []
    run: list[tuple[float, Estimate]] = []
    for (low, high), one in zip([*pairwise(edges), (0.0, 0.0)], [*bins, None], strict=True):
        if one is not None and one.mean is not None and one.low is not None and one.high is not None:
            run.append((x((low + high) / 2), one))
            continue
        lower, upper, middle = (
            [(at, y(min(max(float(getattr(point, end)), 0.0), 1.0))) for at, point in run]
            for end in ("low", "high", "mean")
        )
        parts += [_area(lower, upper, css), svg.path(middle, f"curve {css}")]
        if len(run) == 1:
            parts.append(svg.circle(*middle[0], 2.2, f"dot {css}"))
        run = []
    return svg.join(parts)


def overlap(names: Sequence[str], found: Overlap) -> Markup:
    """How much of what one rule takes another takes too; columns are numbered as the rows, darker is more."""
    count = len(names)
    left, top = 40.0 + _LETTER * max(map(len, names)), 26.0
    cell = min(44.0, (_WIDTH - left) / count)
    parts: list[Markup] = []
    for i, name in enumerate(names):
        y = top + cell * i
        parts.append(svg.text(left - 34, y + cell / 2 + 4.5, name, "name", "end"))
        parts.append(svg.text(left - 10, y + cell / 2 + 4.5, i + 1, "tick", "end"))
        parts.append(svg.text(left + cell * (i + 0.5), top - 8, i + 1, "tick" if cell > 20 else "small"))
        parts += [_cell(names, found, i, j, left + cell * j, y, cell) for j in range(count)]
    y = top + cell * count + 18
    parts += [svg.rect(left + 18 * k, y, 18, 12, f"shade-{k}") for k in range(SHADES)]
    parts.append(svg.text(left - 6, y + 10.5, "0 %", "tick", "end"))
    parts.append(svg.text(left + 18 * SHADES + 6, y + 10.5, "100 % of the negatives in common", "tick", "start"))
    return _picture(_WIDTH, y + 24, "negatives in common of every two rules", *parts)


def _cell(names: Sequence[str], found: Overlap, i: int, j: int, x: float, y: float, size: float) -> Markup:
    mean, low, high = found.mean[i][j], found.low[i][j], found.high[i][j]
    if i == j or mean is None or math.isnan(mean):
        return svg.rect(x + 0.5, y + 0.5, size - 1, size - 1, "empty")
    shade = min(int(SHADES * mean), SHADES - 1)
    ends = "" if low is None or high is None or math.isnan(low) else f" [{100 * low:.1f}, {100 * high:.1f}]"
    title = f"{names[i]} and {names[j]}: {100 * mean:.1f} %{ends} in common, {found.queries[i][j]:,} queries"
    shape = svg.rect(x + 0.5, y + 0.5, size - 1, size - 1, f"shade-{shade}", title)
    if len(names) > _NUMBERED:
        return shape
    dark = " dark" if shade >= 0.6 * SHADES else ""
    return shape + svg.text(x + size / 2, y + size / 2 + 4.5, f"{100 * mean:.0f}", f"cell{dark}")


def optimal_gap(found: OptimalGap) -> Markup:
    """The optimal gap over the cost of a false negative, at the median gap error and between the quartiles."""
    left, top, bottom = 52.0, 34.0, 250.0
    x = svg.Axis(math.log10(found.costs[0]), math.log10(found.costs[-1]), left, svg.WIDTH - 8)
    known = [gap for gaps in found.gaps for gap in gaps if gap is not None]
    y = svg.axis([*known, _POSTULATED[1]], bottom, top, 0.06, zero=True)
    curves = [
        [(x(math.log10(cost)), y(gap)) for cost, gap in zip(found.costs, gaps, strict=True) if gap is not None]
        for gaps in found.gaps
    ]
    lower, upper = _POSTULATED
    parts = [
        svg.rect(left, y(upper), x.stop - left, y(lower) - y(upper), "band k-goldilocks", "150 to 300 points"),
        svg.text(x.stop - 4, y(upper) + 14, "150 to 300, as postulated", "small", "end"),
        svg.left_axis(y, left, svg.WIDTH - 8, "optimal gap (Elo)"),
    ]
    for cost in (0.1, 0.3, 1, 3, 10, 30):
        place = x(math.log10(cost))
        parts += [svg.line(place, bottom, place, top, "grid"), svg.text(place, bottom + 16, f"{cost:g}")]
    parts += [
        svg.line(left, bottom, x.stop, bottom, "axis"),
        svg.text((left + x.stop) / 2, bottom + 35, "λ, cost of a false negative (bits)", "label"),
        _area(curves[0], curves[2], "main"),
        svg.path(curves[1], "curve main"),
    ]
    return _picture(svg.WIDTH, bottom + 42, "optimal gap over the cost of a false negative", *parts, css="figure")
