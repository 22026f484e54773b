from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import optimize

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import Closed, Optimum
from anmi_ray.core.scale import ELO_PER_PROBIT, normal_cdf, normal_pdf
from anmi_ray.mining.negatives import Common
from anmi_ray.mining.optimum import best_gap, information, optimum, zone_costs
from anmi_ray.mining.posterior import below
from anmi_ray.mining.sampling import closed
from tests.mining import world

COMMON = Common(MineConfig(), 0)


pool = partial(world.pool, spread=277.0)


def stationary(gap: float, gap_se: float, false_gap: float = 0.0) -> float:
    """The λ at which dU/dΔ = 0, by hand: I'(Δ) = −log2(p/q)·φ(z)/s, z = Δ/s, p = Φ(z)."""
    z = gap / ELO_PER_PROBIT
    slope = math.log2(normal_cdf(z) / normal_cdf(-z)) * normal_pdf(z) / ELO_PER_PROBIT
    return float(slope * gap_se / normal_pdf((gap - false_gap) / gap_se))


def test_information_by_hand() -> None:
    p = 0.841344746068543  # Φ(1)
    by_hand = -p * math.log2(p) - (1 - p) * math.log2(1 - p)
    found = information(np.array([0.0, ELO_PER_PROBIT, -ELO_PER_PROBIT]))
    np.testing.assert_allclose(found, [1.0, by_hand, by_hand], rtol=1e-12)


def test_information_keeps_its_digits_far_out() -> None:
    """At ten probits q = 7.62e-24, which 1 − Φ(10) would lose."""
    q = 7.61985302416053e-24
    by_hand = -q * math.log2(q) + q / math.log(2)
    assert information(np.array([10 * ELO_PER_PROBIT]))[0] == pytest.approx(by_hand, rel=1e-9, abs=0.0)
    assert information(np.array([1e6]))[0] == 0.0


@given(st.lists(st.floats(0, 5000), min_size=2, max_size=20))
def test_information_falls_from_one_bit(gaps: list[float]) -> None:
    found = information(np.sort(np.array(gaps)))
    assert (np.diff(found) <= 1e-15).all()
    assert ((found >= 0) & (found <= 1)).all()


def test_the_rule_by_hand() -> None:
    """At a gap of one error, P(Δ < 0) = Φ(−1) = .158655; I at a probit is .631."""
    weight = optimum(pool([ELO_PER_PROBIT], ELO_PER_PROBIT), Optimum(rule="optimum", cost=2.0), COMMON).weight
    assert weight[0] == pytest.approx(information(np.array([ELO_PER_PROBIT]))[0] - 2.0 * 0.15865525393, abs=1e-9)


def test_limits_of_the_cost() -> None:
    gap = np.linspace(-500, 1500, 81)
    negatives = pool(gap.tolist(), 120.0)
    free = optimum(negatives, Optimum(rule="optimum", cost=0.0), COMMON).weight
    np.testing.assert_array_equal(free, information(gap))
    dear = optimum(negatives, Optimum(rule="optimum", cost=1000.0), COMMON).weight
    danger = below(0.0, gap, negatives.gap_se)
    assert (dear[danger > 1e-3] == 0.0).all()
    assert (dear[(danger < 1e-6) & (gap < 900)] > 0.0).all()


@given(st.floats(-500, 1500), st.floats(0, 400), st.floats(0, 500), st.floats(0, 500))
def test_weights_lie_in_the_unit_interval_and_fall_with_the_cost(gap: float, se: float, a: float, b: float) -> None:
    low, high = (
        optimum(pool([gap], se), Optimum(rule="optimum", cost=cost), COMMON).weight[0] for cost in sorted((a, b))
    )
    assert 0.0 <= high <= low <= 1.0


def test_with_an_error_of_140_the_optimum_runs_from_56_to_450() -> None:
    """The methods' figures are those of costs from a quarter of a bit to a hundred bits."""
    costs = [0.25, 1.0, 2.0, 4.0, 100.0]
    found = best_gap(costs, 140.0)
    np.testing.assert_allclose(found, [56.05, 151.80, 206.62, 258.27, 450.48], atol=0.01)
    np.testing.assert_allclose([stationary(gap, 140.0) for gap in found], costs, rtol=1e-5)


