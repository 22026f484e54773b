"""Expectation propagation against moments by numerical integration, its symmetries, and where it must not be used."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core.scale import Floats, Model
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games
from anmi_ray.rating.gaussian import Gaussian, laplace, propagate
from anmi_ray.rating.likelihood import Likelihood, game_log_likelihood
from anmi_ray.rating.solver import Posterior, solve
from anmi_ray.rating.uncertainty import GapAnchors, errors
from tests.rating.single import planted, single, target

LIKELIHOODS = [
    Likelihood.of("thurstone"),
    Likelihood.of("bradley-terry"),
    Likelihood.of("bradley-terry", "davidson", 0.7),
]


def fitted(games: Games, like: Likelihood, sd: float = 1.0) -> tuple[Posterior, Floats]:
    of = target(games, like, sd**-2, np.linspace(-0.3, 0.4, len(games.doc_ids)))
    return of, solve(of, 1e-10, 200).latent


def covariance(found: Gaussian) -> Floats:
    """Σ of one query, dense."""
    games = found.posterior.games
    a = np.diag(found.posterior.prior_precision)
    for i, j, weight in zip(games.first, games.second, found.weight, strict=True):
        contrast = np.zeros(len(a))
        contrast[i], contrast[j] = 1.0, -1.0
        a += weight * np.outer(contrast, contrast)
    return np.asarray(np.linalg.inv(a), np.float64)


def moments_on_a_grid(target: Posterior, points: int = 121, reach: float = 7.0) -> tuple[Floats, Floats]:
    """Mean [n] and covariance [n, n] of one query's posterior, by the trapezoid rule in n dimensions."""
    games, n = target.games, len(target.prior_mean)
    sd = target.prior_precision**-0.5
    axes = [np.linspace(m - reach * s, m + reach * s, points) for m, s in zip(target.prior_mean, sd, strict=True)]
    grid = np.stack(np.meshgrid(*axes, indexing="ij")).reshape(n, -1)
    log = -0.5 * np.sum(((grid - target.prior_mean[:, None]) / sd[:, None]) ** 2, axis=0)
    for p in range(len(games.w)):
        x = grid[games.first[p]] - grid[games.second[p]]
        values, where = np.unique(np.round(x, 9), return_inverse=True)
        level = np.array([game_log_likelihood(target.likelihood, float(v), games.w[p]) for v in values])
        log += target.m[p] * level[where]
    density = np.exp(log - log.max())
    density /= density.sum()
    mean = grid @ density
    return mean, (grid * density) @ grid.T - np.outer(mean, mean)


@pytest.mark.parametrize("like", LIKELIHOODS)
@pytest.mark.parametrize(("w", "answers"), [(1.0, 1.0), (0.8, 3.0), (0.5, 2.0), (0.0, 6.5)])
def test_one_game_is_exact(like: Likelihood, w: float, answers: float) -> None:
    """A single factor's moments are matched, so nothing is left to approximate."""
    of, mode = fitted(single(2, [0], [1], [w], answers), like, 1.3)
    found = propagate(of, mode)
    mean, sigma = moments_on_a_grid(of, 401)
    assert found.propagated.all()
    if sigma[0, 0] + sigma[1, 1] - 2 * sigma[0, 1] > 2 * 1.3**2:  # a lapse may widen a gap; a factor cannot
        return
    np.testing.assert_allclose(found.mean, mean, atol=3e-3)
    np.testing.assert_allclose(covariance(found), sigma, atol=5e-3)


@pytest.mark.parametrize("like", LIKELIHOODS)
def test_three_documents_against_integration(like: Likelihood) -> None:
    """Hard outcomes of one judge and a wide prior, where the mode is far off: most of its error is gone."""
    of, mode = fitted(single(3, [0, 0, 1], [1, 2, 2], [1.0, 1.0, 0.5]), like, 2.0)
    mean, sigma = moments_on_a_grid(of)
    ours, theirs = propagate(of, mode), laplace(of, mode)
    assert ours.propagated.all()
    off = [np.abs(g.mean - mean).max() for g in (ours, theirs)]
    assert off[0] < 0.05
    assert off[0] < 0.25 * off[1]
    sd = [np.sqrt(np.diag(covariance(g))) - np.sqrt(np.diag(sigma)) for g in (ours, theirs)]
    assert np.abs(sd[0]).max() < 0.05
    assert np.abs(sd[0]).max() < 0.5 * np.abs(sd[1]).max()


