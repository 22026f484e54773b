"""Pictures of an audit: every judge's position bias with its interval, and how often each two judges agree.

Self-contained SVG or HTML for `anmi audit --plot`, in the report's colours; takes plain numbers. Letter: J judges.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from anmi_ray.evaluation import svg

_WIDTH, _PAD = 760.0, 20.0
_ROW = 26.0
_NAME = 30  # characters of a judge's name; the tooltip has all of it
_SHADES = 10
_NUMBERED = 14  # up to so many judges the cells hold their number


@dataclass(frozen=True)
class Leaning:
    """A judge's preference for the document shown first, less a half, with its interval; None where not known.

    first and second count the pairs with unlike verdicts that went to what was shown first, or second.
    """

    judge: str
    bias: float | None
    low: float | None
    high: float | None
    pairs: int
    first: int
    second: int


@dataclass(frozen=True)
class Agreement:
    """share float[J, J] of the pairs decided by both judges that went the same way, NaN where there are none."""

    judges: Sequence[str]
    share: NDArray[np.float64]
    pairs: NDArray[np.int64]


class Picture(NamedTuple):
    """Shapes with their top left at 0, 0; label is what a screen reader says."""

    width: float
    height: float
    label: str
    shapes: Markup


def leanings(rows: Sequence[Leaning]) -> Picture:
    """The position biases; 0 is a judge that the order leaves cold."""
    left = _PAD + 14.0 + 7.0 * max(len(_short(row.judge)) for row in rows)
    right, top = _WIDTH - _PAD - 246.0, 84.0
    ends = [100 * v for row in rows for v in (row.bias, row.low, row.high) if v is not None]
    x = svg.axis(ends, left, right, 0.05, zero=True)
    bottom = top + _ROW * len(rows) + 4
    parts = [
        svg.text(_PAD, 32, "Position bias", "title", "start"),
        svg.text(
            _PAD, 52, "preference for the document shown first, above ½, with its 95 % interval", "label", "start"
        ),
        svg.text(_WIDTH - _PAD - 106, top - 10, "% above ½", "tick", "end"),
        svg.text(_WIDTH - _PAD, top - 10, "first : second", "tick", "end"),
        svg.bottom_axis(x, bottom, top - 4, "percentage points"),
        svg.line(x(0.0), bottom, x(0.0), top - 4, "reference"),
    ]
    for k, row in enumerate(rows):
        parts.append(_leaning(row, top + _ROW * (k + 0.5), x))
    note = "first : second counts the pairs whose verdict changed with the order, by the side that it went to"
    parts.append(svg.text(_PAD, bottom + 60, note, "label", "start"))
    return Picture(_WIDTH, bottom + 80.0, "position bias of every judge", svg.join(parts))


def _leaning(row: Leaning, y: float, x: svg.Axis) -> Markup:
    name = svg.text(x.start - 12, y + 4.5, _short(row.judge), "name", "end")
    if row.bias is None:
        return name + svg.text(_WIDTH - _PAD, y + 4.5, "no pair in both orders", "value", "end")
    value, said = 100 * row.bias, _signed(100 * row.bias)
    parts = [name]
    if row.low is not None and row.high is not None:
        parts.append(svg.line(x(100 * row.low), y, x(100 * row.high), y, "whisker main"))
        said += f" [{_signed(100 * row.low)}, {_signed(100 * row.high)}]"
    parts += [
        svg.circle(x(value), y, 4.2, "dot main", f"{row.judge}: {said}, {row.pairs:,} pairs"),
        svg.text(_WIDTH - _PAD - 106, y + 4.5, said, "value", "end"),
        svg.text(_WIDTH - _PAD, y + 4.5, f"{row.first:,} : {row.second:,}", "value", "end"),
    ]
    return svg.join(parts)


def matrix(agreement: Agreement) -> Picture:
    """The agreement of every two judges, columns numbered as the rows; darker is more. Many judges widen it."""
    count = len(agreement.judges)
    left = _PAD + 42.0 + 7.0 * max(len(_short(name)) for name in agreement.judges)
    top, cell = 92.0, min(46.0, max(14.0, (_WIDTH - _PAD - left) / count))
    known = agreement.share[~np.isnan(agreement.share)]
    low = min(np.floor(20 * known.min()) / 20, 0.95) if len(known) else 0.5
    high = max(np.ceil(20 * known.max()) / 20, low + 0.05) if len(known) else 1.0
    parts = [
        svg.text(_PAD, 32, "Agreement", "title", "start"),
        svg.text(_PAD, 52, "of the pairs that both judges decided, the share decided alike, in %", "label", "start"),
    ]
    for i, name in enumerate(agreement.judges):
        y = top + cell * i
        parts.append(svg.text(left - 34, y + cell / 2 + 4.5, _short(name), "name", "end"))
        parts.append(svg.text(left - 10, y + cell / 2 + 4.5, i + 1, "tick", "end"))
        parts.append(svg.text(left + cell * (i + 0.5), top - 8, i + 1, "tick" if cell > 20 else "small"))
        parts += [_cell(agreement, i, j, left + cell * j, y, cell, (float(low), float(high))) for j in range(count)]
    bottom = top + cell * count
    shapes = svg.join([*parts, _scale(left, bottom + 18, float(low), float(high))])
    width = max(_WIDTH, left + cell * count + _PAD)
    return Picture(width, bottom + 62.0, "agreement of every two judges", shapes)


def _cell(agreement: Agreement, i: int, j: int, x: float, y: float, size: float, ends: tuple[float, float]) -> Markup:
    share = float(agreement.share[i, j])
    if i == j or np.isnan(share):
        return svg.rect(x + 0.5, y + 0.5, size - 1, size - 1, "empty")
    shade = min(int(_SHADES * (share - ends[0]) / (ends[1] - ends[0])), _SHADES - 1)
    title = f"{agreement.judges[i]} ~ {agreement.judges[j]}: {100 * share:.1f} % of {agreement.pairs[i, j]:,}"
    shape = svg.rect(x + 0.5, y + 0.5, size - 1, size - 1, f"shade-{shade}", title)
    if len(agreement.judges) > _NUMBERED:
        return shape
    dark = " dark" if shade >= 0.7 * _SHADES else ""
    return shape + svg.text(x + size / 2, y + size / 2 + 4.5, f"{100 * share:.0f}", f"cell{dark}")


def _scale(x: float, y: float, low: float, high: float) -> Markup:
    """What the shades stand for."""
    parts = [svg.rect(x + 18 * k, y, 18, 12, f"shade-{k}") for k in range(_SHADES)]
    parts.append(svg.text(x - 6, y + 10.5, f"{100 * low:.0f} %", "tick", "end"))
    parts.append(svg.text(x + 18 * _SHADES + 6, y + 10.5, f"{100 * high:.0f} %", "tick", "start"))
    return svg.join(parts)


def _pictures(rows: Sequence[Leaning], agreement: Agreement | None) -> list[Picture]:
    """What there is to draw; no bias where there is agreement only."""
    drawn = []
    if agreement is None or any(row.bias is not None for row in rows):
        drawn.append(leanings(rows))
    return drawn if agreement is None else [*drawn, matrix(agreement)]


def to_svg(rows: Sequence[Leaning], agreement: Agreement | None) -> str:
    """One SVG file with the pictures below one another, in fixed colours, for any viewer."""
    pictures, parts, y = _pictures(rows, agreement), [], 0.0
    for picture in pictures:
        parts.append(Markup('<g transform="translate(0 {})">{}</g>').format(svg.xy(y), picture.shapes))
        y += picture.height
    return svg.standalone(max(picture.width for picture in pictures), y, svg.join(parts), _EXTRA)


def to_html(rows: Sequence[Leaning], agreement: Agreement | None, heading: str, note: str) -> str:
    """One page with the pictures below one another; it loads nothing."""
    return svg.page(heading, note, [svg.card(*picture) for picture in _pictures(rows, agreement)], _EXTRA)


def _signed(value: float) -> str:
    sign = "+" if round(value, 1) > 0 else ""
    return sign + svg.number(round(value, 1), 0.1)


def _short(name: str) -> str:
    name = name or "(unnamed)"
    return name if len(name) <= _NAME else f"{name[: _NAME - 11]}…{name[-10:]}"


_EXTRA = """
svg .title { font-size: 16px; font-weight: 600; fill: var(--ink); }
svg .name { fill: var(--ink); } svg .name, svg .value { font-size: 12.5px; }
svg .cell { font-size: 12px; fill: var(--ink); } svg .cell.dark { fill: var(--card); }
svg .empty { fill: var(--wash); }
""" + "".join(
    f"svg .shade-{k} {{ fill: var(--main); fill-opacity: {0.06 + 0.94 * k / (_SHADES - 1):.2f}; }}\n"
    for k in range(_SHADES)
)
