"""The report's figures as inline SVG. Each takes plain numbers and returns markup; none reads data or settings.

Equal numbers give equal bytes: no dates, no random ids, coordinates to a tenth of a unit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from anmi_ray.evaluation import svg
from anmi_ray.evaluation.significance import SystemComparison

KNOWN_CATEGORIES = ("danger", "soft", "goldilocks", "medium", "easy", "random")
Series = Sequence[tuple[str, str, Sequence[tuple[float, float]]]]  # (css class, name, points)
MAX_POINTS = 1_500
MAX_BARS = 440
STRIP = 240.0


def category_css(category: str) -> str:
    """The colour class of a negative's category; unknown ones share one."""
    return f"k-{category}" if category in KNOWN_CATEGORIES else "k-other"


def quality(rows: Sequence[SystemComparison], baseline: str, system: str, level: float) -> Markup:
    """Mean of one measure per system with its interval; a dashed line marks the baseline."""
    left, right, top, height = 132.0, 64.0, 12.0, 36.0
    bottom = top + height * len(rows)
    x = svg.axis([value for row in rows for value in (row.low, row.high)], left, svg.WIDTH - right, 0.06)
    parts = [svg.bottom_axis(x, bottom, top, f"mean {rows[0].measure} over queries, {100 * level:.0f} % interval")]
    for i, row in enumerate(rows):
        y = top + height * (i + 0.5)
        css = "main" if row.system == system else "base" if row.system == baseline else "rest"
        if row.system == baseline:
            parts.append(svg.line(x(row.mean), top, x(row.mean), bottom, "reference"))
        title = f"{row.system}: {row.mean:.4f} [{row.low:.4f}, {row.high:.4f}], {row.queries} queries"
        parts += [
            svg.text(0, y + 4.5, row.system, f"name {css}", "start"),
            svg.line(x(row.low), y, x(row.high), y, f"whisker {css}"),
            svg.circle(x(row.mean), y, 5.5, f"dot {css}", title),
            svg.text(svg.WIDTH - right + 14, y + 4.5, f"{row.mean:.3f}", f"value {css}", "start"),
        ]
    return svg.picture(bottom + 42, f"{rows[0].measure} by system", *parts)


def per_query(difference: NDArray[np.float64], measure: str, system: str, baseline: str) -> Markup:
    """Differences of all queries, largest first: how many gain, how many lose, and how much."""
    ordered = np.sort(difference)[::-1]
    if len(ordered) > MAX_BARS:  # as many equally spaced order statistics as there are pixels
        ordered = ordered[np.linspace(0, len(ordered) - 1, MAX_BARS).round().astype(np.int64)]
    left, top, bottom = 46.0, 28.0, 212.0
    y = svg.axis(ordered, bottom, top, 0.04, zero=True)
    width = (svg.WIDTH - left) / len(ordered)
    bars = [
        svg.rect(
            left + i * width, min(y(v), y(0)), max(width - 0.4, 0.6), abs(y(v) - y(0)), "gain" if v > 0 else "loss"
        )
        for i, v in enumerate(ordered)
        if v != 0
    ]
    return svg.picture(
        246.0,
        f"difference in {measure} per query",
        svg.left_axis(y, left, svg.WIDTH, f"{measure}: {system} − {baseline}"),
        svg.join(bars),
        svg.line(left, y(0), svg.WIDTH, y(0), "axis"),
        svg.text((left + svg.WIDTH) / 2, 236, "queries, from largest gain to largest loss", "label"),
    )


def scatter(x_values: NDArray[np.float64], y_values: NDArray[np.float64], x_label: str, y_label: str) -> Markup:
    """Points with the line y = x; at most MAX_POINTS of them are drawn, evenly picked."""
    picked = np.unique(np.linspace(0, len(x_values) - 1, min(len(x_values), MAX_POINTS)).round().astype(np.int64))
    left, top, bottom = 56.0, 28.0, 330.0
    x = svg.axis(x_values, left, svg.WIDTH - 6, 0.04)
    y = svg.axis(y_values, bottom, top, 0.04)
    points = [svg.circle(x(a), y(b), 2.2, "point") for a, b in zip(x_values[picked], y_values[picked], strict=True)]
    low, high = max(x.low, y.low), min(x.high, y.high)
    return svg.picture(
        372.0,
        f"{y_label} against {x_label}",
        svg.bottom_axis(x, bottom, top, x_label),
        svg.left_axis(y, left, svg.WIDTH - 6, y_label),
        svg.join(points),
        svg.line(x(low), y(low), x(high), y(high), "reference") if low < high else Markup(),
    )


