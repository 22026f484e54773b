"""Gradient, curvature and skew of every likelihood against finite differences; fast forms against plain ones."""

from __future__ import annotations

import math

import numpy as np
import pytest
from pydantic import ValidationError

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.scale import Floats, Model
from anmi_ray.rating.conjugate_gradient import conjugate_gradient
from anmi_ray.rating.likelihood import (
    Likelihood,
    game_log_likelihood,
    game_skew,
    game_terms,
    outcome_moments,
    terms,
)
from anmi_ray.rating.solver import Posterior, evaluate, one_query, workspace
from tests.rating import reference
from tests.rating.single import planted

MODELS: list[Model] = ["thurstone", "bradley-terry"]
LIKELIHOODS = [
    Likelihood.of("thurstone"),
    Likelihood.of("bradley-terry"),
    Likelihood.of("bradley-terry", "davidson", 0.7),
]
DAVIDSON = LIKELIHOODS[2]


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
    by_difference = central_difference(lambda e: reference.log_likelihood(e, *args), latent)
    np.testing.assert_allclose(reference.gradient(latent, *args), by_difference, atol=1e-7)
    hessian = central_difference(lambda e: reference.gradient(e, *args), latent)
    np.testing.assert_allclose(reference.information(latent, *args), -hessian, atol=1e-7)


@pytest.mark.parametrize("model", MODELS)
def test_compiled_evaluation_agrees(model: Model) -> None:
    games, latent = planted(12, 4, 3, model, seed=2, sd=3.0)
    none, played = np.zeros(12), len(games.w)
    target = Posterior(games, Likelihood.of(model), games.answers, none, none)
    work, query, grad, diagonal = workspace(12, played), one_query(target.flat, 0), np.empty(12), np.empty(12)
    evaluate(target.likelihood, query, latent, grad, diagonal, work)
    args = (games.first, games.second, games.w, games.answers, model)
    np.testing.assert_allclose(grad, reference.gradient(latent, *args), atol=1e-12)
    laplacian = reference.information(latent, *args)
    np.testing.assert_allclose(diagonal, np.diag(laplacian), atol=1e-12)
    np.testing.assert_allclose(-work.curve, laplacian[games.first, games.second], atol=1e-12)
    solution, wanted = np.empty(12), latent - latent.mean()
    conjugate_gradient(query, laplacian @ wanted, diagonal, 1e-12, solution, work)
    np.testing.assert_allclose(solution - solution.mean(), wanted, atol=1e-10)


@pytest.mark.parametrize("like", LIKELIHOODS)
def test_games_together_are_the_games_one_by_one(like: Likelihood) -> None:
    """The vectorised loop, far into both tails; nothing overflows at ±40 and beyond."""
    x = np.concatenate([np.linspace(-45, 45, 181), [-1e4, -300.0, -38.5, 0.0, 38.5, 300.0, 1e4]])
    w, m = np.random.default_rng(0).random((2, len(x)))
    w[:20:2], w[1:20:2] = 0.0, 1.0
    gradient, curvature, scratch = np.empty_like(x), np.empty_like(x), np.empty_like(x)
    terms(like, x, w, m, gradient, curvature, scratch, scratch.view(np.int64))
    one_by_one = m[:, None] * np.array([game_terms(like, *game) for game in zip(x, w, strict=True)])
    assert np.isfinite(one_by_one).all()
    np.testing.assert_allclose(gradient, one_by_one[:, 0], rtol=1e-12, atol=1e-14)
    np.testing.assert_allclose(curvature, one_by_one[:, 1], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("like", LIKELIHOODS)
@pytest.mark.parametrize("w", [0.0, 0.3, 0.5, 0.85, 1.0])
def test_game_kernels(like: Likelihood, w: float) -> None:
    h = 1e-5
    for x in np.linspace(-6, 6, 25):
        gradient, curvature = game_terms(like, x, w)
        values = [game_log_likelihood(like, x + s, w) for s in (h, -h)]
        assert gradient == pytest.approx((values[0] - values[1]) / (2 * h), abs=5e-9)
        slopes = [game_terms(like, x + s, w) for s in (h, -h)]
        assert curvature == pytest.approx((slopes[1][0] - slopes[0][0]) / (2 * h), abs=5e-9)
        assert curvature >= 0.0
        assert game_skew(like, x, w) == pytest.approx((slopes[0][1] - slopes[1][1]) / (2 * h), abs=3e-8)
        # swapping the documents flips the label: same likelihood, opposite gradient, same curvature
        back = game_terms(like, -x, 1.0 - w)
        assert (-back[0], back[1]) == pytest.approx((gradient, curvature), abs=1e-13)


@pytest.mark.parametrize("like", LIKELIHOODS)
def test_outcomes_are_a_distribution(like: Likelihood) -> None:
    """Win, tie and loss sum to one; mean, variance and expected gradient follow from them."""
    for x in np.linspace(-5, 5, 21):
        outcomes = [1.0, 0.5, 0.0] if like == DAVIDSON else [1.0, 0.0]
        p = np.array([math.exp(game_log_likelihood(like, x, outcome)) for outcome in outcomes])
        assert p.sum() == pytest.approx(1.0, abs=1e-12)
        mean, variance = outcome_moments(like, x)
        assert mean == pytest.approx(p @ outcomes, abs=1e-12)
        assert variance == pytest.approx(p @ np.square(outcomes) - mean**2, abs=1e-12)
        by_outcome = np.array([game_terms(like, x, outcome) for outcome in outcomes])
        assert p @ by_outcome[:, 0] == pytest.approx(0.0, abs=1e-12)  # the score has mean zero
        # and its variance is the information
        assert p @ by_outcome[:, 1] == pytest.approx(p @ by_outcome[:, 0] ** 2, abs=1e-12)


def test_published_form_of_davidson() -> None:
    """With π = exp(latent) and Davidson's ν √(π_i π_j), as printed in 1970."""
    a, b = 0.9, -0.4
    p, q = math.exp(a), math.exp(b)
    tie = DAVIDSON.width * math.sqrt(p * q)
    found = [math.exp(game_log_likelihood(DAVIDSON, a - b, outcome)) for outcome in (1.0, 0.5, 0.0)]
    assert found == pytest.approx(np.array([p, tie, q]) / (p + tie + q), rel=1e-12)


def test_combinations_that_do_not_exist_are_refused() -> None:
    with pytest.raises(AssertionError):
        Likelihood.of("thurstone", "davidson", 0.5)
    with pytest.raises(ValidationError):
        RateConfig(model="thurstone", ties="davidson")
