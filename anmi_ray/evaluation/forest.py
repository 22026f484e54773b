"""A forest plot: differences from one reference with their intervals, a line a system and a panel a scope.

Self-contained SVG in the report's colours; takes plain numbers.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from anmi_ray.evaluation import svg

_NAME, _PANEL, _GAP, _PAD, _TOP, _ROW = 150.0, 260.0, 28.0, 24.0, 116.0, 26.0
_STYLE = """
svg .head { font-size: 17px; font-weight: 600; fill: var(--ink); } svg .title { font-size: 14.5px; fill: var(--ink); }
svg .name { font-size: 13px; fill: var(--ink); } svg .zero { stroke: var(--ink); stroke-width: 1.2; fill: none; }
svg .band { fill: var(--rule); opacity: .55; } svg .whisker.wide { stroke-width: 1.2; stroke: var(--base); }
svg .whisker.open { stroke: var(--third); } svg .dot.open { fill: var(--third); }
"""


@dataclass(frozen=True)
class Estimate:
    """A difference with its interval; `wide` is a second, wider one, drawn thin; `sure`: it is told apart from 0."""

    value: float
    low: float
    high: float
    wide: tuple[float, float] | None = None
    sure: bool = False


@dataclass(frozen=True)
class Panel:
    """One scope: an estimate a system in the figure's order, and the least difference that it could show, or 0."""

    title: str
    estimates: Sequence[Estimate]
    smallest: float = 0.0


def figure(title: str, notes: Sequence[str], systems: Sequence[str], panels: Sequence[Panel], label: str) -> str:
    """The whole picture as SVG; all panels share one scale, `label` names it."""
    bottom = _TOP + _ROW * len(systems)
    width = 2 * _PAD + _NAME + len(panels) * (_PANEL + _GAP) - _GAP
    parts = [svg.text(_PAD, 34, title, "head", "start")]
    parts += [svg.text(_PAD, 57 + 18 * row, note, "label", "start") for row, note in enumerate(notes)]
    parts += [svg.text(_PAD, _middle(row) + 4, name, "name", "start") for row, name in enumerate(systems)]
    ends = [end for panel in panels for one in panel.estimates for end in (one.low, one.high, *(one.wide or ()))]
    scale = svg.axis([*ends, *(end for panel in panels for end in (-panel.smallest, panel.smallest))], 0.0, _PANEL)
    for number, panel in enumerate(panels):
        left = _PAD + _NAME + number * (_PANEL + _GAP)
        x = svg.Axis(scale.low, scale.high, left, left + _PANEL)
        parts.append(_panel(panel, systems, x, bottom, label))
    return svg.standalone(width, bottom + 52, svg.join(parts), _STYLE)


def _middle(row: int) -> float:
    return _TOP + _ROW * (row + 0.5)


def _panel(panel: Panel, systems: Sequence[str], x: svg.Axis, bottom: float, label: str) -> Markup:
    band = svg.rect(x(-panel.smallest), _TOP, x(panel.smallest) - x(-panel.smallest), bottom - _TOP, "band")
    parts = [band, svg.bottom_axis(x, bottom, _TOP, label, 5), svg.line(x(0.0), _TOP, x(0.0), bottom, "zero")]
    parts.append(svg.text(x.start, _TOP - 10, panel.title, "title", "start"))
    for row, (name, one) in enumerate(zip(systems, panel.estimates, strict=True)):
        y, css = _middle(row), "main" if one.sure else "open"
        if one.wide is not None:
            parts.append(svg.line(x(one.wide[0]), y, x(one.wide[1]), y, "whisker wide"))
        parts.append(svg.line(x(one.low), y, x(one.high), y, f"whisker {css}"))
        said = f"{name}: {one.value:+.4f} [{one.low:+.4f}, {one.high:+.4f}]"
        parts.append(svg.circle(x(one.value), y, 4.2, f"dot {css}", said))
    return svg.join(parts)
