"""The few SVG shapes that the figures are drawn with. Colours are CSS classes, so a figure follows light and dark.

Coordinates are in SVG units of a picture WIDTH wide; every text is escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources

from markupsafe import Markup

WIDTH = 480.0


@dataclass(frozen=True)
class Axis:
    """A linear map from values [low, high] to pixels [start, stop]."""

    low: float
    high: float
    start: float
    stop: float

    def __call__(self, value: float) -> float:
        return self.start + (self.stop - self.start) * (value - self.low) / (self.high - self.low)

    def ticks(self, count: int = 5) -> list[float]:
        """Round values inside the range, about `count`."""
        step = tick_step(self.low, self.high, count)
        first = math.ceil(self.low / step - 1e-9)
        last = math.floor(self.high / step + 1e-9)
        return [k * step for k in range(first, last + 1)]


def axis(values: Iterable[float], start: float, stop: float, pad: float = 0.05, zero: bool = False) -> Axis:
    """An axis that holds all finite `values`, with a margin of `pad` of their range; never empty."""
    finite = [float(value) for value in values if math.isfinite(value)] or [0.0]
    if zero:
        finite.append(0.0)
    low, high = min(finite), max(finite)
    margin = (high - low) * pad or max(abs(high) * 0.05, 0.01)
    low, high = low if zero and low == 0 < high else low - margin, high if zero and high == 0 > low else high + margin
    return Axis(low, high, start, stop)


def tick_step(low: float, high: float, count: int) -> float:
    """The step of 1, 2, 2.5 or 5 times a power of ten that gives at most about `count` ticks.

    >>> tick_step(0, 1, 5)
    0.2
    """
    raw = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(raw))
    return next(nice * power for nice in (1, 2, 2.5, 5, 10) if nice * power >= raw * (1 - 1e-9))


def number(value: float, step: float = 0.0) -> str:
    """A short decimal with a true minus sign; as many places as the ticks' `step` needs."""
    if step:
        places = max(0, -math.floor(math.log10(step)))
        if abs(round(step, places) - step) > 1e-9 * step:
            places += 1
        text = f"{value:,.{places}f}"
    else:
        text = f"{value:,.4g}"
    return "0" if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def xy(*values: float) -> str:
    """Pixels as text, to a tenth."""
    return " ".join(f"{value:.1f}".removesuffix(".0") for value in values)


def text(x: float, y: float, content: object, css: str = "tick", anchor: str = "middle") -> Markup:
    """A line of text whose baseline is at y."""
    return Markup('<text class="{}" x="{}" y="{}" text-anchor="{}">{}</text>').format(
        css, xy(x), xy(y), anchor, content
    )


def line(x1: float, y1: float, x2: float, y2: float, css: str) -> Markup:
    """A straight line."""
    return Markup('<path class="{}" d="M{}L{}"/>').format(css, xy(x1, y1), xy(x2, y2))


def path(points: Iterable[tuple[float, float]], css: str) -> Markup:
    """A line through `points`; empty for fewer than two."""
    coordinates = [xy(x, y) for x, y in points]
    return Markup('<path class="{}" d="M{}"/>').format(css, "L".join(coordinates)) if len(coordinates) > 1 else Markup()


def rect(x: float, y: float, width: float, height: float, css: str, title: object = None) -> Markup:
    """A rectangle; `title` is its tooltip."""
    shape = Markup('<rect class="{}" x="{}" y="{}" width="{}" height="{}"').format(
        css, xy(x), xy(y), xy(max(width, 0.0)), xy(max(height, 0.0))
    )
    return shape + (Markup("/>") if title is None else Markup("><title>{}</title></rect>").format(title))


def circle(x: float, y: float, radius: float, css: str, title: object = None) -> Markup:
    """A dot; `title` is its tooltip."""
    shape = Markup('<circle class="{}" cx="{}" cy="{}" r="{}"').format(css, xy(x), xy(y), xy(radius))
    return shape + (Markup("/>") if title is None else Markup("><title>{}</title></circle>").format(title))


def join(parts: Iterable[Markup]) -> Markup:
    """The shapes one after the other."""
    return Markup("").join(parts)


