"""How a declared chart becomes markup: the theme, the rendering (Altair, vl-convert), and what is made plain after it.

Colours are CSS variables, so that a picture in a page follows light and dark; a picture in a file of its own has the
light colours put in. Equal charts give equal bytes: widths of texts are measured with a font that vl-convert brings.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any
from xml.etree import ElementTree

import altair as alt
import vl_convert
from markupsafe import Markup

from anmi_ray.reports.page import asset

MAIN = "var(--main)"
SECOND = "var(--second)"
THIRD = "var(--third)"
BASE = "var(--base)"
REST = "var(--rest)"
INK = "var(--ink)"
SOFT = "var(--soft)"
FAINT = "var(--faint)"
GAIN = "var(--gain)"
LOSS = "var(--loss)"
CARD = "var(--card)"
PAPER = "var(--paper)"
RULE = "var(--rule)"
WIDTH = 480.0  # of a picture with its labels
WIDE = 760.0
DASH = [4, 4]
COLOUR = alt.Color("colour:N", scale=None)  # the one that each row names

_CONFIG: dict[str, Any] = {
    "background": None,
    "font": "sans-serif",
    "mark": {"aria": False},
    "view": {"stroke": None},
    "axis": {
        "labelColor": SOFT,
        "titleColor": SOFT,
        "gridColor": RULE,
        "domainColor": FAINT,
        "labelFontSize": 12,
        "titleFontSize": 12.5,
        "titleFontWeight": "normal",
        "titlePadding": 9,
        "labelPadding": 6,
        "labelFlush": False,
        "ticks": False,
    },
    "axisX": {"tickCount": 6, "labelOverlap": "greedy", "labelSeparation": 8},
    "axisY": {"domain": False},
    "title": {"anchor": "start", "frame": "bounds", "fontSize": 12.5, "fontWeight": "normal", "color": SOFT},
    "legend": {
        "orient": "top",
        "title": None,
        "labelColor": SOFT,
        "labelFontSize": 12,
        "symbolSize": 90,
        "symbolType": "square",
        "symbolStrokeWidth": 0,
        "labelLimit": 0,
    },
    "text": {"color": SOFT, "fontSize": 12},
    "line": {"strokeWidth": 1.8, "strokeJoin": "round"},
    "rule": {"color": FAINT},
}
# of the widths that charts are laid out with
_FONTS = '"Helvetica Neue", Arial, "Liberation Sans", Arimo, sans-serif'
_SVG = "{http://www.w3.org/2000/svg}"
_HANDED_DOWN = ("fill", "fill-opacity", "stroke", "stroke-width", "stroke-opacity", "stroke-dasharray")
_HANDED_DOWN += ("stroke-linecap", "stroke-linejoin", "font-size", "font-weight", "text-anchor")
_USUAL = (("font-weight", "normal"), ("fill-opacity", "1"))
_PLACES = ("d", "transform", "x", "y", "x1", "y1", "x2", "y2", "width", "height", "dy", "opacity")
_NUMBER = re.compile(r"-?\d+\.\d+(?:e-?\d+)?|-?\d+e-\d+")
_CIRCLE = re.compile(r"M([\d.]+),0A\1,\1,0,1,1,-\1,0A\1,\1,0,1,1,\1,0")
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Canvas:
    """One picture: the rows that its layers show, then its markup.

    label: what a screen reader says; height: of the plot, in the units of which the whole picture is `width` wide;
    without `fitted` the plot alone is.
    """

    def __init__(self, label: str, height: float, width: float = WIDTH, fitted: bool = True) -> None:
        self.width = width
        self._fitted = fitted
        self._label = label
        self._height = height
        self._rows: dict[str, list[Mapping[str, Any]]] = {}

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
        """A chart of these rows, of which marks and encodings are still to be said."""
        name = f"rows{len(self._rows)}"
        self._rows[name] = list(rows)
        return alt.Chart(alt.NamedData(name))

    def draw(self, *layers: alt.Chart, title: str | Sequence[str] = "") -> Markup:
        """The layers over one another; `title` stands above them. Raises ValueError where a number is not finite."""
        fit = alt.AutoSizeParams(type="fit-x" if self._fitted else "pad", contains="padding")
        chart = alt.layer(*layers).properties(width=self.width, height=self._height, autosize=fit, padding=3)
        content = chart.to_dict(validate=False) | {"datasets": self._rows, "config": _CONFIG}
        if title:
            content["title"] = {"text": title if isinstance(title, str) else list(title)}
        return _markup(content, self._label, self._fitted)


def _markup(content: Mapping[str, Any], label: str, fitted: bool) -> Markup:
    drawn = vl_convert.vegalite_to_svg(json.dumps(_legible(content), allow_nan=False))
    root = ElementTree.fromstring(drawn)
    box = root.attrib["viewBox"]
    for node in root.iter():
        node.tag = node.tag.removeprefix(_SVG)
    _tidy(root)
    root.attrib = {"class": "figure", "viewBox": box, "role": "img", "aria-label": _legible(label)}
    if not fitted:  # in its own size, but where there is less room
        root.attrib["style"] = f"max-width:{float(box.split()[2]) * 1.1:.0f}px"
    return Markup(ElementTree.tostring(root, encoding="unicode"))


def _legible(value: Any) -> Any:
    """The same without characters that XML cannot hold, which end the process where texts are measured."""
    if isinstance(value, str):
        return _NO_XML.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {key: _legible(item) for key, item in value.items()}
    return [_legible(item) for item in value] if isinstance(value, list) else value


def _tidy(node: ElementTree.Element) -> None:
    """Leave what is seen, its tooltips, and numbers to a tenth; what all in a group share is said once."""
    kept: list[ElementTree.Element] = []
    for child in node:
        label = child.attrib.get("aria-label") if not len(child) and child.tag != "g" else None
        hidden = child.attrib.get("class") in ("background", "foreground") or child.tag == "rect"
        if hidden and not child.attrib.get("stroke"):
            continue
        _tidy(child)
        _plain(child)
        if label:
            ElementTree.SubElement(child, "title").text = label
        if child.tag == "g" and not child.attrib:
            kept += list(child)
        elif len(child) or child.tag != "g":
            kept.append(child)
    node[:] = _dots(kept)
    if node.tag == "g" and len(node) > 1:
        _hand_up(node)


def _plain(node: ElementTree.Element) -> None:
    """Keep attributes that draw."""
    kept = {}
    for name, value in node.attrib.items():
        if name in _PLACES:
            value = _NUMBER.sub(_rounded, value)
            if (name, value) not in (("transform", "translate(0,0)"), ("opacity", "1")):
                kept[name] = value
        elif name in _HANDED_DOWN and (name, value) not in _USUAL:
            kept[name] = value
    round_one = _CIRCLE.fullmatch(kept.get("d", ""))
    if round_one:
        x, _, y = kept.pop("transform", "translate(0,0)")[10:-1].partition(",")
        kept = {"cx": x, "cy": y, "r": _rounded(round_one), **{k: v for k, v in kept.items() if k != "d"}}
        node.tag = "circle"
        if "stroke" not in kept:
            kept.pop("stroke-width", None)
    node.attrib = kept


def _rounded(found: re.Match[str]) -> str:
    number = found[1] if found.re is _CIRCLE else found[0]
    text = f"{float(number):.2f}" if abs(float(number)) < 1 else f"{float(number):.1f}"
    return text.rstrip("0").rstrip(".").replace("-0", "0") if float(text) == 0 else text.rstrip("0").rstrip(".")


def _dots(nodes: Sequence[ElementTree.Element]) -> list[ElementTree.Element]:
    """Neighbouring circles of one look and without a tooltip, as one stroke of many points: thousands stay small."""
    merged: list[ElementTree.Element] = []
    for node in nodes:
        look = {"fill", "cx", "cy", "r"} == set(node.attrib) and node.tag == "circle" and not len(node)
        if not look:
            merged.append(node)
            continue
        place = f"M{node.attrib['cx']},{node.attrib['cy']}h0"
        size = f"{2 * float(node.attrib['r']):.1f}"
        style = {"stroke": node.attrib["fill"], "stroke-width": size, "stroke-linecap": "round"}
        if merged and {**merged[-1].attrib, "d": ""} == {"d": "", **style}:
            merged[-1].attrib["d"] += place
        else:
            merged.append(ElementTree.Element("path", {"d": place, **style}))
    return merged


def _hand_up(group: ElementTree.Element) -> None:
    for name in _HANDED_DOWN:
        values = {child.attrib.get(name) for child in group}
        value = values.pop()
        if values or value is None or name in group.attrib:
            continue
        group.attrib[name] = value
        for child in group:
            del child.attrib[name]


def short(name: str, limit: int = 30) -> str:
    """A name, or its beginning and end where it is long."""
    return name if len(name) <= limit else f"{name[: limit - 11]}…{name[-10:]}"


def to_svg(pictures: Sequence[Markup]) -> str:
    """One SVG file with the pictures below one another, in fixed light colours, for any viewer."""
    placed: list[str] = []
    wide = 0.0
    top = 0.0
    for picture in map(str, pictures):
        box = re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', picture)[0]
        width, height = (float(length) for length in box)
        placed.append(picture.replace("<svg ", f'<svg y="{top:g}" width="{width:g}" height="{height:g}" ', 1))
        wide = max(wide, width)
        top += height + 24.0
    colours = dict(re.findall(r"--([\w-]+): (#\w+)", asset("page.css").split("}", 1)[0]))
    coloured = rf'(fill|stroke)="var\(--({"|".join(colours)})\)"'  # a document may be called var(--ink) itself
    shapes = re.sub(coloured, lambda match: f'{match[1]}="{colours[match[2]]}"', "".join(placed))
    size = f'width="{wide + 40:g}" height="{top + 16:g}"'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="-20 -20 {wide + 40:g} {top + 16:g}" {size}>'
        f"<style>svg {{ font-family: {_FONTS}; }} svg text {{ paint-order: stroke; }}</style>"
        f'<rect x="-20" y="-20" {size} fill="{colours["card"]}"/>{shapes}</svg>\n'
    )
