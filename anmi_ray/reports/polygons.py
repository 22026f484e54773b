"""Geometry of the folded triangle: pieces between two means and two confidences, circles around its sure corner."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from anmi_ray.evaluation.distilled import Segment

Corner = tuple[float, float]


def bounds(rows: Sequence[Segment]) -> list[tuple[float, float, float, float]]:
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


def cut(mean_low: float, mean_high: float, low: float, high: float) -> list[Corner]:
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


def area(corners: Sequence[Corner]) -> float:
    """Of a polygon, by the shoelace formula."""
    turned = [*corners[1:], corners[0]]
    return abs(sum(a * d - c * b for (a, b), (c, d) in zip(corners, turned, strict=True))) / 2


def centroid(corners: Sequence[Corner]) -> Corner:
    """Of a polygon."""
    total = 0.0
    a_sum = 0.0
    b_sum = 0.0
    for (a, b), (c, d) in zip(corners, [*corners[1:], corners[0]], strict=True):
        cross = a * d - c * b
        total += cross
        a_sum += (a + c) * cross
        b_sum += (b + d) * cross
    return a_sum / (3 * total), b_sum / (3 * total)


def wedge(radius: float) -> list[Corner]:
    """What of the circle around (1, 0) lies in the folded triangle: up to y = 1 − x, and to y = x when it is wide."""
    stop = math.pi * 3 / 4
    if radius > math.sqrt(0.5):  # from y = x on: 1 + r cos = r sin
        stop = math.pi - (math.asin(1 / (radius * math.sqrt(2))) - math.pi / 4)
    arc = [(1 + radius * math.cos(t), radius * math.sin(t)) for t in np.linspace(math.pi, stop, 33).tolist()]
    corner = [(1.0, 0.0)] if radius <= math.sqrt(0.5) else [(0.5, 0.5), (1.0, 0.0)]
    return [*arc, *corner]
