"""What all pages share: rendering, the format of numbers, and JSON with the same numbers.

Texts of documents, queries and names are hostile: templates escape every one of them.
"""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from typing import Any

import numpy as np
import pyarrow as pa
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

CATEGORIES = ("danger", "soft", "goldilocks", "medium", "easy", "random")
Json = Mapping[str, Any]
SNIPPET = 280  # characters of a document's text that a page shows


def render(
    name: str, data: Any, sections: Mapping[str, str], notes: Sequence[str] = (), script: str = "", **more: Any
) -> str:
    """Render the page `name` as HTML that loads nothing.

    sections: headings in the navigation, by key.
    script: JavaScript that sorts tables.
    more: what the template reads besides `data`: finding, evidence, json (the file with the same numbers), simulated.
    """
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    return (
        _environment()
        .get_template(f"{name}.html.j2")
        .render(
            data=data,
            sections=list(sections.items()),
            notes=notes,
            style=Markup(asset("page.css")),
            script=Markup(script),
            script_hash=digest,
            **more,
        )
    )


def asset(name: str) -> str:
    """The text of a file next to the templates."""
    return resources.files("anmi_ray.reports").joinpath(f"templates/{name}").read_text(encoding="utf-8")


@cache
def _environment() -> Environment:
    """Templates and FILTERS; an undefined name in a template is an error."""
    loader = PackageLoader("anmi_ray.reports", "templates")
    made = Environment(loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    made.filters |= {one.__name__: one for one in _FILTERS}
    return made


def category_colour(category: str) -> str:
    """The colour of a negative's category; unknown categories share one."""
    return f"var(--k-{category})" if category in CATEGORIES else "var(--k-other)"


def a_key_a_line(content: Mapping[str, Any]) -> str:
    """JSON with one top-level key per line."""
    lines = (f"{json.dumps(k)}: {json.dumps(v, ensure_ascii=False, allow_nan=False)}" for k, v in content.items())
    return "{\n" + ",\n".join(lines) + "\n}\n"


def plain(value: Any) -> Any:
    """Convert a value to JSON types; NaN and tables become null."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {item.name: plain(getattr(value, item.name)) for item in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, pa.Table):
        return None
    if isinstance(value, np.ndarray):
        return [plain(item) for item in value.tolist()]
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if isinstance(value, np.generic):
        return plain(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def decimal(value: float | None, places: int = 3) -> str:
    """A number with a true minus sign; a dash for None.

    >>> decimal(-0.5, 2)
    '−0.50'
    """
    if value is None or not math.isfinite(value):
        return "—"
    text = f"{value:,.{places}f}"
    return text.removeprefix("-") if float(text.replace(",", "")) == 0 else text.replace("-", "−")


def signed(value: float | None, places: int = 3) -> str:
    """A difference with its sign: +0.112, −0.020, ±0.000."""
    text = decimal(value, places)
    if value is None or text == "—" or text.startswith("−"):
        return text
    return f"+{text}" if text.strip("0.,") else f"±{text}"


def p_value(p: float | None) -> str:
    """p = 0.032, or p < 0.001; a dash for None."""
    if p is None:
        return "—"
    return "p < 0.001" if p < 0.001 else f"p = {p:.3f}"


def count(value: float | None) -> str:
    """A whole number with thousands separated."""
    return "—" if value is None else f"{value:,.0f}"


def percent(value: float | None, places: int = 1) -> str:
    """A share as a percentage."""
    return "—" if value is None else f"{100 * value:.{places}f} %"


def seconds(value: float) -> str:
    """A duration: 0.4 s, 12 s, 3 min 05 s, 2 h 07 min.

    >>> seconds(185.0)
    '3 min 05 s'
    """
    if value < 10:
        return f"{value:.1f} s"
    whole = round(value)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def short(value: float) -> str:
    """A large number by three digits and its unit.

    >>> [short(value) for value in (950.0, 4e3, 22_713_216, 1.236e9)]
    ['950', '4.00 k', '22.7 M', '1.24 G']
    """
    for size, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if value >= size:
            return f"{value / size:#.3g}".rstrip(".") + unit
    return f"{value:.3g}"


def clip(text: str, length: int = SNIPPET) -> str:
    """The beginning of a text on one line, cut at a word."""
    flat = " ".join(text.split())
    if len(flat) <= length:
        return flat
    head = flat[:length]
    return (head.rsplit(" ", 1)[0] if " " in head[length // 2 :] else head) + " …"


def capital(name: str) -> str:
    """A name at the beginning of a sentence."""
    return name[:1].upper() + name[1:]


def effect(row: Any, level: float) -> str:
    """CSS class of a comparison's difference: gain or loss if significant, else even."""
    if row.p is None or row.difference is None or row.p >= 1 - level:
        return "even"
    return "gain" if row.difference > 0 else "loss"


def width(part: float) -> str:
    """A share as a length in CSS."""
    return f"{100 * part:.1f}%"


_FILTERS = (decimal, signed, p_value, count, percent, seconds, short, clip, capital, effect, width)
