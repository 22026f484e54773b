"""A picture of ratings: every document of a query on a line of its own, best first, with its 95 % interval.

Self-contained SVG or HTML for `anmi rate --plot`, in the report's colours; takes plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from anmi_ray.evaluation import svg

Z = 1.96  # half a 95 % interval in standard errors
MAX_DOCUMENTS = 120  # of one query in a picture; more would not be read
_WIDTH, _PAD = 760.0, 20.0
_VALUES = 104.0  # room for "−1,234 ± 567"
_NAME = 30  # characters of a document's id; the tooltip has all of it
_COLOURS = ("main", "second")  # ordinary documents, known positives


@dataclass(frozen=True)
class Ladder:
    """One query's ratings, float64[D] in Elo points; names [D]; known bool[D] known positives; component int[D]."""

    query: str
    names: Sequence[str]
    rating: NDArray[np.float64]
    std_err: NDArray[np.float64]
    known: NDArray[np.bool_]
    component: NDArray[np.int32]


def figure(ladder: Ladder) -> tuple[float, Markup]:
    """(height, shapes) of one query's picture, _WIDTH wide, its top at 0."""
    rows = np.argsort(-ladder.rating, kind="stable")[:MAX_DOCUMENTS]
    rows = rows[np.argsort(ladder.component[rows], kind="stable")]
    step = 24.0 if len(rows) <= 30 else 17.0
    left = _PAD + 14.0 + 6.9 * max(len(_short(ladder.names[int(i)])) for i in rows)
    tall = len(rows) > 40  # the axis below is out of sight: one above too
    right, top = _WIDTH - _PAD - _VALUES, 92.0 if tall else 74.0
    half = Z * ladder.std_err[rows]
    ends = np.concatenate([ladder.rating[rows] - half, ladder.rating[rows] + half])
    x = svg.axis(ends.tolist(), left, right, 0.03, zero=True)
    breaks = np.flatnonzero(np.diff(ladder.component[rows])) + 1  # a new component starts here
    y = top + step * (np.arange(len(rows)) + 0.5) + 10.0 * np.searchsorted(breaks, np.arange(len(rows)), "right")
    bottom = float(y[-1]) + step / 2 + 4
    parts = [
        svg.bottom_axis(x, bottom, top - 4, "rating in Elo points with its 95 % interval; 0 is the mean"),
        svg.line(x(0.0), bottom, x(0.0), top - 4, "reference"),
        *(
            svg.line(_PAD, float(y[k]) - step / 2 - 5, _WIDTH - _PAD, float(y[k]) - step / 2 - 5, "axis")
            for k in breaks
        ),
    ]
    if tall:
        tick = svg.tick_step(x.low, x.high, 6)
        parts += [svg.text(x(value), top - 11, svg.number(value, tick)) for value in x.ticks(6)]
    for k, i in enumerate(rows):
        parts.append(_row(ladder, int(i), float(y[k]), x))
    parts += [_title(ladder, len(rows), len(np.unique(ladder.component)))]
    return bottom + 56.0, svg.join(parts)


def _row(ladder: Ladder, i: int, y: float, x: svg.Axis) -> Markup:
    rating, half = float(ladder.rating[i]), Z * float(ladder.std_err[i])
    css = _COLOURS[int(ladder.known[i])]
    title = f"{ladder.names[i]}: {rating:.1f} [{rating - half:.1f}, {rating + half:.1f}]"
    value = f"{svg.number(rating, 1.0)} ± {svg.number(half, 1.0)}"
    return svg.join(
        [
            svg.text(x.start - 12, y + 4.5, _short(ladder.names[i]), "name", "end"),
            svg.line(x(rating - half), y, x(rating + half), y, f"whisker {css}"),
            svg.circle(x(rating), y, 4.2, f"dot {css}", title),
            svg.text(_WIDTH - _PAD, y + 4.5, value, "value", "end"),
        ]
    )


def _title(ladder: Ladder, shown: int, groups: int) -> Markup:
    count = len(ladder.names)
    said = f"{count:,} documents" if shown == count else f"the first {shown} of {count:,} documents"
    if groups > 1:
        said += f" in {groups} groups that no comparison connects: a group's mean is 0, groups are not comparable"
    parts = [svg.text(_PAD, 32, f"query {_short(ladder.query, 60)}", "title", "start")]
    parts += [svg.text(_PAD, 52, said, "label", "start")]
    if ladder.known.any():
        parts += [
            svg.circle(_WIDTH - _PAD - 116, 28, 4.2, "dot second"),
            svg.text(_WIDTH - _PAD, 32, "known positive", "label", "end"),
        ]
    return svg.join(parts)


def _short(name: str, limit: int = _NAME) -> str:
    """The id, or its beginning and end where it is long."""
    return name if len(name) <= limit else f"{name[: limit - 11]}…{name[-10:]}"


def to_svg(ladders: Sequence[Ladder]) -> str:
    """One SVG file with the pictures below one another, in fixed colours, for any viewer."""
    parts, y = [], 0.0
    for ladder in ladders:
        height, shapes = figure(ladder)
        parts.append(Markup('<g transform="translate(0 {})">{}</g>').format(svg.xy(y), shapes))
        y += height
    return svg.standalone(_WIDTH, y, svg.join(parts), _EXTRA)


def to_html(ladders: Sequence[Ladder], heading: str, note: str) -> str:
    """One page with the pictures below one another; it loads nothing."""
    cards = []
    for ladder in ladders:
        height, shapes = figure(ladder)
        cards.append(svg.card(_WIDTH, height, f"ratings of query {ladder.query}", shapes))
    return svg.page(heading, note, cards, _EXTRA)


_EXTRA = """
svg .title { font-size: 16px; font-weight: 600; fill: var(--ink); }
svg .name { fill: var(--ink); } svg .name, svg .value { font-size: 12.5px; }
svg .whisker.second { stroke: var(--second); }
"""
