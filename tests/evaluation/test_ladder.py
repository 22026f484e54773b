"""The picture of ratings: well-formed, self-contained, every document in its place."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from anmi_ray.evaluation.ladder import MAX_DOCUMENTS, Ladder, to_html, to_svg


def ladder(documents: int, groups: int = 1) -> Ladder:
    rating = np.linspace(300.0, -300.0, documents)
    return Ladder(
        "what <is> this?",
        [f"doc & {i}" for i in range(documents)],
        rating,
        np.full(documents, 40.0),
        np.arange(documents) == 1,
        np.sort(np.arange(documents) % groups).astype(np.int32),
    )


@pytest.mark.parametrize("documents", [1, 2, 10, 100, 300])
@pytest.mark.parametrize("groups", [1, 3])
def test_svg_is_well_formed(documents: int, groups: int) -> None:
    text = to_svg([ladder(documents, groups), ladder(2)])
    root = ElementTree.fromstring(text)
    height = float(root.attrib["viewBox"].split()[3])
    space = "{http://www.w3.org/2000/svg}"
    drawn = root.findall(f"./{space}g[1]//{space}circle/{space}title")
    assert len(drawn) == min(documents, MAX_DOCUMENTS)
    assert all(0 <= float(node.attrib["y"]) <= height for node in root.iter(f"{space}text"))
    assert all(0 <= float(node.attrib["cx"]) <= 760 for node in root.iter(f"{space}circle"))
    assert ("in 3 groups that no comparison connects" in text) == (groups == 3 and documents >= 3)
    assert ("the first 120 of 300 documents" in text) == (documents == 300)
    assert "var(" not in text


def test_ratings_without_error_or_spread() -> None:
    flat = Ladder("q", ["a", "b"], np.zeros(2), np.zeros(2), np.zeros(2, np.bool_), np.zeros(2, np.int32))
    ElementTree.fromstring(to_svg([flat]))


def test_html_loads_nothing() -> None:
    page = to_html([ladder(5)], "Ratings of <file>", "a note")
    assert "<title>Ratings of &lt;file&gt;</title>" in page
    assert not re.search(r"(src|href)=|url\(|@import", page)
    assert to_html([ladder(5)], "x", "y") == to_html([ladder(5)], "x", "y")
