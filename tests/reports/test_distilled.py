"""The page of a distilled judge: whole whatever is missing, self-contained, equal bytes, no claim without cause."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core.errors import DataError, StoreError
from anmi_ray.core.identity import rng
from anmi_ray.evaluation.distilled import COLUMNS, ROWS, DistilledData, Segment, analyse
from anmi_ray.evaluation.significance import Estimate
from anmi_ray.reports import distilled as page
from anmi_ray.reports import distilled_charts, polygons
from anmi_ray.reports.distilled import to_json
from tests.evaluation.judged_pairs import World, learning, table, world

from .test_run import Page

SOME = Estimate(0.5, 0.4, 0.6, 10)


@pytest.fixture(scope="module")
def of() -> World:
    return world(300, seed=9)


@pytest.fixture(scope="module")
def stored(of: World) -> pa.Table:
    """A ternary model at three steps, and beside it a binary one, similarity, two heads and one on random labels."""
    random = rng("stored")
    similar = np.clip(of.mean_P + 0.3 * random.normal(size=300), 0, 1)
    nothing = 0.5 + 0.01 * random.normal(size=300)
    heads = np.stack([of.mean_P, 1 - of.ternary[:, 2]], axis=1)
    return pa.concat_tables(
        [
            learning(of, steps=(10, 20, 40)),
            table(of, "binary", "binary", 40, of.mean_P),
            table(of, "similarity", "binary", 0, similar),
            table(of, "heads", "two-head", 40, heads),
            table(of, "noise", "binary", 40, nothing),
        ]
    )


@pytest.fixture(scope="module")
def data(stored: pa.Table) -> DistilledData:
    return analyse(stored, "ternary", ["binary", "similarity"], run="a run", true_known=True)


def words(data: DistilledData) -> str:
    html = page.to_html(data)
    parsed = Page(html)
    assert [tag for tag, _ in parsed.tags if tag in {"link", "img", "iframe", "script", "object", "base", "form"}] == []
    for tag, attributes in parsed.tags:
        assert "src" not in attributes
        assert not any(name.startswith("on") for name in attributes)
        assert (attributes.get("href") or "#").startswith("#"), tag
    assert "url(" not in html
    assert not re.search(r"\bnan\b|\binf\b|None", "".join(re.findall(r"<svg.*?</svg>", html)))
    assert "None" not in parsed.words()
    assert "default-src 'none'" in html
    json.loads(to_json(data))
    return parsed.words()


def test_all_ten_figures_stand_on_the_page(data: DistilledData) -> None:
    said, html = words(data), page.to_html(data)
    for number in range(1, 11):
        assert said.count(f"Figure {number}.") == 1
    # 1, three triangles, 3, 4 with bars, 5, 6, 7, calibration, 8 with bars, 9, 10 twice
    assert html.count("<svg") == 1 + 3 + 1 + 2 + 3 + 1 + 2 + 1 + 2
    assert "simulated judges" in said
    for name in ("binary", "similarity", "always ½", "base rate of these pairs"):
        assert name in said


def test_every_number_is_in_the_json(data: DistilledData) -> None:
    found = json.loads(to_json(data))
    assert found["format"] == 2
    assert len(found["radius_buckets"]) == len(found["mean_buckets"]) == 20
    assert sum(row["n"] for row in found["radius_buckets"]) == 300
    assert len(found["segments"]) == COLUMNS * ROWS
    assert sum(row["n"] for row in found["segments"]) == 300
    assert [row["step"] for row in found["checkpoints"]] == [10, 20, 40]
    assert len(found["points"]["first"]) == 300
    assert len(found["score_kinds"]) == len(found["kinds"]) == 5
    assert sum(found["kinds"]) == pytest.approx(1)


def test_the_page_says_the_numbers_of_the_json(data: DistilledData) -> None:
    said = words(data)
    content = json.loads(to_json(data))
    for row in content["checkpoints"]:
        assert f"{row['step']:,} {row['accuracy']['mean']:.3f} {page.bracket(Estimate(**row['accuracy']), 2)}" in said
        assert f"{row['brier']['mean']:.4f} {row['slope']['mean']:.2f} {row['tie']:.3f}" in said
    for row in content["predictors"]:
        assert f"{row['name']} {row['accuracy']['mean']:.3f}" in said
        assert f"{row['brier']['mean']:.4f} {page.bracket(Estimate(**row['brier']), 4)}" in said
    for row in content["circles"]:
        assert f"r ≤ {row['radius']:g}" in said
        assert f"{row['n']:,} pairs" in said
    assert f"{content['ties']['mean']:.3f}" in said
    assert [row["moved"] is None for row in content["checkpoints"]] == [True, False, False]


def test_the_finding_says_the_accuracy(data: DistilledData) -> None:
    found = data.predictors[0].accuracy
    assert found.mean is not None
    share = f"{100 * found.mean:.1f} %"
    assert (
        page.finding(data) == f"Ternary sides with the ensemble in {share} of the pairs on which all its judges agree"
    )
    assert f"{data.consensus} of 300 held-out pairs of 150 queries, step 40" in page.evidence(data)


def test_a_binary_target_has_no_second_dimension(stored: pa.Table) -> None:
    data = analyse(stored, "binary")
    said = words(data)
    assert data.segments == data.strip == ()
    assert "there is no second dimension" in said
    assert "Figure 9." not in said
    assert "1 of 1 checkpoint." in said


def test_two_heads_fill_the_triangle(stored: pa.Table) -> None:
    data = analyse(stored, "heads")
    assert len(data.segments) == COLUMNS * ROWS
    assert data.mended == 0
    assert "said E|C| below" not in words(data)
    assert "7 of 300 predictions said E|C| below" in words(replace(data, mended=7))


def test_equal_predictions_give_equal_bytes(stored: pa.Table, data: DistilledData, tmp_path: Path) -> None:
    more = {"run": "a run", "true_known": True}
    turned = stored.take(pa.array(rng("turn").permutation(stored.num_rows)))
    page.write_page(turned, "ternary", tmp_path / "new", ["binary", "similarity"], **more)
    assert (tmp_path / "new" / "distilled.html").read_text(encoding="utf-8") == page.to_html(data)
    assert (tmp_path / "new" / "distilled.json").read_text(encoding="utf-8") == to_json(data)
    (tmp_path / "file").touch()
    with pytest.raises(StoreError):
        page.write_page(stored, "ternary", tmp_path / "file")


def test_names_are_escaped(of: World) -> None:
    hostile = "<script>alert(1)</script>"
    stored = pa.concat_tables([learning(of, hostile), table(of, hostile + "2", "binary", 1, of.mean_P)])
    html = page.to_html(analyse(stored, hostile, [hostile + "2"], collection=hostile, notes=[hostile]))
    assert "<script" not in html
    assert html.count("&lt;script&gt;") >= 8


def test_no_consensus_at_all(of: World) -> None:
    """Judges of soft scores: no pair is unanimous, and nothing breaks."""
    soft = replace(of, score_P=0.2 + 0.6 * of.score_P)
    data = analyse(learning(soft), "ternary")
    said = words(data)
    assert data.consensus == 0
    assert "the judges agree on none of the held-out pairs" in said
    assert "accuracy on consensus" in said


def test_a_few_pairs_are_enough() -> None:
    data = analyse(learning(world(3, queries=3), steps=(1,)), "ternary")
    assert data.pairs == 3
    words(data)
    with pytest.raises(DataError, match="pairs of 1 query"):
        analyse(learning(world(3, queries=1), steps=(1,)), "ternary")


def test_a_model_that_says_one_thing(of: World) -> None:
    stored = pa.concat_tables([table(of, "flat", "ternary", step, np.full((300, 3), 1 / 3)) for step in (1, 2)])
    data = analyse(stored, "flat")
    said = words(data)
    assert data.predictors[0].calibration.slope.mean is None
    assert "do not differ from pair to pair" in said


def test_models_on_other_pairs_are_refused(stored: pa.Table, of: World) -> None:
    short = table(of, "short", "binary", 1, of.mean_P).slice(10)
    with pytest.raises(DataError, match="predicted different pairs"):
        analyse(pa.concat_tables([stored, short]), "ternary", ["short"])


# --- pictures ----------------------------------------------------------------------------------------------------


def segment(column: int, row: int, mean: tuple[float, float], decided: tuple[float, float]) -> Segment:
    return Segment(column, row, 5, *mean, *decided, 0.3, 0.5, SOME, SOME, (0.2,) * 5)


def test_segments_tile_the_triangle(data: DistilledData) -> None:
    """The pieces' areas sum to that of the folded triangle, a quarter."""
    rows = [
        segment(0, 0, (0.1, 0.2), (0.7, 0.8)),
        segment(0, 1, (0.1, 0.2), (0.9, 1.0)),
        segment(1, 0, (0.25, 0.4), (0.3, 0.6)),
        segment(1, 1, (0.25, 0.5), (0.6, 1.0)),
    ]
    for some in (rows, data.segments):
        pieces = [polygons.cut(*bounds) for bounds in polygons.bounds(some)]
        assert sum(polygons.area(piece) for piece in pieces if len(piece) > 2) == pytest.approx(0.25)
        for piece in pieces:
            assert all(-1e-12 <= b <= a + 1e-12 and a + b <= 1 + 1e-12 for a, b in piece)


def test_a_cut_by_hand() -> None:
    assert set(polygons.cut(0.0, 0.5, 0.0, 1.0)) == {(0.0, 0.0), (0.5, 0.5), (1.0, 0.0)}
    assert polygons.area([(0, 0), (1, 0), (0.5, 0.5)]) == 0.25
    assert polygons.centroid([(0, 0), (1, 0), (1, 1), (0, 1)]) == (0.5, 0.5)


def test_every_dot_is_drawn_once(data: DistilledData) -> None:
    assert str(distilled_charts.folded_triangle(data.points)).count("h0") == 300
    drawn = distilled_charts.folded_triangle(data.points, strip=data.strip)
    assert drawn.count("h0") + drawn.count("<circle") == 300  # those outside of the strip are faded
    assert str(distilled_charts.confidence(data.points)).count("h0") == 300
    for _, points in data.triangles:
        assert str(distilled_charts.triangle(points, 1)).count("h0") == len(points.score)
