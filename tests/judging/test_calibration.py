"""Calibration: a planted temperature is found, curves are monotone and symmetric, calibrated data stay as they are."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.optimize import isotonic_regression, minimize_scalar
from scipy.special import expit

from anmi_ray.core.errors import DataError, FitError
from anmi_ray.core.identity import rng
from anmi_ray.judging.calibration import Isotonic, Temperature, fit_isotonic, fit_temperature, from_json

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
    assert fit_temperature(raw, expit(raw / temperature)).beta == pytest.approx(1 / temperature, rel=1e-9)


def test_sampled_votes_give_the_temperature_within_its_error() -> None:
    random = rng("sampled")
    logit = random.normal(size=20_000)
    votes = (random.random(20_000) < expit(logit / 0.5)).astype(float)
    # the Fisher information of beta at 2 is Σ z² p (1 − p), about 0.08 per pair: a standard error of 0.025
    assert fit_temperature(logit, votes).beta == pytest.approx(2.0, abs=0.08)


@MANY
@given(st.integers(2, 30), st.integers(0, 10_000))
def test_newton_finds_the_minimum_that_a_search_finds(pairs: int, seed: int) -> None:
    random = rng("newton", seed)
    raw, label = 3 * random.normal(size=pairs), random.random(pairs)

    def loss(beta: float) -> float:
        return float(np.mean(np.logaddexp(0, beta * raw) - label * beta * raw))

    best: Any = minimize_scalar(loss, bounds=(0.0, 20.0), method="bounded", options={"xatol": 1e-9})
    assert loss(fit_temperature(raw, label).beta) <= best.fun + 1e-9


def test_logits_that_point_the_wrong_way_know_nothing() -> None:
    found = fit_temperature(np.array([2.0, -1.0]), np.array([0.0, 1.0]))
    assert found.beta == 0
    np.testing.assert_array_equal(found(np.array([5.0, -5.0])), [0.5, 0.5])


def test_pairs_that_are_all_right_have_no_temperature() -> None:
    with pytest.raises(FitError, match="no finite temperature"):
        fit_temperature(np.array([2.0, -1.0]), np.array([1.0, 0.0]))
    assert fit_temperature(np.array([2.0, -1.0]), np.array([1.0, 0.0]), most=7.0).beta == 7.0


@MANY
@given(arrays(np.float64, 7, elements=st.floats(-30, 30)), st.floats(0.0, 20.0))
def test_temperature_is_antisymmetric(logit: np.ndarray, beta: float) -> None:
    scaled = Temperature(beta)
    np.testing.assert_allclose(scaled(logit), expit(beta * logit), rtol=1e-12)
    np.testing.assert_allclose(scaled(logit) + scaled(-logit), 1.0, atol=1e-15)


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
    assert fit_temperature(np.log(p / (1 - p)), p).beta == pytest.approx(1.0, rel=1e-9)


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


def test_the_curve_survives_json() -> None:
    fitted = fit_isotonic([0.6, 0.2, 0.9], [1.0, 1.0, 1.0])
    assert from_json(json.loads(json.dumps(fitted.to_json()))) == fitted


@pytest.mark.parametrize(
    "content",
    [
        {},
        {"kind": "platt"},
        {"kind": "temperature", "beta": 1.0},
        {"kind": "isotonic", "x": ["x"], "y": [0.5], "pairs": 1},
        {"kind": "isotonic", "x": [0.9, 0.6], "y": [0.5, 0.6], "pairs": 2},
        {"kind": "isotonic", "x": [0.6], "y": [0.5, 0.6], "pairs": 2},
    ],
)
def test_what_is_no_calibration_is_refused(content: dict[str, object]) -> None:
    with pytest.raises(DataError, match="not a calibration"):
        from_json(content)


@pytest.mark.parametrize(
    ("logits", "labels"),
    [
        ([1.0], [1.0, 0.0]),
        ([], []),
        ([np.inf], [1.0]),
        ([1.0], [1.5]),
        ([1.0], [np.nan]),
        ([[1.0, 2.0]], [[0.5, 0.6]]),
    ],
)
def test_what_cannot_be_fitted_is_refused(logits: list[float], labels: list[float]) -> None:
    with pytest.raises(DataError, match="calibration"):
        fit_temperature(logits, labels)


@pytest.mark.parametrize(
    ("p", "c"), [([], []), ([0.5], [0.5, 1.0]), ([1.2], [0.5]), ([np.nan], [0.5]), ([0.5], [-0.1])]
)
def test_preferences_outside_are_refused(p: list[float], c: list[float]) -> None:
    with pytest.raises(DataError, match="calibration"):
        fit_isotonic(p, c)


def test_a_half_alone() -> None:
    assert fit_isotonic([0.5, 0.5], [1.0, 1.0]) == Isotonic((0.5, 1.0), (0.5, 0.5), 2)
