"""Every chart: drawn whatever its numbers, in bounded size, equal bytes, loading nothing, every text as text."""

from __future__ import annotations

import re
from collections.abc import Callable
from xml.etree import ElementTree

import numpy as np
import pytest
from markupsafe import Markup

from anmi_ray.core.identity import rng
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.reports import campaign, charts, pictures, theme
from anmi_ray.reports.page import asset

HOSTILE = "</text></svg><script>alert(1)</script>\"'<img src=http://evil.example onerror=x> & \x07 var(--main)"


def values(size: int) -> np.ndarray:
    return rng("charts", size).normal(0, 100, size)


def lines(size: int, name: str) -> Markup:
    points = [(float(k), float(v)) for k, v in enumerate(values(size))]
    curves = [charts.Curve(name, charts.smooth(points)), charts.Curve(f"{name}2", charts.smooth(points[:2]))]
    ring = points[0] if points else None
    return charts.lines(curves, name, name, ring=ring)


def interval_lines(size: int, name: str) -> Markup:
    rows = [
        charts.IntervalLine(k, v, None if k % 3 == 2 else v - 1, v + 1, name, name, name)
        for k, v in enumerate(values(min(size, 100)).tolist())
    ]
    unknown = charts.IntervalLine(len(rows), None, None, None, name, "not known")
    return charts.intervals([*rows, unknown], name, name, 0.0, breaks=[0.5], title=[name, name])