def histogram(
    groups: Mapping[str, NDArray[np.float64]],
    chosen: Mapping[str, NDArray[np.float64]],
    bands: Sequence[tuple[str, float | None, float | None]],
    label: str,
) -> Markup:
    """Stacked counts of each group's values over the shaded `bands` (name, low, high; None is open).

    Where some are `chosen`, those stand solid in front of all, which fade.
    """
    everything = np.concatenate([np.asarray(values, dtype=np.float64) for values in groups.values()])
    limits = [bound for _, low, high in bands for bound in (low, high) if bound is not None]
    low, high = (float(v) for v in np.quantile(everything, [0.002, 0.998]))
    low, high = min([low, *(bound - 60 for bound in limits)]), max([high, *(bound + 60 for bound in limits)])
    bins = 48
    edges = np.linspace(low, high, bins + 1)
    # what lies beyond the picture counts in its first or last bar
    counts = {name: np.histogram(np.clip(values, low, high), edges)[0] for name, values in groups.items()}
    front = {name: np.histogram(np.clip(v, low, high), edges)[0] for name, v in chosen.items() if len(v)}
    left, top, bottom = 52.0, 44.0, 262.0
    x = svg.Axis(low, high, left, svg.WIDTH - 4)
    y = svg.axis([float(sum(counts.values()).max())], bottom, top, 0.06, zero=True)  # type: ignore[union-attr]
    parts = [_band(x, top, bottom, *band) for band in bands]
    parts.append(svg.left_axis(y, left, svg.WIDTH - 4, "documents", 4))
    parts += [_stack(x, y, edges, counts, "faded" if front else ""), _stack(x, y, edges, front, "")]
    parts.append(svg.bottom_axis(x, bottom, bottom, label))
    return svg.picture(302.0, f"distribution of {label}", *parts)


def _stack(
    x: svg.Axis, y: svg.Axis, edges: NDArray[np.float64], counts: Mapping[str, NDArray[np.int64]], css: str
) -> Markup:
    """Bars of every group on top of one another, known categories in their order."""
    base = np.zeros(len(edges) - 1)
    parts: list[Markup] = []
    for name in sorted(counts, key=lambda n: (KNOWN_CATEGORIES.index(n) if n in KNOWN_CATEGORIES else 99, n)):
        for b in np.flatnonzero(counts[name]):
            x0, x1, y0, y1 = (
                x(float(edges[b])),
                x(float(edges[b + 1])),
                y(float(base[b])),
                y(float(base[b] + counts[name][b])),
            )
            title = f"{name}: {counts[name][b]:,} between {edges[b]:.0f} and {edges[b + 1]:.0f}"
            parts.append(svg.rect(x0 + 0.5, y1, x1 - x0 - 1, y0 - y1, f"{category_css(name)} {css}".strip(), title))
        base += counts[name]
    return svg.join(parts)


def _band(x: svg.Axis, top: float, bottom: float, name: str, low: float | None, high: float | None) -> Markup:
    start = x(x.low if low is None else max(low, x.low))
    stop = x(x.high if high is None else min(high, x.high))
    if stop - start < 0.5:
        return Markup()
    shade = svg.rect(start, top - 14, stop - start, bottom - top + 14, f"band {category_css(name)}")
    edge = Markup() if low is None or low <= x.low else svg.line(start, bottom, start, top - 14, "edge")
    title = svg.text((start + stop) / 2, top - 3, name, "small") if stop - start > 5.4 * len(name) else Markup()
    return shade + edge + title


def lines(
    series: Series, x_label: str, y_label: str, zero: bool = False, mark: tuple[float, float] | None = None
) -> Markup:
    """Curves over one pair of axes with a legend when there are several; `mark` rings one point."""
    points = [point for _, _, curve in series for point in curve]
    left, top, bottom = 52.0, 34.0 if len(series) < 2 else 54.0, 232.0
    x = svg.axis([p[0] for p in points], left, svg.WIDTH - 8, 0.01)
    y = svg.axis([p[1] for p in points], bottom, top, 0.08, zero=zero)
    parts = [svg.bottom_axis(x, bottom, top, x_label), svg.left_axis(y, left, svg.WIDTH - 8, y_label)]
    for css, _, curve in series:
        parts.append(svg.path([(x(a), y(b)) for a, b in curve], f"curve {css}"))
        if len(curve) <= 40:
            parts += [svg.circle(x(a), y(b), 2.6, f"dot {css}", f"{svg.number(a)}: {b:.4g}") for a, b in curve]
    if len(series) > 1:
        parts.append(svg.legend([(css, name) for css, name, _ in series], left, 34))
    if mark is not None:
        parts.append(svg.circle(x(mark[0]), y(mark[1]), 7, "ring"))
    return svg.picture(274.0, f"{y_label} over {x_label}", *parts)


def smooth(points: Sequence[tuple[float, float]], target: int = 160) -> list[tuple[float, float]]:
    """At most about `target` points: means of equal runs of neighbours, for a curve of thousands of steps."""
    run = -(-len(points) // target)
    if run <= 1:
        return list(points)
    array = np.asarray(points, dtype=np.float64)
    return [
        (float(part[:, 0].mean()), float(part[:, 1].mean())) for part in np.split(array, range(run, len(array), run))
    ]


def interval(
    value: float, error: float, low: float, high: float, css: str, truth: float | None, level_z: float
) -> Markup:
    """One row's strip: an estimate with its interval on a shared scale [low, high], and the truth as a tick."""
    x = svg.Axis(low, high, 6, STRIP - 6)
    first, last = max(value - level_z * error, low), min(value + level_z * error, high)
    parts = [svg.line(x(first), 11, x(last), 11, f"whisker {css}"), svg.circle(x(value), 11, 5, f"dot {css}")]
    if low <= 0 <= high:
        parts.insert(0, svg.line(x(0), 0, x(0), 22, "grid"))
    if truth is not None and low <= truth <= high:
        parts.append(svg.line(x(truth), 3, x(truth), 19, "truth"))
    return Markup('<svg class="strip" viewBox="0 0 {} 22" aria-hidden="true">{}</svg>').format(
        svg.xy(STRIP), svg.join(parts)
    )