def test_more_games_leave_laplace_and_mean_alike() -> None:
    """With many answers a pair the posterior is Gaussian, and both approximations are it."""
    games, _ = planted(12, 6, 400, "thurstone", seed=4, sd=0.5)
    of, mode = fitted(games, Likelihood.of("thurstone"))
    ours, theirs = propagate(of, mode), laplace(of, mode)
    np.testing.assert_allclose(ours.mean, theirs.mean, atol=5e-3)
    np.testing.assert_allclose(np.diag(covariance(ours)), np.diag(covariance(theirs)), rtol=0.02)


@settings(max_examples=20)
@given(seed=st.integers(0, 10_000), k=st.sampled_from([2, 4, 6]), judges=st.sampled_from([1, 3]))
def test_symmetries(seed: int, k: int, judges: int) -> None:
    """Reversing all outcomes negates means; renaming documents permutes them; both keep the errors."""
    games, _ = planted(9, k, judges, "thurstone", seed)
    n = len(games.doc_ids)

    def means(played: Games) -> tuple[Floats, Floats]:
        of = target(played, "thurstone", 0.5)
        found = propagate(of, solve(of, 1e-10, 100).latent)
        assert found.propagated.all()
        return found.mean, np.diag(covariance(found))

    mean, variance = means(games)
    reversed_mean, reversed_variance = means(replace(games, w=1.0 - games.w))
    np.testing.assert_allclose(reversed_mean, -mean, atol=2e-3)
    np.testing.assert_allclose(reversed_variance, variance, rtol=2e-3)
    order = np.random.default_rng(seed).permutation(n).astype(np.int32)
    moved_mean, moved_variance = means(single(n, order[games.first], order[games.second], games.w, games.answers))
    np.testing.assert_allclose(moved_mean[order], mean, atol=2e-3)
    np.testing.assert_allclose(moved_variance[order], variance, rtol=2e-3)


@pytest.mark.parametrize("model", ["thurstone", "bradley-terry"])
def test_many_games_of_one_pair_are_exact(model: Model) -> None:
    """Thirty rows of one pair are one factor, which is exact."""
    first, second = np.zeros(30, np.int32), np.ones(30, np.int32)
    w = np.array([1.0] * 29 + [0.0])
    of, mode = fitted(single(2, first, second, w), Likelihood.of(model), 2.0)
    found = propagate(of, mode)
    mean, _ = moments_on_a_grid(of, 401)
    assert found.propagated.all()
    np.testing.assert_allclose(found.mean, mean, atol=0.02)


def test_without_a_prior_the_mode_stays() -> None:
    games = single(3, [0, 1, 0], [1, 2, 2], [0.7, 0.6, 0.8], 5.0)
    of = target(games, "thurstone")
    mode = solve(of, 1e-10, 100).latent
    found = propagate(of, mode)
    assert not found.propagated.any()
    np.testing.assert_array_equal(found.mean, mode)
    np.testing.assert_array_equal(found.weight, laplace(of, mode).weight)


@pytest.mark.parametrize("strength", [0.0, 1e-9, 1e6])
def test_extreme_strengths_stay_finite(strength: float) -> None:
    games = single(4, [0, 1, 2], [1, 2, 3], [1.0, 0.0, 0.5])
    of = target(replace(games, answers=np.full(3, strength)), "thurstone", 1.0)
    found = propagate(of, solve(of).latent)
    to = GapAnchors(np.array([0, 1]), np.array([0], np.int32), np.array([False]))
    result = errors(found, components(games).component, to)
    assert np.isfinite([*found.mean, *found.weight, *result.std_err, *result.gap_se]).all()
    if strength < 1e-6:
        np.testing.assert_allclose(found.mean, 0.0, atol=1e-6)
        np.testing.assert_allclose(result.gap_se, np.sqrt(2.0), rtol=1e-6)
