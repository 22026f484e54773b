"""The figure of the study of false negatives: their share among the mined, by strategy and depth, a panel a collection.

Takes plain numbers. Depths stand evenly, in their order; strategies are set apart a little, so that whiskers show.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from markupsafe import Markup

from anmi_ray.evaluation import svg

_COLUMNS, _LEFT, _TOP, _PAD = 3, 60.0, 146.0, 24.0
_WIDE, _HIGH, _ACROSS, _DOWN = 250.0, 190.0, 66.0, 96.0  # of a panel, and between panels
_APART = 5.0
_MARKS = {"random": "rest", "bm25": "base", "dense": "second", "hybrid": "third", "reranker": "main"}
_STYLE = """
svg .head { font-size: 17px; font-weight: 600; fill: var(--ink); } svg .title { font-size: 14.5px; fill: var(--ink); }
""" + "".join(
    f"svg .whisker.{name} {{ stroke: var(--{name}); stroke-width: 1.6; }} svg .dot.{name} {{ fill: var(--{name}); }} "
    f"svg .way.{name} {{ stroke: var(--{name}); stroke-width: 1.4; fill: none; }} "
    f"svg .key.{name} {{ fill: var(--{name}); }}\n"
    for name in _MARKS.values()
)


@dataclass(frozen=True)
class Line:
    """A strategy: (depth, share, low, high) at every depth that it reaches."""

    strategy: str
    points: Sequence[tuple[int, float, float, float]]


@dataclass(frozen=True)
class Panel:
    """A collection: what its title and the line below say, and its strategies."""

    title: str
    note: str
    lines: Sequence[Line]


def picture(panels: Sequence[Panel]) -> str:
    """The whole picture as SVG, panels three a row."""
    rows = -(-len(panels) // _COLUMNS)
    width = _LEFT + _COLUMNS * _WIDE + (_COLUMNS - 1) * _ACROSS + _PAD
    height = _TOP + rows * _HIGH + (rows - 1) * _DOWN + 62
    names = [name for name in _MARKS if any(line.strategy == name for panel in panels for line in panel.lines)]
    parts = [
        svg.text(_PAD, 36, "How often is a mined negative relevant?", "head", "start"),
        svg.text(_PAD, 60, "Positives that the miner was not shown, % of the documents that it took; 95 % over queries",
                 "label", "start"),
        svg.legend([(f"key {_MARKS[name]}", name) for name in names], _PAD, 88),
    ]  # fmt: skip
    for number, panel in enumerate(panels):
        row, column = divmod(number, _COLUMNS)
        parts.append(_panel(panel, _LEFT + column * (_WIDE + _ACROSS), _TOP + row * (_HIGH + _DOWN)))
    return svg.standalone(width, height, svg.join(parts), _STYLE)


def _panel(panel: Panel, left: float, top: float) -> Markup:
    bottom, right = top + _HIGH, left + _WIDE
    depths = sorted({point[0] for line in panel.lines for point in line.points})
    y = svg.axis([100 * point[3] for line in panel.lines for point in line.points], bottom, top, 0.04, zero=True)
    step = svg.tick_step(y.low, y.high, 5)
    parts = [
        svg.text(left, top - 24, panel.title, "title", "start"),
        svg.text(left, top - 8, panel.note, "tick", "start"),
    ]
    for tick in y.ticks(5):
        parts += [svg.line(left, y(tick), right, y(tick), "grid"),
                  svg.text(left - 7, y(tick) + 4, svg.number(tick, step), "tick", "end")]  # fmt: skip
    middle = {depth: left + (at + 0.5) * _WIDE / len(depths) for at, depth in enumerate(depths)}
    parts += [svg.text(at, bottom + 16, depth) for depth, at in middle.items()]
    parts += [svg.line(left, bottom, right, bottom, "axis"),
              svg.text((left + right) / 2, bottom + 34, "documents mined from the top", "label")]  # fmt: skip
    for number, line in enumerate(panel.lines):
        css, off = _MARKS[line.strategy], (number - (len(panel.lines) - 1) / 2) * _APART
        parts.append(
            svg.path([(middle[depth] + off, y(100 * share)) for depth, share, *_ in line.points], f"way {css}")
        )
        for depth, share, low, high in line.points:
            at = middle[depth] + off
            said = f"{line.strategy}, top {depth}: {100 * share:.1f} % [{100 * low:.1f}, {100 * high:.1f}]"
            parts += [svg.line(at, y(100 * low), at, y(100 * high), f"whisker {css}"),
                      svg.circle(at, y(100 * share), 3.2, f"dot {css}", said)]  # fmt: skip
    return svg.join(parts)