def picture(height: float, label: str, *parts: Markup, width: float = WIDTH) -> Markup:
    """The whole picture; `label` is what a screen reader says."""
    return Markup('<svg class="figure" viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg>').format(
        xy(width), xy(height), label, join(parts)
    )


def bottom_axis(x: Axis, y: float, top: float, label: str, count: int = 6) -> Markup:
    """Tick labels under y, faint vertical lines up to `top`, and the label with its unit."""
    step = tick_step(x.low, x.high, count)
    marks = [line(x(t), y, x(t), top, "grid") + text(x(t), y + 16, number(t, step)) for t in x.ticks(count)]
    return join(marks) + line(x.start, y, x.stop, y, "axis") + text((x.start + x.stop) / 2, y + 35, label, "label")


def left_axis(y: Axis, x: float, right: float, label: str, count: int = 5) -> Markup:
    """Tick labels left of x, faint horizontal lines to `right`, and the label above the axis."""
    step = tick_step(y.low, y.high, count)
    marks = [
        line(x, y(t), right, y(t), "grid") + text(x - 7, y(t) + 4, number(t, step), "tick", "end")
        for t in y.ticks(count)
    ]
    return join(marks) + text(0, 12, label, "label", "start")


def legend(entries: Sequence[tuple[str, str]], x: float, y: float) -> Markup:
    """Coloured squares with their names in one row, starting at x; entries are (css class, name)."""
    parts: list[Markup] = []
    for css, name in entries:
        parts += [rect(x, y - 9, 10, 10, css), text(x + 15, y, name, "tick", "start")]
        x += 15 + 7.2 * len(name) + 16
    return join(parts)


def standalone(width: float, height: float, shapes: Markup, extra: str = "") -> str:
    """One SVG file of its own, for any viewer: the report's colours and rules, and those of `extra`, put in."""
    return Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {w} {h}" width="{w}" height="{h}"><style>{style}</style>'
        '<rect width="100%" height="100%" fill="{paper}"/>{shapes}</svg>\n'
    ).format(w=xy(width), h=xy(height), style=Markup(_fixed_style(extra)), paper=_colours()["card"], shapes=shapes)


def card(width: float, height: float, label: str, shapes: Markup) -> Markup:
    """A picture as it stands in `page`; `label` is what a screen reader says."""
    return Markup('<figure class="card"><svg viewBox="0 0 {} {}" role="img" aria-label="{}">{}</svg></figure>').format(
        xy(width), xy(height), label, shapes
    )


def page(heading: str, note: str, cards: Sequence[Markup], extra: str = "") -> str:
    """One HTML page of its own with the cards below one another, in the report's style; it loads nothing."""
    return Markup(
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><title>{heading}</title>'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">"
        '<style>{style}</style></head><body><header class="top"><h1>{heading}</h1><p class="kicker">{note}</p></header>'
        "<main>{cards}</main></body></html>\n"
    ).format(heading=heading, note=note, style=Markup(stylesheet() + extra + _PAGE), cards=join(cards))


def stylesheet() -> str:
    """The report's, which the classes of all shapes are from."""
    return resources.files("anmi_ray.evaluation").joinpath("templates/report.css").read_text(encoding="utf-8")


def _colours() -> dict[str, str]:
    """The light colours of the report by name."""
    return dict(re.findall(r"--([\w-]+): (#\w+)", stylesheet().split("}", 1)[0]))


def _fixed_style(extra: str) -> str:
    """The rules for shapes with colours put in: many viewers of SVG know no CSS variables."""
    rules = "".join(re.findall(r"svg [^{}]*\{[^{}]*\}", stylesheet())) + extra
    font = 'svg { font-family: system-ui, "Segoe UI", "Helvetica Neue", "Liberation Sans", Arial, sans-serif; }'
    colours = _colours()
    return font + re.sub(r"var\(--([\w-]+)\)", lambda match: colours[match.group(1)], rules)


_PAGE = """
header.top .kicker { margin: 10px 0 0; }
main { padding-bottom: 48px; }
figure.card { margin-top: 24px; background: var(--card); border: 1px solid var(--rule); border-radius: 10px; }
figure.card svg { display: block; width: 100%; height: auto; }
"""
