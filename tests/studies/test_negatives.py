"""The study of negatives at a small size: its figures by hand, and what it finds shows already."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import GaussianMixture
from anmi_ray.mining.mixture import fit
from anmi_ray.mining.optimum import information
from jobs.studies import negatives as study
from jobs.studies.negative_worlds import Mined, Taken, World, in_order, mined
from jobs.studies.negatives import BUDGETS, COSTS, RULES

pytestmark = pytest.mark.slow
FEW = ("posterior, gate .05", "posterior, gate .02", "table2", "validated", "uniform", "rank-window")


@pytest.fixture(scope="module")
def plain() -> Mined:
    return mined(World(), 60)


@pytest.fixture(scope="module")
def near() -> Mined:
    return mined(World(near=5), 60)


@pytest.fixture(scope="module")
def found() -> study.Found:
    return study.study([World(), World(near=5)], {name: RULES[name] for name in FEW}, 60, 0)


def test_worlds_are_as_they_say(plain: Mined, near: Mined) -> None:
    for world in (plain, near):
        seen = world.negatives
        assert len(seen.gap) == len(world.true_gap) == 60 * 99
        assert np.bincount(seen.example).tolist() == [99] * 60
        assert np.corrcoef(seen.gap, world.true_gap)[0, 1] > 0.8
        assert np.corrcoef(seen.score, -world.true_gap)[0, 1] == pytest.approx(0.45, abs=0.1)
        assert (~np.isnan(seen.direct)).sum() == 60 * 8  # the positive has met eight documents
    assert plain.true_gap.min() > 0
    assert not plain.planted.any()
    assert np.bincount(near.negatives.example, near.planted).tolist() == [5] * 60
    assert near.true_gap[near.planted].mean() == pytest.approx(0, abs=40)  # drawn like the positive


def test_a_world_is_a_pure_function_of_its_seed(plain: Mined) -> None:
    again, other = mined(World(), 60), mined(World(), 60, seed=1)
    np.testing.assert_array_equal(again.negatives.gap, plain.negatives.gap)
    assert (other.true_gap != plain.true_gap).any()


def test_direct_judgments_are_seen_from_the_positive(plain: Mined) -> None:
    met = ~np.isnan(plain.negatives.direct)
    wide = met & (plain.true_gap > 400)
    assert plain.negatives.direct[wide].mean() > 0.95


def test_validation_asks_only_about_borderline_documents(plain: Mined) -> None:
    config = MineConfig(rule="validated")
    unmet = replace(plain, negatives=replace(plain.negatives, direct=np.full(60 * 99, np.nan)))
    lost = replace(unmet, fresh=np.zeros(60 * 99))
    sure = replace(unmet, fresh=np.ones(60 * 99))
    gap = plain.negatives.gap
    border = (gap >= 80) & (gap <= 150)
    for world, allowed in ((lost, False), (sure, True)):
        taken = in_order(world, config)
        assert np.isin(np.flatnonzero(border), taken.row).all() == allowed
        rest = np.setdiff1d(taken.row, np.flatnonzero(border))
        np.testing.assert_array_equal(rest, np.flatnonzero(~border & (gap >= 100)))


def test_figures_by_hand(plain: Mined) -> None:
    """Two queries: weights 1, .5, .25 of true gaps 50 (false), 300, 500; and one document of weight 1, gap 200."""
    gap = np.full(plain.true_gap.shape, 300.0)
    row = np.array([0, 1, 2, 99])
    gap[row] = [50.0, 300.0, 500.0, 200.0]
    world = replace(
        plain,
        queries=2,
        true_gap=gap[:198],
        planted=np.zeros(198, np.bool_),
        negatives=replace(plain.negatives, example=np.repeat([0, 1], 99)),
    )
    taken = Taken(row, np.array([0, 1, 2, 0]), np.array([1.0, 0.5, 0.25, 1.0]))
    bits = information(gap[row])
    full = study.measure(world, taken, 99, math.inf).figures
    assert full["false"].value == pytest.approx(1 / 2.75)
    assert full["false by count"].value == pytest.approx(1 / 4)
    assert full["gap"].value == pytest.approx(1050 / 4)
    assert full["information"].value == pytest.approx(np.array([1, 0.5, 0.25, 1]) @ bits / 2.75)
    two = study.measure(world, taken, 2, math.inf).figures
    assert two["filled"].value == 0.5
    assert two["net 5"].value == pytest.approx((bits[0] - 5 + bits[1] + bits[3]) / 4)
    weight = study.measure(world, taken, 99, 1.25).figures
    assert weight["documents"].value == pytest.approx((1.5 + 1) / 2)  # half of the second fills 1.25
    assert weight["weight"].value == pytest.approx((1.25 + 1) / 2)
    assert weight["filled"].value == 0.5
    assert weight["net 2"].value == pytest.approx((bits[0] - 2 + 0.25 * bits[1] + bits[3]) / 1.25 / 2)


def test_what_it_finds(found: study.Found) -> None:
    for worlds in found.values():
        for rules in worlds.values():
            strict, gated, literal = (
                rules[name].figures for name in ("posterior, gate .02", "posterior, gate .05", "table2")
            )
            fewer = literal["false"] - gated["false"]
            assert fewer.value > fewer.half  # a gate takes fewer false negatives than Table 2, and less information
            assert strict["false"].value < gated["false"].value
            assert literal["information"].value > gated["information"].value > strict["information"].value
            assert gated["net 10"].value > literal["net 10"].value
    plain, near = (found["15 negatives"][world] for world in (World(), World(near=5)))
    for name in FEW:
        assert near[name].figures["false"].value > plain[name].figures["false"].value
        share = plain[name].share
        assert 0 <= share["low"] <= share["mean"] <= share["high"] <= 1
    assert plain["posterior, gate .05"].inside


def test_tables_and_winners(found: study.Found) -> None:
    said = "\n".join(table.markdown() for table in study.tables_of(found))
    assert said.count("\n| uniform | ") == 3 * len(BUDGETS)  # worth, and what it took with two kinds of positives
    assert "nan" not in said
    rows = study.winners(found["weight 5"])
    assert [cost for cost, *_ in rows] == list(COSTS)
    assert all(first != second and lead.value >= 0 for _, first, second, _, lead in rows)


@pytest.mark.parametrize("seed", range(2))
@pytest.mark.parametrize(
    ("worlds", "components"), [(study.ONE, 1), (study.TWO, 2)], ids=["one population", "two populations"]
)
def test_a_mixture_has_as_many_components_as_there_are_populations(
    worlds: list[World], components: int, seed: int
) -> None:
    for world in worlds[:2]:
        gaps = mined(world, study.COMPONENT_QUERIES, seed, study.COMPONENT_DOCUMENTS).negatives.gap
        assert len(fit(gaps, GaussianMixture(rule="gaussian-mixture")).components) == components


def test_bic_takes_the_shape_of_one_population_for_several() -> None:
    data = mined(World(4, 1), study.COMPONENT_QUERIES, 0, study.COMPONENT_DOCUMENTS)
    assert study.chosen_components(data) == {"BIC": 4, "BIC, N_eff": 3, "BIC, queries": 1, "ICL": 1}


@pytest.mark.studies
def test_a_small_study_writes_its_page(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study.main(["--queries", "4", "--rules", "table2", "posterior, gate .05", "--out", str(tmp_path)])
    assert "Default: " in capsys.readouterr().out
    page = (tmp_path / "negatives.md").read_text(encoding="utf-8")
    assert "> Which rule of mining takes the best negatives?" in page
    assert json.loads((tmp_path / "negatives.json").read_text(encoding="utf-8"))["tables"]
