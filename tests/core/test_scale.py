"""Scales: units, win probabilities and their inverses."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import special, stats

from anmi_ray.core import scale

MODELS: list[scale.Model] = ["thurstone", "bradley-terry"]


def test_units_of_the_report() -> None:
    assert pytest.approx(173.7178, abs=1e-4) == scale.ELO_PER_LOGIT
    assert pytest.approx(277.21, abs=0.01) == scale.ELO_PER_PROBIT


@pytest.mark.parametrize(
    ("model", "expected"),
    [("bradley-terry", [0.61, 0.64, 0.70, 0.76, 0.91, 0.97]), ("thurstone", [0.61, 0.64, 0.71, 0.76, 0.93, 0.98])],
)
def test_win_probabilities_of_the_report(model: scale.Model, expected: list[float]) -> None:
    np.testing.assert_allclose(scale.win_probability([80, 100, 150, 200, 400, 600], model), expected, atol=0.0051)


@pytest.mark.parametrize("model", MODELS)
def test_win_curves_have_one_slope_at_zero(model: scale.Model) -> None:
    slope = (scale.win_probability(1e-3, model) - scale.win_probability(-1e-3, model)) / 2e-3
    assert slope == pytest.approx(math.log(10) / 1600, rel=1e-9)


@pytest.mark.parametrize("model", MODELS)
def test_conversions_invert(model: scale.Model) -> None:
    x = np.linspace(-5, 5, 21)
    np.testing.assert_allclose(scale.to_latent(scale.to_elo(x, model), model), x, rtol=1e-15)
    inverse = scale.normal_quantile if model == "thurstone" else special.logit
    np.testing.assert_allclose(inverse(scale.link(x, model)), x, atol=1e-9)
    np.testing.assert_allclose(scale.link(x, model) + scale.link(-x, model), 1.0)


def test_density_is_the_normal() -> None:
    np.testing.assert_allclose(scale.normal_pdf([-2.0, 0.0, 1.0]), stats.norm.pdf([-2.0, 0.0, 1.0]))


def test_wilson_interval_on_known_values() -> None:
    low, high = scale.wilson(0.1, 50)  # Wilson (1927)
    assert (round(low, 4), round(high, 4)) == (0.0435, 0.2136)
    assert scale.wilson(0.0, 10)[0] == 0.0
    assert scale.wilson(1.0, 10)[1] == 1.0
