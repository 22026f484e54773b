"""The pictures of an audit: well-formed, self-contained, every judge in its place."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from anmi_ray.evaluation.judges import Agreement, Leaning, to_html, to_svg

SPACE = "{http://www.w3.org/2000/svg}"


def panel(count: int) -> tuple[list[Leaning], Agreement]:
    names = [f"judge <{i}> & co" for i in range(count)]
    rows = [Leaning(name, 0.01 * i - 0.02, 0.01 * i - 0.05, 0.01 * i + 0.01, 100, i, 2) for i, name in enumerate(names)]
    share = np.linspace(0.5, 1.0, count * count).reshape(count, count)
    share = (share + share.T) / 2
    share[0, -1] = share[-1, 0] = np.nan
    return rows, Agreement(names, share, np.full((count, count), 7))


@pytest.mark.parametrize("count", [2, 3, 14, 33, 60])
def test_svg_is_well_formed(count: int) -> None:
    text = to_svg(*panel(count))
    root = ElementTree.fromstring(text)
    width, height = (float(v) for v in root.attrib["viewBox"].split()[2:])
    groups = root.findall(f"{SPACE}g")
    assert len(groups) == 2
    assert len(groups[0].findall(f".//{SPACE}circle")) == count
    cells = [node for node in groups[1].iter(f"{SPACE}rect") if node.find(f"{SPACE}title") is not None]
    assert len(cells) == count * (count - 1) - 2  # the two that are not known are left empty
    for group in groups:
        top = float(group.attrib["transform"].split()[1].rstrip(")"))
        for node in group.iter():
            x, y = node.attrib.get("x"), node.attrib.get("y")
            assert x is None or -1 <= float(x) <= width + 1
            assert y is None or top + float(y) <= height
    assert "var(" not in text


def test_what_is_not_known_is_said_or_left_out() -> None:
    silent = [Leaning("", None, None, None, 0, 0, 0)]
    alone = to_svg(silent, None)
    assert "no pair in both orders" in alone
    assert "(unnamed)" in alone
    _, agreement = panel(2)
    assert "Position bias" not in to_svg(silent * 2, agreement)
    assert "Position bias" in to_svg([*silent, panel(2)[0][0]], agreement)
    nothing = Agreement(["a", "b"], np.full((2, 2), np.nan), np.zeros((2, 2), np.int64))
    ElementTree.fromstring(to_svg(silent * 2, nothing))
    ElementTree.fromstring(to_svg([Leaning("j", 0.0, None, None, 1, 0, 0)], None))


def test_html_loads_nothing() -> None:
    page = to_html(*panel(3), "Judges of <file>", "a note")
    assert "<title>Judges of &lt;file&gt;</title>" in page
    assert "judge &lt;1&gt; &amp; co" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
