from __future__ import annotations

import math
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import Closed, Optimum
from anmi_ray.core.scale import ELO_PER_PROBIT, normal_cdf, normal_pdf
from anmi_ray.mining.negatives import Common
from anmi_ray.mining.optimum import information, optimum
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


@pytest.mark.parametrize(
    ("settings", "spread", "target"),
    [
        ({}, 277.0, 260.0),
        ({}, 138.5, 130.0),  # half the spread: half the gap
        ({"reference_sd": 554.0}, 277.0, 130.0),
    ],
)
def test_the_closed_rule_by_hand(settings: dict[str, float], spread: float, target: float) -> None:
    """f(ρ) = 200 (1 + 2ρ) times the query's spread over the reference: the nearest gap is taken first."""
    gap = [target - 30.0, target + 20.0, target, -target, target + 500.0]
    negatives = pool(gap, spread=spread)
    priority = closed(negatives, np.ones(5), Closed(rule="closed", **{"reference_sd": 277.0, **settings}), COMMON)
    np.testing.assert_allclose(priority, [-30.0, -20.0, 0.0, -2 * target, -500.0], atol=1e-9)
