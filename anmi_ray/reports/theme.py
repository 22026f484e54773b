"""Turn a declared chart into SVG by Altair and vl-convert: the theme, and labels of marks as tooltips.

Colours are CSS variables, so that a picture follows the page's light or dark theme. Equal charts give equal bytes:
widths of texts are measured with a font that comes with vl-convert.
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
RULE = "var(--rule)"
WIDTH = 480.0  # of a picture, labels included
DASH = [4, 4]
COLOUR = alt.Color("colour:N", scale=None)  # named by each row

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
_SVG = "{http://www.w3.org/2000/svg}"
_NO_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")


class Canvas:
    """One picture: the rows that its layers show, then its markup.

    label: for screen readers.
    height: of the plot, in units of which the whole picture is WIDTH wide.
    """

    def __init__(self, label: str, height: float) -> None:
        self._label = label
        self._height = height
        self._rows: dict[str, list[Mapping[str, Any]]] = {}

    def rows(self, rows: Sequence[Mapping[str, Any]]) -> alt.Chart:
        """Return a chart of these rows, without marks and encodings."""
        name = f"rows{len(self._rows)}"
        self._rows[name] = list(rows)
        return alt.Chart(alt.NamedData(name))

    def draw(self, *layers: alt.Chart, title: str = "") -> Markup:
        """Draw the layers over one another, below the title. Raises ValueError if a number is not finite."""
        fit = alt.AutoSizeParams(type="fit-x", contains="padding")
        chart = alt.layer(*layers).properties(width=WIDTH, height=self._height, autosize=fit, padding=3)
        content = chart.to_dict(validate=False) | {"datasets": self._rows, "config": _CONFIG}
        if title:
            content["title"] = {"text": title}
        drawn = vl_convert.vegalite_to_svg(json.dumps(_legible(content), allow_nan=False))
        root = ElementTree.fromstring(drawn)
        box = root.attrib["viewBox"]
        for node in list(root.iter()):
            node.tag = node.tag.removeprefix(_SVG)
            label = node.attrib.pop("aria-label", None)
            if label and node.tag != "g":
                ElementTree.SubElement(node, "title").text = label  # a tooltip
        root.attrib = {"class": "figure", "viewBox": box, "role": "img", "aria-label": _legible(self._label)}
        return Markup(ElementTree.tostring(root, encoding="unicode"))


def _legible(value: Any) -> Any:
    """Replace characters that XML cannot hold, which end the process where texts are measured."""
    if isinstance(value, str):
        return _NO_XML.sub("\ufffd", value)
    if isinstance(value, Mapping):
        return {key: _legible(item) for key, item in value.items()}
    return [_legible(item) for item in value] if isinstance(value, list) else value


def short(name: str, limit: int = 30) -> str:
    """A name, or its beginning and end where it is long.

    >>> short("x" * 50)
    'xxxxxxxxxxxxxxxxxxx…xxxxxxxxxx'
    """
    return name if len(name) <= limit else f"{name[: limit - 11]}…{name[-10:]}"
