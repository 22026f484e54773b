"""Every chart: drawn whatever its numbers, in bounded size, equal bytes, loading nothing, every text as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup

from anmi_ray.core.identity import rng
from anmi_ray.evaluation.significance import Estimate, SystemComparison
from anmi_ray.reports import charts
from anmi_ray.reports.page import asset

HOSTILE = "</text></svg><script>alert(1)</script>\"'<img src=http://evil.example onerror=x> & \x07 var(--main)"


def values(size: int) -> np.ndarray:
    return rng("charts", size).normal(0, 100, size)


def lines(size: int, name: str) -> Markup:
    points = [(float(k), float(v)) for k, v in enumerate(values(size))]
    curves = [charts.Curve(name, charts.smooth(points)), charts.Curve(f"{name}2", charts.smooth(points[:2]))]
    ring = points[0] if points else None
    return charts.lines(curves, name, name, ring=ring)


def by_system(size: int, name: str) -> Markup:
    means = enumerate(values(min(size + 1, 100)).tolist())
    rows = [SystemComparison(f"{name}{k}" if k else name, name, 9, v, v - 1, v + 1) for k, v in means]
    return charts.by_system(rows, name, f"{name}1", 0.95)


def histogram(size: int, name: str) -> Markup:
    groups = {"soft": values(size), name: values(size) + 50}
    return charts.histogram(groups, {"soft": values(size // 2)}, [(name, None, 0.0), ("easy", 0.0, None)], name)


def history(size: int, name: str) -> Markup:
    points = [(k, v, k % 4 == 0, name) for k, v in enumerate(values(min(size, 300)).tolist())]
    return charts.history(points, 0, name)


def training(size: int, name: str) -> Markup:
    columns = ("loss", "learning_rate", "dev", "band_1", "band_2", "band_3")
    log = [{"step": k, **dict.fromkeys(columns, abs(v))} for k, v in enumerate(values(min(size + 2, 400)).tolist())]
    return Markup("").join(charts.training(log).values())


def calibration(size: int, name: str) -> Markup:
    curve = [((k + 1) / 21, Estimate(0.5, 0.4, 0.6, 10)) for k in range(min(size, 20))]
    return charts.calibration({name: curve, f"{name}2": curve}, name, name)


CHARTS: dict[str, Callable[[int, str], Markup]] = {
    "lines": lines,
    "by system": by_system,
    "per query": lambda size, name: charts.per_query(values(size), name, name, name),
    "histogram": histogram,
    "history": history,
    "calibration": calibration,
    "training": training,
}
EMPTY = {"histogram", "training"}  # their callers draw them only if there is something


def check(drawn: str) -> list[ElementTree.Element]:
    """The pictures, well-formed: nothing is loaded or run, every number finite, every colour of the page's style."""
    assert not re.search(r"\bnan\b|NaN|Infinity|undefined|url\(|@import|javascript:", drawn)
    roots = list(ElementTree.fromstring(f"<all>{drawn}</all>"))
    allowed = {"svg", "g", "path", "line", "circle", "text", "tspan", "title"}
    for node in (node for root in roots for node in root.iter()):
        assert node.tag in allowed
        assert not any(name.startswith("on") or name in {"href", "src", "class"} - {"class"} for name in node.attrib)
        for name in ("fill", "stroke"):
            assert re.fullmatch(r"none|var\(--[\w-]+\)", node.attrib.get(name, "none")), node.attrib
    return roots


@pytest.mark.parametrize("name", list(CHARTS))
@pytest.mark.parametrize("size", [0, 1, 2, 10_000])
def test_any_amount_of_data_is_drawn(name: str, size: int) -> None:
    if size == 0 and name in EMPTY:
        return
    drawn = CHARTS[name](size, "a name")
    for root in check(drawn):
        assert root.attrib["role"] == "img"
        assert root.attrib["aria-label"]
        assert all(float(length) > 0 for length in root.attrib["viewBox"].split()[2:])
    assert len(drawn) < 125_000


@pytest.mark.parametrize("name", list(CHARTS))
def test_texts_stay_texts(name: str) -> None:
    check(CHARTS[name](3, HOSTILE))


def test_a_hostile_name_is_shown_whole() -> None:
    row = SystemComparison("<b>x & y</b>", "<u>", 9, 1.0, 0.0, 2.0)
    (root,) = check(charts.by_system([row], "a", "b", 0.95))
    texts = {node.text for node in root.iter("text")}
    assert {"<b>x & y</b>", "1.000", "mean <u> over queries, 95 % interval"} <= texts
    assert "<b>x & y</b>: 1.0000 [0.0000, 2.0000], 9 queries" in {node.text for node in root.iter("title")}
    assert root.attrib["aria-label"] == "<u> by system"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        charts.lines([charts.Curve("a", [(0.0, 1.0), (1.0, bad)])], "x", "y")
    with pytest.raises(ValueError, match="JSON compliant"):
        charts.by_system([SystemComparison("a", "m", 9, bad, 0.0, 1.0)], "a", "b", 0.95)


def test_every_colour_is_told_for_light_and_dark() -> None:
    light, dark = asset("page.css").split("@media (prefers-color-scheme: dark)")[:2]
    told = [set(re.findall(r"--([\w-]+): #", part.split("* {")[0])) for part in (light, dark)]
    assert told[0] == told[1]
    used = {name for chart in CHARTS.values() for name in re.findall(r"var\(--([\w-]+)\)", chart(12, "a"))}
    assert used <= told[0]


def test_every_document_is_counted_in_a_histogram() -> None:
    groups = {"soft": np.array([150.0, 160.0, -9e9]), "easy": np.array([700.0] * 5)}
    drawn = charts.histogram(groups, {}, [("soft", 100.0, 200.0)], "gap")
    assert sum(int(count) for count in re.findall(r"<title>\w+: (\d+) between", drawn)) == 8


def test_smoothing_keeps_the_mean() -> None:
    thousand = [(float(i), float(i % 7)) for i in range(1000)]
    thin = charts.smooth(thousand, 100)
    assert len(thin) == 100
    assert np.mean([y for _, y in thin]) == pytest.approx(np.mean([y for _, y in thousand]))
    assert charts.smooth(thousand[:10]) == thousand[:10]
