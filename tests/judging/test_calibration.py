"""Calibration: a planted temperature is found, exchanged documents exchange the answer, calibrated data stay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.optimize import minimize_scalar
from scipy.special import expit

from anmi_ray.config.distill import LABELS, Target
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.judging import calibration
from anmi_ray.judging.calibration import SHARPEST, fit_temperature

MANY = settings(max_examples=60, deadline=None)


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


def test_calibrated_data_stay_as_they_are() -> None:
    p = np.linspace(0.02, 0.98, 49)
    assert fit_temperature(np.log(p / (1 - p)), p, SHARPEST) == pytest.approx(1.0, rel=1e-9)


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
    found = calibration.fit(logits, score, "binary")
    assert found.beta * too_sharp == pytest.approx(1.0, abs=0.1)
    right = calibration.cross_entropy(calibration.averaged(found.sharpened(logits), "binary"), score, "binary")
    assert found.loss == pytest.approx(right)


def test_a_model_that_leans_to_a_side_is_calibrated_as_its_average() -> None:
    """The mean of both orders of a biased model is too timid however each order is calibrated."""
    generator = rng("leaning")
    lean = generator.normal(0.0, 2.0, 4000)
    score = (generator.random(4000) < expit(lean)).astype(float)
    rows = np.stack([lean + 2.0, -lean + 2.0], axis=1).reshape(-1)
    logits = np.stack([np.zeros_like(rows), rows], axis=1)
    found = calibration.fit(logits, score, "binary")
    for beta in found.beta * np.array([0.8, 1.25]):
        other = calibration.OrderCalibration(float(beta), (0, 1), 0)
        assert (
            calibration.cross_entropy(calibration.averaged(other.sharpened(logits), "binary"), score, "binary")
            > found.loss
        )


@pytest.mark.parametrize("target", TARGETS)
def test_what_knows_nothing_is_said_to_know_nothing(target: Target) -> None:
    generator = rng("nothing")
    logits = generator.normal(0.0, 3.0, (4000, len(LABELS[target])))
    score = np.where(generator.random(2000) < 0.5, 0.0, 1.0)
    found = calibration.fit(logits, score, target)
    mean = calibration.averaged(found.sharpened(logits), target).mean_P
    assert np.abs(mean - 0.5).max() < 0.1


def test_no_pairs_are_named() -> None:
    with pytest.raises(DataError, match="no pairs to calibrate on"):
        calibration.fit(np.zeros((0, 2)), np.zeros(0), "binary")