def histogram(size: int, name: str) -> Markup:
    groups = {"soft": values(size), name: values(size) + 50}
    return charts.histogram(groups, {"soft": values(size // 2)}, [(name, None, 0.0), ("easy", 0.0, None)], name)


def matrix(size: int, name: str) -> Markup:
    names = [f"{name}{k}" for k in range(min(size, 30))]
    cells = [
        {"row": i, "column": j, "value": (i + j) / (2 * len(names)), "tooltip": name}
        for i in range(len(names))
        for j in range(len(names))
        if i != j
    ]
    return charts.matrix(names, cells, (0.0, 1.0), name, name)


def trials(size: int) -> list[campaign.Trial]:
    ends: tuple[campaign.Status, ...] = ("complete", "stopped", "failed", "running")
    rows = []
    for k, v in enumerate(values(min(size, 300)).tolist()):
        curve = tuple((0.25 * (n + 1), v + n) for n in range(k % 4))
        dev = v if k % 4 == 0 else None
        rows.append(campaign.Trial(k, ends[k % 4], {}, curve, dev, 1.0, None, "run", "train"))
    return rows


def calibration(size: int, name: str) -> Markup:
    curve = [((k + 1) / 21, Estimate(0.5, 0.4, 0.6, 10)) for k in range(min(size, 20))]
    return charts.calibration({name: curve, f"{name}2": curve}, name, name)


def rated(size: int, name: str) -> Markup:
    some = values(size)
    known, component = np.arange(size) == 1, (np.arange(size) % 3).astype(np.int32)
    return pictures.ratings(pictures.RatedList(name, [name] * size, some, np.ones(size), known, component))


CHARTS: dict[str, Callable[[int, str], Markup]] = {
    "lines": lines,
    "intervals": interval_lines,
    "per query": lambda size, name: charts.per_query(values(size), name, name, name),
    "scatter": lambda size, name: charts.scatter(values(size), values(size), name, name),
    "histogram": histogram,
    "matrix": matrix,
    "history": lambda size, name: campaign.history(trials(size), 0, name),
    "calibration": calibration,
    "ratings": rated,
}
EMPTY = {"histogram", "ratings"}  # their callers draw them only where there is something


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
def test_equal_numbers_give_equal_bytes(name: str) -> None:
    assert CHARTS[name](12, "a") == CHARTS[name](12, "a")


@pytest.mark.parametrize("name", list(CHARTS))
def test_texts_stay_texts(name: str) -> None:
    check(CHARTS[name](3, HOSTILE))


def test_a_hostile_name_is_shown_whole() -> None:
    rows = [charts.IntervalLine(0, 1.0, 0.0, 2.0, "<b>x & y</b>", "<i>", "<u>")]
    (root,) = check(charts.intervals(rows, "label <l>", "axis <a>"))
    texts = {node.text for node in root.iter("text")} | {node.text for node in root.iter("title")}
    assert {"<b>x & y</b>", "<i>", "<u>", "axis <a>"} <= texts
    assert root.attrib["aria-label"] == "label <l>"


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_what_is_not_a_number_is_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        charts.lines([charts.Curve("a", [(0.0, 1.0), (1.0, bad)])], "x", "y")
    with pytest.raises(ValueError, match="JSON compliant"):
        charts.intervals([charts.IntervalLine(0, bad, None, None)], "label", "x")


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


@pytest.mark.parametrize("documents", [1, 10, 300])
@pytest.mark.parametrize("groups", [1, 3])
def test_ratings_name_their_documents(documents: int, groups: int) -> None:
    component = np.sort(np.arange(documents) % groups).astype(np.int32)
    found = pictures.RatedList(
        "what <is> this?", [f"doc & {i}" for i in range(documents)], np.linspace(300, -300, documents),
        np.full(documents, 40.0), np.arange(documents) == 1, component,
    )  # fmt: skip
    drawn = pictures.ratings(found)
    assert drawn.count("<title>") == min(documents, pictures.MAX_DOCUMENTS)
    assert ("in 3 groups that no comparison connects" in drawn) == (groups == 3 and documents >= 3)
    assert ("the first 120 of 300 documents" in drawn) == (documents == 300)
    assert ("✓ doc" in drawn) == (documents > 1)


def test_what_an_audit_does_not_know_is_said_or_left_out() -> None:
    silent = {"position_bias": {"probability": None, "pairs": 0}}
    (alone,) = pictures.of_audit({"judges": {"": silent}, "panel": {}})
    assert "no pair in both orders" in alone
    assert "(unnamed)" in alone
    alike = {
        "a ~ b": {"share": 0.8, "pairs": 7},
        "b ~ c": {"share": 0.9, "pairs": 7},
        "a ~ c": {"share": None, "pairs": 0},
    }
    figures = {"judges": dict.fromkeys("abc", silent), "panel": {"agreement_pairs": alike}}
    (agreement,) = pictures.of_audit(figures)
    assert agreement.count("<title>") == 4  # the two that are not known are left empty
    assert "a ~ b: 80.0 % of 7" in agreement
    bias = {"probability": 0.1, "interval": [0.05, 0.15], "pairs": 40, "first_preferred": 5, "second_preferred": 2}
    biases, _ = pictures.of_audit(figures | {"judges": {**figures["judges"], "c": {"position_bias": bias}}})
    assert "+10.0 [+5.0, +15.0] · 5 : 2" in biases
    check(pictures.agreement(pictures.DecidedAlike(["a"], np.full((1, 1), np.nan), np.zeros((1, 1), np.int64))))


def test_a_file_of_pictures_stands_alone() -> None:
    drawn = [rated(3, "a <query>"), matrix(3, "b")]
    svg = pictures.content(drawn, ".svg", "", "")
    root = ElementTree.fromstring(svg)
    assert len(root.findall("{http://www.w3.org/2000/svg}svg")) == 2
    assert "var(" not in svg
    page = pictures.content(drawn, ".html", "Ratings of <file>", "a note")
    assert "<title>Ratings of &lt;file&gt;</title>" in page
    assert "default-src 'none'" in page
    assert not re.search(r"(src|href)=|url\(|@import|<script", page)
    assert page.lower().startswith("<!doctype html>")


def test_long_names_are_shortened() -> None:
    assert theme.short("x" * 50) == "x" * 19 + "…" + "x" * 10
