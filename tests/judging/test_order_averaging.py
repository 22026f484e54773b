"""Both orders as one answer, and the calibration of that answer."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from scipy.special import expit

from anmi_ray.config.distill import LABELS, Target
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.judging import order_averaging

TARGETS: tuple[Target, ...] = ("binary", "ternary", "two-head")


@given(st.data(), st.sampled_from(TARGETS), st.integers(1, 6))
def test_exchanged_documents_exchange_the_answer(data: st.DataObject, target: Target, pairs: int) -> None:
    shape = (2 * pairs, len(LABELS[target]))
    logits = data.draw(hnp.arrays(np.float64, shape, elements=st.floats(-30, 30)))
    other = logits.reshape(pairs, 2, -1)[:, ::-1].reshape(shape)
    one, two = order_averaging.averaged(logits, target), order_averaging.averaged(other, target)
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
    found = order_averaging.fit(logits, score, "binary", "temperature")
    assert found.beta * too_sharp == pytest.approx(1.0, abs=0.1)
    assert found.loss <= found.loss_before
    right = order_averaging.cross_entropy(order_averaging.averaged(found.sharpened(logits), "binary"), score, "binary")
    assert found.loss == pytest.approx(right)


def test_a_model_that_leans_to_a_side_is_calibrated_as_its_average() -> None:
    """The mean of both orders of a biased model is too timid however each order is calibrated."""
    generator = rng("leaning")
    lean = generator.normal(0.0, 2.0, 4000)
    score = (generator.random(4000) < expit(lean)).astype(float)
    rows = np.stack([lean + 2.0, -lean + 2.0], axis=1).reshape(-1)
    logits = np.stack([np.zeros_like(rows), rows], axis=1)
    found = order_averaging.fit(logits, score, "binary", "temperature")
    for beta in found.beta * np.array([0.8, 1.25]):
        other = order_averaging.OrderCalibration(float(beta), (0, 1), 0, 0)
        assert (
            order_averaging.cross_entropy(order_averaging.averaged(other.sharpened(logits), "binary"), score, "binary")
            > found.loss
        )


@pytest.mark.parametrize("target", TARGETS)
def test_what_knows_nothing_is_said_to_know_nothing(target: Target) -> None:
    generator = rng("nothing")
    logits = generator.normal(0.0, 3.0, (4000, len(LABELS[target])))
    score = np.where(generator.random(2000) < 0.5, 0.0, 1.0)
    found = order_averaging.fit(logits, score, target, "temperature")
    mean = order_averaging.averaged(found.sharpened(logits), target).mean_P
    assert np.abs(mean - 0.5).max() < 0.1


def test_isotonic_keeps_the_weights_and_mends_the_mean() -> None:
    generator = rng("isotonic")
    lean = generator.normal(0.0, 1.0, 4000)
    score = (generator.random(4000) < expit(lean)).astype(float)
    rows = np.stack([4 * lean, -4 * lean], axis=1).reshape(-1)
    logits = np.stack([np.zeros_like(rows), rows], axis=1)
    found = order_averaging.fit(logits, score, "binary", "isotonic")
    assert found.beta == 1.0
    assert found.isotonic is not None
    assert found.loss < found.loss_before
    answer = order_averaging.averaged(logits, "binary", found.isotonic)
    assert answer.mean_P == pytest.approx(expit(lean), abs=0.15)


def test_uncalibrated_is_as_it_is() -> None:
    found = order_averaging.fit(np.zeros((2, 2)), np.array([1.0]), "binary", "none")
    assert (found.beta, found.isotonic) == (1.0, None)
    assert found.loss == pytest.approx(np.log(2))
    with pytest.raises(DataError, match="no pairs to calibrate on"):
        order_averaging.fit(np.zeros((0, 2)), np.zeros(0), "binary", "temperature")