@pytest.mark.parametrize("false_gap", [-50.0, 0.0, 100.0])
@pytest.mark.parametrize("gap_se", [30.0, 140.0, 250.0, 300.0])
def test_best_gap_against_a_scalar_optimiser(gap_se: float, false_gap: float) -> None:
    costs = np.array([0.05, 0.5, 1.0, 2.0])
    for cost, found in zip(costs, best_gap(costs, gap_se, false_gap), strict=True):

        def loss(gap: float, cost: float = cost) -> float:
            at = np.reshape(gap, 1)
            return float(cost * below(false_gap, at, np.array([gap_se]))[0] - information(at)[0])

        peer = min(np.arange(0.0, 1500.0, 5.0).tolist(), key=loss)
        fine = float(np.asarray(optimize.fminbound(loss, max(0.0, peer - 10.0), peer + 10.0, xtol=1e-6)))
        assert loss(found) <= loss(fine) + 1e-12
        assert found == pytest.approx(fine, abs=0.05)


def test_best_gap_at_the_ends() -> None:
    np.testing.assert_allclose(best_gap(0.0, [0.0, 50.0, 300.0]), 0.0, atol=1e-4)
    assert best_gap(5.0, 0.0, 100.0) == pytest.approx(100.0, abs=1e-4)  # without error: the first safe gap
    assert np.isinf(best_gap(100.0, 400.0))  # danger outlasts information: no gap is worth it
    assert best_gap(np.ones((2, 1)), np.full(3, 140.0)).shape == (2, 3)


@given(st.lists(st.floats(0, 100), min_size=2, max_size=6), st.floats(1, 350), st.floats(-100, 150))
def test_the_optimum_never_falls_with_the_cost(costs: list[float], gap_se: float, false_gap: float) -> None:
    found = best_gap(np.sort(costs), gap_se, false_gap)
    assert (found[1:] >= found[:-1] - 1e-3).all()  # flat tops are found to 1e-4 points


@pytest.mark.parametrize(("gap_se", "false_gap"), [(50.0, 0.0), (140.0, 0.0), (200.0, 0.0), (140.0, 100.0)])
def test_costs_of_the_zone_are_the_stationary_ones(gap_se: float, false_gap: float) -> None:
    low, high = zone_costs(gap_se, false_gap=false_gap)
    assert low == pytest.approx(stationary(150.0, gap_se, false_gap), rel=1e-4)
    assert high == pytest.approx(stationary(300.0, gap_se, false_gap), rel=1e-4)
    inside = best_gap(np.geomspace(low * 1.001, high * 0.999, 7), gap_se, false_gap)
    assert ((inside >= 150.0) & (inside <= 300.0)).all()
    assert best_gap(low * 0.99, gap_se, false_gap) < 150.0
    assert best_gap(high * 1.01, gap_se, false_gap) > 300.0


def test_the_zone_is_missed_without_error_and_with_a_huge_one() -> None:
    costs = zone_costs([0.0, 140.0, 1000.0])
    assert costs.shape == (3, 2)
    assert np.isnan(costs).all(axis=1).tolist() == [True, False, True]


@pytest.mark.parametrize(
    ("settings", "spread", "target"),
    [
        ({"rho": 0.0}, 277.0, 200.0),
        ({"rho": 0.1}, 277.0, 240.0),
        ({"rho": 0.15}, 277.0, 260.0),
        ({"rho": 0.3}, 138.5, 160.0),  # half the spread: half the gap
        ({"rho": 0.1, "reference_sd": 554.0}, 277.0, 120.0),
    ],
)
def test_the_closed_rule_by_hand(settings: dict[str, float], spread: float, target: float) -> None:
    """f(ρ) = 200 (1 + 2ρ) times the query's spread over the reference: the nearest gap is taken first."""
    gap = [target - 30.0, target + 20.0, target, -target, target + 500.0]
    negatives = pool(gap, spread=spread)
    priority = closed(negatives, np.ones(5), Closed(rule="closed", **{"reference_sd": 277.0, **settings}), COMMON)
    np.testing.assert_allclose(priority, [-30.0, -20.0, 0.0, -2 * target, -500.0], atol=1e-9)
