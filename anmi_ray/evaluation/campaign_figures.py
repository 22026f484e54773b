"""The figures of a tuning campaign: parallel coordinates, curves of all trials, the importance of parameters."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from markupsafe import Markup

from anmi_ray.evaluation import svg
from anmi_ray.evaluation.campaign_report import Axis, CampaignData, Importance, TrialRow

_WIDE, _TOP, _BOTTOM, _SIDE = 1000.0, 58.0, 318.0, 70.0
_AXES = 6  # of a picture
_LETTERS = 17  # of an axis' name that stand in one line
ORDER = ("failed", "stopped", "running", "complete")  # drawn so, the most telling last


def parallel(data: CampaignData) -> list[Markup]:
    """A line a trial through its parameters to its dev measure, in pictures of at most _AXES parameters.

    Those that all trials have come first. What an option lacks is passed over, and in a picture of which a trial has
    nothing it is left out.
    """
    shown = [one for one in data.trials if one.last is not None]
    common = [axis for axis in data.axes if all(axis.name in one.params for one in shown)]
    rest = [axis for axis in data.axes if axis not in common]
    pictures = [axes[k : k + _AXES] for axes in (common, rest) for k in range(0, len(axes), _AXES)]
    last = svg.axis([one.last for one in shown if one.last is not None], _BOTTOM, _TOP)
    ordered = sorted(shown, key=lambda one: (one.number == data.best, ORDER.index(one.status), one.last))
    return [_parallel(axes, ordered, last, data) for axes in pictures]


def _parallel(axes: Sequence[Axis], trials: Sequence[TrialRow], last: svg.Axis, data: CampaignData) -> Markup:
    gap = (_WIDE - 2 * _SIDE) / len(axes)
    parts: list[Markup] = []
    for one in trials:
        points = [
            (_SIDE + gap * k, _height(axis, one.params[axis.name]))
            for k, axis in enumerate(axes)
            if axis.name in one.params
        ]
        if points and one.last is not None:
            said = f"trial {one.number}, {one.status}: dev {one.last:.4f}"
            parts.append(_line([*points, (_WIDE - _SIDE, last(one.last))], css(one, data.best), said))
    parts += [_axis(axis, _SIDE + gap * k) for k, axis in enumerate(axes)]  # their words lie over the lines
    parts.append(_measure_axis(last, _WIDE - _SIDE, f"dev {data.measure}"))
    return svg.picture(_BOTTOM + 26, "parallel coordinates of all trials", *parts, width=_WIDE)


def css(one: TrialRow, best: int) -> str:
    """The class of a trial's colour."""
    return "best" if one.number == best else one.status


def _line(points: Sequence[tuple[float, float]], style: str, title: str) -> Markup:
    coordinates = "L".join(svg.xy(*point) for point in points)
    return Markup('<path class="trial {}" d="M{}"><title>{}</title></path>').format(style, coordinates, title)


def _height(axis: Axis, value: Any) -> float:
    """Where a value stands on its axis, in pixels."""
    if axis.labels:
        at = axis.labels.index(value) / max(len(axis.labels) - 1, 1)
    elif axis.log:
        at = math.log(value / axis.low) / math.log(axis.high / axis.low)
    else:
        at = (value - axis.low) / (axis.high - axis.low)
    return _BOTTOM - at * (_BOTTOM - _TOP)


def _axis(axis: Axis, x: float) -> Markup:
    parts = [svg.line(x, _TOP, x, _BOTTOM, "axis"), _name(axis.name, x)]
    if axis.labels:
        marks = [(name, _height(axis, name)) for name in axis.labels]
    else:
        inner = (axis.low * axis.high) ** 0.5 if axis.log else (axis.low + axis.high) / 2
        marks = [(svg.number(value), _height(axis, value)) for value in (axis.low, inner, axis.high)]
    for said, y in marks:
        parts += [svg.line(x - 4, y, x + 4, y, "axis"), svg.text(x + 8, y + 4, _clip(said), "tick halo", "start")]
    return svg.join(parts)


def _measure_axis(y: svg.Axis, x: float, label: str) -> Markup:
    step = svg.tick_step(y.low, y.high, 5)
    marks = [svg.line(x - 4, y(t), x + 4, y(t), "axis") for t in y.ticks()]
    marks += [svg.text(x + 8, y(t) + 4, svg.number(t, step), "tick halo", "start") for t in y.ticks()]
    return svg.line(x, _TOP, x, _BOTTOM, "axis") + svg.join(marks) + _name(label, x)


def _name(name: str, x: float) -> Markup:
    """An axis' name above it, broken at its dots and spaces into lines that fit."""
    lines = [""]
    for piece in name.replace(".", ".\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(piece) > _LETTERS:
            lines.append("")
        lines[-1] += piece
    first = _TOP - 12 - 13 * (len(lines) - 1)
    return svg.join(svg.text(x, first + 13 * row, line.strip(), "small") for row, line in enumerate(lines))


def _clip(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def curves(data: CampaignData) -> Markup:
    """Dev over the share of a trial's steps; a cross where early stopping ended one, dashed lines where it may."""
    shown = [one for one in data.trials if one.curve]
    left, top, bottom = 52.0, 34.0, 262.0
    x = svg.Axis(0.0, 1.0, left, svg.WIDTH - 12)
    y = svg.axis([dev for one in shown for _, dev in one.curve], bottom, top, 0.08)
    parts = [
        svg.bottom_axis(x, bottom, top, "share of the trial's steps"),
        svg.left_axis(y, left, svg.WIDTH - 12, f"dev {data.measure}"),
    ]
    parts += [svg.line(x(rung), bottom, x(rung), top, "reference") for rung in data.rungs]
    for one in sorted(shown, key=lambda one: (one.number == data.best, ORDER.index(one.status))):
        style = css(one, data.best)
        points = [(x(share), y(dev)) for share, dev in one.curve]
        said = f"trial {one.number}, {one.status}: dev {one.curve[-1][1]:.4f} after {100 * one.curve[-1][0]:.0f} %"
        parts.append(_line(points, style, said))
        ends = points[-1:] if one.status in ("stopped", "failed") else points
        parts += [
            _cross(*point, said) if one.status == "stopped" else svg.circle(*point, 2.8, f"dot {style}", said)
            for point in ends
        ]
    return svg.picture(304.0, "dev curves of all trials", *parts)


def _cross(x: float, y: float, title: str) -> Markup:
    return Markup('<path class="cross" d="M{}L{}M{}L{}"><title>{}</title></path>').format(
        svg.xy(x - 4, y - 4), svg.xy(x + 4, y + 4), svg.xy(x - 4, y + 4), svg.xy(x + 4, y - 4), title
    )


def importance(found: Importance) -> Markup:
    """A bar a parameter, the most important first."""
    left, row, top = 8.0, 40.0, 8.0
    bottom = top + row * len(found.shares)
    x = svg.Axis(0.0, max(0.01, *found.shares.values()), left, svg.WIDTH - 60)
    parts: list[Markup] = []
    for k, (name, share) in enumerate(found.shares.items()):
        y = top + row * k
        parts += [
            svg.text(left, y + 13, name, "name", "start"),
            svg.rect(left, y + 19, x(share) - left, 10, "main", f"{name}: {share:.3f}"),
            svg.text(x(share) + 6, y + 28, f"{100 * share:.0f} %", "value", "start"),
        ]
    return svg.picture(bottom + 6, "importance of the parameters", *parts)


def settings(values: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Settings by name, as text."""
    return [(name, f"{value:.4g}" if isinstance(value, float) else str(value)) for name, value in values.items()]
