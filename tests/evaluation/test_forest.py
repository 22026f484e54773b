"""The forest plot holds every estimate, at its place, and nothing that a reader of SVG would refuse."""

from __future__ import annotations

import xml.etree.ElementTree as ET

from anmi_ray.evaluation.forest import Estimate, Panel, figure

SVG = "{http://www.w3.org/2000/svg}"


def test_every_estimate_is_drawn_on_one_scale() -> None:
    rows = [Estimate(0.02, 0.01, 0.03, (0.0, 0.04), True), Estimate(-0.01, -0.03, 0.01)]
    drawn = ET.fromstring(figure("a < b", ["note"], ["first", "second"], [Panel("one", rows, 0.015)] * 2, "difference"))
    dots = drawn.findall(f".//{SVG}circle")
    assert [dot.get("class") for dot in dots] == ["dot main", "dot open"] * 2
    assert [dot.find(f"{SVG}title").text for dot in dots[:2]] == [  # type: ignore[union-attr]
        "first: +0.0200 [+0.0100, +0.0300]",
        "second: -0.0100 [-0.0300, +0.0100]",
    ]
    x = [float(dot.get("cx", "nan")) for dot in dots]
    assert x[0] > x[1]
    assert abs((x[0] - x[1]) - (x[2] - x[3])) < 0.2
    wide = [line for line in drawn.findall(f".//{SVG}path") if line.get("class") == "whisker wide"]
    assert len(wide) == 2
    assert drawn.findall(f".//{SVG}text")[0].text == "a < b"
