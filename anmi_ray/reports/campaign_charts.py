"""Charts of a tuning campaign: parallel coordinates and dev curves of all trials, the importance of parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
from markupsafe import Markup

from anmi_ray.reports.theme import BASE, COLOUR, DASH, FAINT, INK, LOSS, MAIN, PAPER, REST, SECOND, Canvas
from anmi_ray.reports.trials import Dimension, TrialRow

_AXES = 6  # parameters of a picture
_WIDE = 1000.0
_LETTERS = 17  # of an axis' name that stand in one line
_LOOK = {  # of a trial that ended so, drawn in this order, the most telling last
    "failed": (LOSS, 1.3),
    "stopped": (REST, 1.3),
    "running": (SECOND, 1.3),
    "complete": (BASE, 1.9),
    "best": (MAIN, 3.2),
}


def _drawn(trials: Sequence[TrialRow], best: int) -> list[tuple[TrialRow, dict[str, Any]]]:
    """Trials with what all their marks share, those that tell most last."""
    ends = [(one, "best" if one.number == best else one.status) for one in trials]
    ends.sort(key=lambda pair: (list(_LOOK).index(pair[1]), -1.0 if pair[0].last is None else pair[0].last))
    return [
        (one, {"order": order, "colour": _LOOK[end][0], "width": _LOOK[end][1]})
        for order, (one, end) in enumerate(ends)
    ]


def parallel(axes: Sequence[Dimension], trials: Sequence[TrialRow], best: int, measure: str) -> list[Markup]:
    """A line a trial through its parameters to its dev measure, in pictures of at most _AXES parameters.

    Those that all trials have come first. What an option lacks is passed over, and in a picture of which a trial has
    nothing it is left out.
    """
    shown = [one for one in trials if one.last is not None]
    common = [axis for axis in axes if all(axis.name in one.params for one in shown)]
    rest = [axis for axis in axes if axis not in common]
    devs = [one.last for one in shown if one.last is not None] or [0.0]
    low = min(devs)
    last = Dimension(f"dev {measure}", low=low, high=max(max(devs), low + 0.001))
    pictures = [some[k : k + _AXES] for some in (common, rest) for k in range(0, len(some), _AXES)]
    return [_parallel([*some, last], _drawn(shown, best)) for some in pictures]


def _parallel(axes: Sequence[Dimension], trials: Sequence[tuple[TrialRow, dict[str, Any]]]) -> Markup:
    canvas = Canvas("parallel coordinates of all trials", 260.0, _WIDE)
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, len(axes) - 1], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[0, 1], nice=False))
    paths = []
    heads = []
    marks = []
    for one, look in trials:
        said = f"trial {one.number}, {one.status}: dev {one.last:.4f}"
        at = [(k, axis.place(one.params[axis.name])) for k, axis in enumerate(axes[:-1]) if axis.name in one.params]
        if at and one.last is not None:
            at.append((len(axes) - 1, axes[-1].place(one.last)))
            paths += [{"x": k, "y": share, "tooltip": said, **look} for k, share in at]
    for k, axis in enumerate(axes):
        marks += [{"x": k, "y": share, "said": _clip(said)} for share, said in axis.marks()]
        heads += [{"x": k, "said": said, "up": row} for row, said in enumerate(reversed(_broken(axis.name)))]
    words = canvas.rows(marks).mark_text(align="left", dx=8, stroke=PAPER, strokeWidth=4)
    ticks = canvas.rows(marks).mark_tick(color=FAINT, opacity=1, size=8, thickness=1, orient="horizontal")
    names = [
        canvas.rows([row for row in heads if row["up"] == up]).mark_text(fontSize=11, color=INK)
        for up in sorted({row["up"] for row in heads})
    ]
    return canvas.draw(
        *_trials(canvas, paths, x, y),
        canvas.rows([{"x": k} for k in range(len(axes))]).mark_rule().encode(x=x),
        ticks.encode(x=x, y=y),
        words.encode(x=x, y=y, text="said:N"),
        *(text.encode(x=x, y=alt.value(-14 - 13 * up), text="said:N") for up, text in enumerate(names)),
    )


def _trials(canvas: Canvas, rows: Sequence[Mapping[str, Any]], x: alt.X, y: alt.Y) -> list[alt.Chart]:
    """A line a trial in its look, those before it below it."""
    layers = []
    for width in sorted({row["width"] for row in rows}):
        some = canvas.rows([row for row in rows if row["width"] == width])
        line = some.mark_line(aria=True, strokeOpacity=0.85, strokeWidth=width)
        layers.append(line.encode(x=x, y=y, order="x:Q", detail="order:O", color=COLOUR, description="tooltip:N"))
    return layers


def _broken(name: str) -> list[str]:
    """A name broken at its dots and spaces into lines that fit."""
    lines = [""]
    for piece in name.replace(".", ".\0").replace(" ", " \0").split("\0"):
        if lines[-1] and len(lines[-1]) + len(piece) > _LETTERS:
            lines.append("")
        lines[-1] += piece
    return [line.strip() for line in lines]


def _clip(text: str) -> str:
    return text if len(text) <= _LETTERS else f"{text[: _LETTERS - 1]}…"


def dev_curves(trials: Sequence[TrialRow], best: int, rungs: Sequence[float], measure: str) -> Markup:
    """Dev over the share of a trial's steps; a cross where early stopping ended one, dashed lines where it may."""
    canvas = Canvas("dev curves of all trials", 218.0)
    scale = alt.Scale(domain=[0, 1], nice=False)
    x = alt.X("x:Q", scale=scale, axis=alt.Axis(title="share of the trial's steps", tickCount=6, grid=False))
    y = alt.Y("y:Q", title=None, scale=alt.Scale(zero=False), axis=alt.Axis(tickCount=5))
    rows: list[dict[str, Any]] = []
    for one, look in _drawn([trial for trial in trials if trial.curve], best):
        share, dev = one.curve[-1]
        said = f"trial {one.number}, {one.status}: dev {dev:.4f} after {100 * share:.0f} %"
        rows += [{"x": a, "y": b, "tooltip": said, "end": one.status, **look} for a, b in one.curve]
        rows[-1]["last"] = True
    crosses = canvas.rows([row for row in rows if row["end"] == "stopped" and "last" in row])
    dots = canvas.rows([row for row in rows if row["end"] != "stopped" and (row["end"] != "failed" or "last" in row)])
    rule = canvas.rows([{"x": rung} for rung in rungs]).mark_rule(strokeDash=DASH)
    cross = crosses.mark_point(shape="M-1,-1L1,1M-1,1L1,-1", size=34, color=LOSS, strokeWidth=1.8, opacity=1, aria=True)
    return canvas.draw(
        rule.encode(x=x),
        *_trials(canvas, rows, x, y),
        dots.mark_circle(size=26, opacity=1, aria=True).encode(x=x, y=y, color=COLOUR, description="tooltip:N"),
        cross.encode(x=x, y=y, description="tooltip:N"),
        title=f"dev {measure}",
    )


def importance(shares: Mapping[str, float]) -> Markup:
    """A bar a parameter, the most important first."""
    canvas = Canvas("importance of the parameters", 40.0 * len(shares))
    rows = [
        {
            "y": 40 * k + 19,
            "to": 40 * k + 29,
            "head": 40 * k + 9,
            "name": name,
            "x": share,
            "said": f"{100 * share:.0f} %",
        }
        for k, (name, share) in enumerate(shares.items())
    ]
    x = alt.X("x:Q", axis=None, scale=alt.Scale(domain=[0, max([0.01, *shares.values()])], nice=False))
    y = alt.Y("y:Q", axis=None, scale=alt.Scale(domain=[40 * len(shares), 0], nice=False))
    base = canvas.rows(rows)
    return canvas.draw(
        base.mark_rect(color=MAIN).encode(x=x, x2=alt.datum(0), y=y, y2="to"),
        base.mark_text(align="left", fontSize=13).encode(x=alt.value(0), y=alt.Y("head:Q", axis=None), text="name:N"),
        base.mark_text(align="left", dx=6, fontSize=13, baseline="top").encode(x=x, y=y, text="said:N"),
    )
