from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from scipy import integrate, stats

from anmi_ray.config.mine import TABLE_2, Band, MineConfig
from anmi_ray.mining import posterior, sampling, table
from anmi_ray.mining.negatives import Negatives, rank_within

CONFIG = MineConfig()
gaps_and_errors = st.lists(st.tuples(st.floats(-2000, 2000), st.floats(0, 500)), min_size=1, max_size=20)


def pool(gap: np.ndarray, gap_se: np.ndarray, example: np.ndarray | None = None) -> Negatives:
    ids = np.random.default_rng(len(gap)).integers(0, 256, (len(gap), 16)).astype(np.uint8)
    where = np.zeros(len(gap), dtype=np.int64) if example is None else example
    return Negatives(where, ids, gap, gap_se, np.zeros(len(gap), dtype=bool))


def test_table_2_as_printed() -> None:
    gap = np.array([-50.0, 0.0, 99.0, 100.0, 199.0, 200.0, 399.0, 400.0, 599.0, 600.0, 2000.0])
    weights = table.weigh(pool(gap, np.zeros_like(gap)), CONFIG)
    assert weights.tolist() == [0.0, 0.0, 0.0, 0.5, 0.5, 1.0, 1.0, 0.7, 0.7, 0.3, 0.3]
    names = [CONFIG.bands[i].category for i in table.band(gap, CONFIG)]
    assert names == ["danger"] * 3 + ["soft"] * 2 + ["goldilocks"] * 2 + ["medium"] * 2 + ["easy"] * 2
    assert [table.TIERS[name] for name in ("anchor", "random", "easy", "medium", "goldilocks", "soft")] == [
        0,
        1,
        1,
        1,
        2,
        3,
    ]


@pytest.mark.parametrize("gap", [-200.0, 80.0, 150.0, 310.0, 500.0, 900.0])
@pytest.mark.parametrize("gap_se", [20.0, 130.0, 400.0])
def test_posterior_weight_is_the_integral_of_the_table(gap: float, gap_se: float) -> None:
    def integrand(x: float) -> float:
        return float(table.weigh(pool(np.array([x]), np.zeros(1)), CONFIG)[0] * stats.norm.pdf(x, gap, gap_se))

    low, high = gap - 9 * gap_se, gap + 9 * gap_se
    inner = [edge for edge in CONFIG.edges if low < edge < high]
    expected, _ = integrate.quad(integrand, low, high, points=inner or None, limit=200)
    assert posterior.weigh(pool(np.array([gap]), np.array([gap_se])), CONFIG)[0] == pytest.approx(expected, abs=1e-7)


@given(gaps_and_errors)
@settings(max_examples=60, deadline=None)
def test_weights_lie_in_the_unit_interval_and_probabilities_too(rows: list[tuple[float, float]]) -> None:
    gap, gap_se = np.array(rows).T
    for rule in (table, posterior):
        weights = rule.weigh(pool(gap, gap_se), CONFIG)
        assert ((weights >= 0) & (weights <= 1)).all()
    p = posterior.false_negative(gap, gap_se, CONFIG)
    assert ((p >= 0) & (p <= 1)).all()


@given(gaps_and_errors)
@settings(max_examples=60, deadline=None)
def test_posterior_becomes_the_table_as_the_error_vanishes(rows: list[tuple[float, float]]) -> None:
    gap = np.array([row[0] for row in rows])
    exact, tiny = pool(gap, np.zeros_like(gap)), pool(gap, np.full_like(gap, 1e-9))
    expected = table.weigh(exact, CONFIG)
    np.testing.assert_allclose(posterior.weigh(exact, CONFIG), expected)
    away = np.abs(gap[:, None] - np.array(CONFIG.edges)).min(axis=1) > 1e-6
    np.testing.assert_allclose(posterior.weigh(tiny, CONFIG)[away], expected[away], atol=1e-12)
    np.testing.assert_array_equal(posterior.allow(exact, CONFIG), gap >= 100)
    gated = np.where(posterior.allow(exact, CONFIG), posterior.weigh(exact, CONFIG), 0.0)
    np.testing.assert_allclose(gated, expected)


def test_the_gate_bounds_the_probability_of_a_false_negative() -> None:
    gap, gap_se = np.array([100.0, 300.0, 100.0 + 1.6449 * 130, 600.0]), np.full(4, 130.0)
    assert posterior.allow(pool(gap, gap_se), CONFIG).tolist() == [False, False, True, True]
    strict = MineConfig(gate=0.02)
    assert posterior.allow(pool(gap, gap_se), strict).tolist() == [False, False, False, True]
    np.testing.assert_allclose(
        posterior.false_negative(gap, gap_se, CONFIG), stats.norm.cdf((100 - gap) / 130), rtol=1e-12
    )


def test_weighted_sampling_draws_by_weight() -> None:
    """Gumbel top-1 over many examples picks each document in proportion to its weight."""
    weights, draws = np.array([0.1, 0.3, 0.6]), 4000
    example = np.repeat(np.arange(draws), 3)
    negatives = pool(np.zeros(3 * draws), np.zeros(3 * draws), example)
    priority = sampling.weighted(negatives, np.tile(weights, draws), CONFIG, seed=1).reshape(draws, 3)
    share = np.bincount(priority.argmax(axis=1), minlength=3) / draws
    np.testing.assert_allclose(share, weights, atol=4 * np.sqrt(0.25 / draws))


@given(st.lists(st.tuples(st.integers(0, 3), st.floats(-5, 5)), max_size=30))
@settings(max_examples=60, deadline=None)
def test_rank_within_groups(rows: list[tuple[int, float]]) -> None:
    group = np.array([row[0] for row in rows], dtype=np.int64)
    key = np.array([row[1] for row in rows])
    rank = rank_within(group, key)
    for g in set(group.tolist()):
        mine = np.flatnonzero(group == g)
        assert rank[mine[np.argsort(key[mine], kind="stable")]].tolist() == list(range(len(mine)))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"bands": [TABLE_2[0], TABLE_2[1]]}, "upper edge"),
        ({"bands": [TABLE_2[1], TABLE_2[0], TABLE_2[4]]}, "ascend"),
        ({"bands": [TABLE_2[0], Band(category="danger", below=None, weight=0.1)]}, "stands twice"),
        ({"min_rated_negatives": 8}, "at most negatives"),
        ({"rule": "percentile"}, "rule"),
        ({"gate": 0.0}, "gate"),
    ],
)
def test_settings_that_contradict_are_refused(settings_: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        MineConfig.model_validate(settings_)
