"""Calibration: a planted temperature is found, curves are monotone and symmetric, calibrated data stay as they are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from hypothesis.extra.numpy import arrays
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.special import expit

from anmi_ray.config.distill import LABELS, Target
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.judging import calibration
from anmi_ray.judging.calibration import SHARPEST, Isotonic, fit_isotonic, fit_temperature

PROBABILITY = st.floats(0.0, 1.0)
MANY = settings(max_examples=60, deadline=None)


def pairs_of(low: int = 1, high: int = 40) -> st.SearchStrategy[tuple[np.ndarray, np.ndarray]]:
    return st.integers(low, high).flatmap(
        lambda n: st.tuples(arrays(np.float64, n, elements=PROBABILITY), arrays(np.float64, n, elements=PROBABILITY))
    )


@pytest.mark.parametrize("temperature", [0.2, 1.0, 3.7])
def test_a_planted_temperature_is_found(temperature: float) -> None:
    """Labels that are exactly the sigmoid at T: the minimum of the cross-entropy is there, to rounding."""
    raw = 2 * rng("planted", 1).normal(size=300)
    assert fit_temperature(raw, expit(raw / temperature), SHARPEST) == pytest.approx(1 / temperature, rel=1e-9)


def test_sampled_votes_give_the_temperature_within_its_error() -> None:
    random = rng("sampled")
    logit = random.normal(size=20_000)
    votes = (random.random(20_000) < expit(logit / 0.5)).astype(float)
    # the Fisher information of beta at 2 is Σ z² p (1 − p), about 0.08 per pair: a standard error of 0.025
    assert fit_temperature(logit, votes, SHARPEST) == pytest.approx(2.0, abs=0.08)


@MANY
@given(st.integers(2, 30), st.integers(0, 10_000))
def test_newton_finds_the_minimum_that_a_search_finds(pairs: int, seed: int) -> None:
    random = rng("newton", seed)
    raw, label = 3 * random.normal(size=pairs), random.random(pairs)

    def loss(beta: float) -> float:
        return float(np.mean(np.logaddexp(0, beta * raw) - label * beta * raw))

    best: Any = minimize_scalar(loss, bounds=(0.0, 20.0), method="bounded", options={"xatol": 1e-9})
    assert loss(fit_temperature(raw, label, SHARPEST)) <= best.fun + 1e-9


def test_logits_that_point_the_wrong_way_know_nothing() -> None:
    assert fit_temperature(np.array([2.0, -1.0]), np.array([0.0, 1.0]), SHARPEST) == 0


def test_pairs_that_are_all_right_have_the_largest_temperature() -> None:
    assert fit_temperature(np.array([2.0, -1.0]), np.array([1.0, 0.0]), 7.0) == 7.0


@MANY
@given(pairs_of(), arrays(np.float64, 20, elements=PROBABILITY))
def test_the_curve_is_monotone_antisymmetric_and_a_probability(
    fitted: tuple[np.ndarray, np.ndarray], at: np.ndarray
) -> None:
    curve = fit_isotonic(*fitted)
    at = np.sort(np.concatenate([at, [0.0, 0.5, 1.0]]))
    value = curve(at)
    assert np.all(np.diff(value) >= -1e-15)
    assert value.min() > 0
    assert value.max() < 1
    np.testing.assert_allclose(value + curve(1 - at), 1.0, atol=1e-15)


@MANY
@given(pairs_of())
def test_the_order_of_the_documents_does_not_matter(fitted: tuple[np.ndarray, np.ndarray]) -> None:
    p, c = fitted
    p = np.round(p, 3)  # 1 − p is then one number, and not two that differ in the last bit
    one, other = fit_isotonic(p, c), fit_isotonic(1 - p, 1 - c)
    at = np.linspace(0, 1, 11)
    np.testing.assert_allclose(one(at), other(at), atol=1e-6)


def test_calibrated_data_stay_as_they_are() -> None:
    p = np.linspace(0.02, 0.98, 49)
    curve = fit_isotonic(np.repeat(p, 10), np.repeat(p, 10))
    inner = p[(p > 0.05) & (p < 0.95)]
    np.testing.assert_allclose(curve(inner), inner, atol=1e-12)
    assert curve(np.array([0.98]))[0] < 0.98  # the one tie at the end
    assert fit_temperature(np.log(p / (1 - p)), p, SHARPEST) == pytest.approx(1.0, rel=1e-9)


def test_a_curve_by_hand() -> None:
    """Folded: .6 -> 1, .8 -> 0, .9 -> 1, and the tie at 1. Pooled: {.6, .8} -> ½, {.9, 1} -> ¾."""
    curve = fit_isotonic([0.6, 0.2, 0.9], [1.0, 1.0, 1.0])
    assert curve.x == (0.6, 0.8, 0.9, 1.0)
    assert curve.y == (0.5, 0.5, 0.75, 0.75)
    np.testing.assert_allclose(curve([0.7, 0.85, 0.9, 1.0, 0.1, 0.5]), [0.5, 0.625, 0.75, 0.75, 0.25, 0.5])


def test_the_half_that_is_fitted_is_the_whole() -> None:
    """Against the regression on all pairs in both orders: the same curve wherever that one is above a half."""
    random = rng("whole")
    p = np.round(random.random(400), 2)
    c = np.clip(p + 0.5 * random.normal(size=400), 0, 1)
    curve = fit_isotonic(p, c)
    both_p, both_c = np.concatenate([p, 1 - p, [0.0, 1.0]]).round(2), np.concatenate([c, 1 - c, [0.5, 0.5]])
    knots, place = np.unique(both_p, return_inverse=True)
    count = np.bincount(place).astype(float)
    whole = isotonic_regression(np.bincount(place, both_c) / count, weights=count).x
    np.testing.assert_allclose(curve(knots), whole, atol=1e-12)


def test_a_half_alone() -> None:
    assert fit_isotonic([0.5, 0.5], [1.0, 1.0]) == Isotonic((0.5, 1.0), (0.5, 0.5), 2)


TARGETS: tuple[Target, ...] = ("binary", "ternary", "two-head")


@given(st.data(), st.sampled_from(TARGETS), st.integers(1, 6))
def test_exchanged_documents_exchange_the_answer(data: st.DataObject, target: Target, pairs: int) -> None:
    shape = (2 * pairs, len(LABELS[target]))
    logits = data.draw(hnp.arrays(np.float64, shape, elements=st.floats(-30, 30)))
    other = logits.reshape(pairs, 2, -1)[:, ::-1].reshape(shape)
    one, two = calibration.averaged(logits, target), calibration.averaged(other, target)
    assert one.first_P == pytest.approx(two.second_P, abs=1e-12)
    assert one.tie_P == pytest.approx(two.tie_P, abs=1e-12)
    assert one.first_P + one.second_P + one.tie_P == pytest.approx(np.ones(pairs), abs=1e-9)
    assert one.mean_P == pytest.approx(1.0 - two.mean_P, abs=1e-12)


@pytest.mark.parametrize("too_sharp", [0.25, 1.0, 4.0])
def test_temperature_undoes_a_factor(too_sharp: float) -> None:
    generator = rng("temperature")
    lean = generator.normal(0.0, 2.0, 4000)
    score = (generator.random(4000) < expit(lean)).astype(float)
    rows = np.stack([lean, -lean], axis=1).reshape(-1)
    logits = np.stack([np.zeros_like(rows), too_sharp * rows], axis=1)
    found = calibration.fit(logits, score, "binary", "temperature")
    assert found.beta * too_sharp == pytest.approx(1.0, abs=0.1)
    assert found.loss <= found.loss_before
    right = calibration.cross_entropy(calibration.averaged(found.sharpened(logits), "binary"), score, "binary")
    assert found.loss == pytest.approx(right)


def test_a_model_that_leans_to_a_side_is_calibrated_as_its_average() -> None:
    """The mean of both orders of a biased model is too timid however each order is calibrated."""
    generator = rng("leaning")
    lean = generator.normal(0.0, 2.0, 4000)
    score = (generator.random(4000) < expit(lean)).astype(float)
    rows = np.stack([lean + 2.0, -lean + 2.0], axis=1).reshape(-1)
    logits = np.stack([np.zeros_like(rows), rows], axis=1)
    found = calibration.fit(logits, score, "binary", "temperature")
    for beta in found.beta * np.array([0.8, 1.25]):
        other = calibration.OrderCalibration(float(beta), (0, 1), 0, 0)
        assert (
            calibration.cross_entropy(calibration.averaged(other.sharpened(logits), "binary"), score, "binary")
            > found.loss
        )


@pytest.mark.parametrize("target", TARGETS)
def test_what_knows_nothing_is_said_to_know_nothing(target: Target) -> None:
    generator = rng("nothing")
    logits = generator.normal(0.0, 3.0, (4000, len(LABELS[target])))
    score = np.where(generator.random(2000) < 0.5, 0.0, 1.0)
    found = calibration.fit(logits, score, target, "temperature")
    mean = calibration.averaged(found.sharpened(logits), target).mean_P
    assert np.abs(mean - 0.5).max() < 0.1


def test_isotonic_keeps_the_weights_and_mends_the_mean() -> None:
    generator = rng("isotonic")
    lean = generator.normal(0.0, 1.0, 4000)
    score = (generator.random(4000) < expit(lean)).astype(float)
    rows = np.stack([4 * lean, -4 * lean], axis=1).reshape(-1)
    logits = np.stack([np.zeros_like(rows), rows], axis=1)
    found = calibration.fit(logits, score, "binary", "isotonic")
    assert found.beta == 1.0
    assert found.isotonic is not None
    assert found.loss < found.loss_before
    answer = calibration.averaged(logits, "binary", found.isotonic)
    assert answer.mean_P == pytest.approx(expit(lean), abs=0.15)


def test_uncalibrated_is_as_it_is() -> None:
    found = calibration.fit(np.zeros((2, 2)), np.array([1.0]), "binary", "none")
    assert (found.beta, found.isotonic) == (1.0, None)
    assert found.loss == pytest.approx(np.log(2))
    with pytest.raises(DataError, match="no pairs to calibrate on"):
        calibration.fit(np.zeros((0, 2)), np.zeros(0), "binary", "temperature")
