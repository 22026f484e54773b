"""Gradient, information and skew against finite differences; compiled kernels against the numpy form."""

from __future__ import annotations

import numpy as np
import pytest

from anmi_ray.rating import likelihood
from anmi_ray.rating.solver import evaluate
from anmi_ray.scale import MODEL_CODES, Floats, Model
from tests.rating.single import planted

MODELS: list[Model] = ["thurstone", "bradley-terry"]


def central_difference(function, point: Floats, h: float = 1e-5) -> Floats:
    rows = []
    for i in range(len(point)):
        step = np.zeros_like(point)
        step[i] = h
        rows.append((function(point + step) - function(point - step)) / (2 * h))
    return np.array(rows)


@pytest.mark.parametrize("model", MODELS)
def test_gradient_and_information(model: Model) -> None:
    games, latent = planted(12, 4, 3, model, seed=1, sd=2.0)
    args = (games.first, games.second, games.w, games.answers, model)
    by_difference = central_difference(lambda e: likelihood.log_likelihood(e, *args), latent)
    np.testing.assert_allclose(likelihood.gradient(latent, *args), by_difference, atol=1e-7)
    hessian = central_difference(lambda e: likelihood.gradient(e, *args), latent)
    np.testing.assert_allclose(likelihood.information(latent, *args), -hessian, atol=1e-7)


@pytest.mark.parametrize("model", MODELS)
def test_compiled_evaluation_agrees(model: Model) -> None:
    games, latent = planted(12, 4, 3, model, seed=2, sd=3.0)
    grad, curvature = np.empty(12), np.empty(len(games.w))
    none = np.zeros(12)
    evaluate(MODEL_CODES[model], games.first, games.second, games.w, games.answers, none, none, latent, grad, curvature)
    args = (games.first, games.second, games.w, games.answers, model)
    np.testing.assert_allclose(grad, likelihood.gradient(latent, *args), atol=1e-12)
    laplacian = likelihood.information(latent, *args)
    np.testing.assert_allclose(-curvature, laplacian[games.first, games.second], atol=1e-12)
    np.testing.assert_allclose(laplacian.sum(axis=0), 0.0, atol=1e-12)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("w", [0.0, 0.3, 1.0])
def test_game_kernels(model: Model, w: float) -> None:
    code, h = MODEL_CODES[model], 1e-5
    for x in np.linspace(-6, 6, 25):
        gradient, curvature = likelihood.game_terms(code, x, w)
        values = [likelihood.game_log_likelihood(code, x + s, w) for s in (h, -h)]
        assert gradient == pytest.approx((values[0] - values[1]) / (2 * h), abs=2e-9)
        slopes = [likelihood.game_terms(code, x + s, w) for s in (h, -h)]
        assert curvature == pytest.approx((slopes[1][0] - slopes[0][0]) / (2 * h), abs=2e-9)
        assert likelihood.game_skew(code, x, w) == pytest.approx((slopes[0][1] - slopes[1][1]) / (2 * h), abs=2e-9)
        # swapping the documents flips the label: same likelihood, opposite gradient, same curvature
        back = likelihood.game_terms(code, -x, 1.0 - w)
        assert (-back[0], back[1]) == pytest.approx((gradient, curvature), abs=1e-14)
