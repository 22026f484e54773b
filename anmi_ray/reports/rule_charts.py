"""Charts of compared mining rules: weights by gap, and the optimal gap over the cost of a false negative."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import altair as alt
from markupsafe import Markup

from anmi_ray.evaluation.significance import Estimate
from anmi_ray.reports.charts import Limits, bands_behind
from anmi_ray.reports.theme import MAIN, SECOND, THIRD, Canvas

_PANEL = 330.0
_POSTULATED = (150.0, 300.0)  # Theorem 12's range of the optimal gap, Elo points
_COSTS = [0.1, 0.3, 1, 3, 10, 30]


def panel(
    name: str,
    weights: Sequence[Estimate],
    taken: Sequence[Estimate],
    thresholds: Sequence[float],
    edges: Sequence[float],
    bands: Sequence[Limits],
) -> Markup:
    """A rule's mean weight, and the share that it took, by gap; the bands are shaded, discovered thresholds dashed."""
    canvas = Canvas(f"{name}: weight and share taken by gap", 132.0, _PANEL)
    low = edges[0]
    high = edges[-1]
    axis = alt.Axis(title="gap below the anchor (Elo)", grid=False, tickCount=5)
    x = alt.X("x:Q", scale=alt.Scale(domain=[low, high], nice=False), axis=axis)
    y = alt.Y("mean:Q", scale=alt.Scale(domain=[0, 1]), axis=alt.Axis(title=None, values=[0, 0.5, 1]))
    layers = bands_behind(canvas, bands, x, (low, high), named=False)
    inside = [{"at": at} for at in thresholds if low <= at <= high]
    layers.append(canvas.rows(inside).mark_rule(color=THIRD, strokeDash=[5, 3], strokeWidth=1.6).encode(x="at:Q"))
    for bins, colour in ((taken, SECOND), (weights, MAIN)):
        runs, single = runs_of(edges, bins)
        rows = canvas.rows(runs).encode(x=x, detail="run:N")
        layers.append(rows.mark_area(color=colour, opacity=1, fillOpacity=0.22).encode(y=alt.Y("low:Q"), y2="high"))
        layers.append(rows.mark_line(color=colour).encode(y=y))
        layers.append(canvas.rows(single).mark_circle(color=colour, size=18, opacity=1).encode(x=x, y=y))
    return canvas.draw(*layers)


def runs_of(edges: Sequence[float], bins: Sequence[Estimate]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Means at the middles of their bins, in runs without a gap, and those that stand alone.

    A bin without an interval breaks the line.
    """
    runs: list[list[dict[str, Any]]] = [[]]
    for (start, stop), one in zip(pairwise(edges), bins, strict=True):
        if one.mean is None or one.low is None or one.high is None:
            runs.append([])
            continue
        mean, low, high = (min(max(float(value), 0.0), 1.0) for value in (one.mean, one.low, one.high))
        runs[-1].append({"x": (start + stop) / 2, "mean": mean, "low": low, "high": high, "run": len(runs)})
    return [row for run in runs for row in run if len(run) > 1], [run[0] for run in runs if len(run) == 1]


def optimal_gap(costs: Sequence[float], gaps: Sequence[Sequence[float | None]]) -> Markup:
    """The optimal gap over the cost of a false negative, at the median gap error (a line) and between the quartiles.

    gaps: at the first quartile, the median and the third quartile of the errors; None where no gap is worth its danger.
    """
    canvas = Canvas("optimal gap over the cost of a false negative", 210.0)
    low, middle, high = gaps
    x = alt.X(
        "cost:Q",
        scale=alt.Scale(type="log", domain=[costs[0], costs[-1]], nice=False),
        axis=alt.Axis(title="λ, cost of a false negative (bits)", values=_COSTS, format="~g"),
    )
    y = alt.Y("gap:Q", scale=alt.Scale(zero=True), axis=alt.Axis(title=None, tickCount=6))
    line = [{"cost": cost, "gap": gap} for cost, gap in zip(costs, middle, strict=True) if gap is not None]
    between = [
        {"cost": cost, "gap": start, "to": stop}
        for cost, start, stop in zip(costs, low, high, strict=True)
        if start is not None and stop is not None
    ]
    zone = canvas.rows([{"gap": _POSTULATED[0], "to": _POSTULATED[1], "said": "150 to 300, as postulated"}])
    return canvas.draw(
        zone.mark_rect(color="var(--k-goldilocks)", opacity=1, fillOpacity=0.1).encode(y=y, y2="to"),
        zone.mark_text(align="right", dx=-4, dy=12, fontSize=10.5).encode(
            x=alt.value("width"), y="to:Q", text="said:N"
        ),
        canvas.rows(between).mark_area(color=MAIN, opacity=1, fillOpacity=0.22).encode(x=x, y=y, y2="to"),
        canvas.rows(line).mark_line(color=MAIN).encode(x=x, y=y),
        title="optimal gap (Elo)",
    )
