"""The dispersion φ of answers over a fair coin's variance, pooled over all queries.

Judges who agree because they share their errors, two orders that answer alike, and graded instead of yes/no answers
all show in one number: how far preferences scatter around what is expected. A pair of `answers` answers then counts
as answers/φ games (methods 3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import Likelihood, game_terms, moments
from anmi_ray.rating.solver import Posterior
from anmi_ray.rating.uncertainty import game_variances
from anmi_ray.scale import Floats, compiled

DISPERSION_BOUNDS = (0.02, 50.0)  # graded judges can follow the model exactly; an answer is at most 50 games
_NODES, _WEIGHTS = np.polynomial.hermite_e.hermegauss(15)
_TAIL = 1e-3  # fitted probabilities are held this far from 0 and 1: one stray upset must not set φ for all


def pooled_dispersion(posterior: Posterior, latent: Floats, component: NDArray[np.int32], threads: int = 1) -> float:
    """φ by moments of leave-one-pair-out predictions; NaN where no pair can be predicted from the others.

    All games of a pair are one mean preference w of `answers` answers: who repeats another's errors, or a file that
    counts wins and losses in rows of their own, shows only there. Each pair's gap is predicted without it,
    x ~ N(x̂ - v₋ g, v₋), v₋ = v / (1 - c v) (approximate leave-one-out, Rad and Maleki 2020; g, c the gradient and
    curvature of the pair's games, v the gap's posterior variance). With μ(x) and V(x) the mean and variance of one
    answer, p = E μ: E (w - p)² = (E μ² - p²) + φ E V / answers, so φ = Σ answers [(w - p)² - (E μ² - p²)] / Σ E V.
    Fitted residuals would be too small wherever games are few: Pearson's φ falls to .7 for independent judges.
    """
    games, like = posterior.games, posterior.likelihood
    pair, sign = _pairs(games)
    x = gaps(posterior, latent)
    g, c = np.empty_like(x), np.empty_like(x)
    _terms(like, x, games.w, posterior.m, g, c)
    variance = game_variances(posterior, latent, component, threads)
    left = 1.0 - np.bincount(pair, c)[pair] * variance
    usable = left > 1e-6  # without a prior, a pair that alone connects its documents predicts nothing
    if not usable.any():
        return float("nan")
    pair, sign = np.unique(pair[usable], return_inverse=True)[1], sign[usable]
    without = variance[usable] / left[usable]
    centre = x[usable] - sign * without * np.bincount(pair, sign * g[usable])[pair]
    width, answers = sign * np.sqrt(without), games.answers[usable]
    total = np.bincount(pair, answers)

    def per_pair(of_first: Floats) -> Floats:
        """Mean over a pair's answers of something about its first document."""
        return np.bincount(pair, answers * of_first) / total

    w = per_pair(np.where(sign > 0, games.w[usable], 1.0 - games.w[usable]))
    mean, square, noise = np.zeros_like(w), np.zeros_like(w), np.zeros_like(w)
    for node, weight in zip(_NODES, _WEIGHTS / _WEIGHTS.sum(), strict=True):
        outcome, spread = moments(like, centre + width * node)
        predicted = per_pair(np.where(sign > 0, outcome, 1.0 - outcome))
        mean += weight * predicted
        square += weight * predicted * predicted
        noise += weight * per_pair(spread)
    surplus = float(np.sum(total * (np.square(w - mean) - (square - np.square(mean)))))
    expected = float(np.sum(noise))
    return float(np.clip(surplus / expected, *DISPERSION_BOUNDS)) if expected > 0.0 else float("nan")


def _pairs(games: Games) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(pair int64[P], numbered from 0; 1 where the game's first document is the pair's smaller one, else -1)."""
    first, second = games.global_ends()
    low, high = np.minimum(first, second), np.maximum(first, second)
    pair = np.unique(low * len(games.doc_ids) + high, return_inverse=True)[1]
    return pair, np.where(first < second, 1, -1)


def pearson_dispersion(posterior: Posterior, latent: Floats, component_count: NDArray[np.int64]) -> float:
    """Pearson's X² = Σ answers (w - μ)² / V over Σ_q (P - n + components); NaN without residual freedom."""
    games = posterior.games
    mean, variance = moments(posterior.likelihood, gaps(posterior, latent))
    mean, variance = np.clip(mean, _TAIL, 1.0 - _TAIL), np.maximum(variance, _TAIL * (1.0 - _TAIL))
    chi2 = float(np.sum(games.answers * np.square(games.w - mean) / variance))
    freedom = int(np.sum(games.games - games.documents + component_count))
    return float(np.clip(chi2 / freedom, *DISPERSION_BOUNDS)) if freedom > 0 else float("nan")


def gaps(posterior: Posterior, latent: Floats) -> Floats:
    """The latent gap of every game, e_i - e_j and its offset, float64[P]."""
    first, second = posterior.games.global_ends()
    x = latent[first] - latent[second]
    return x if posterior.offset is None else x + posterior.offset


@compiled
def _terms(like: Likelihood, x: Floats, w: Floats, m: Floats, gradient: Floats, curvature: Floats) -> None:
    for p in range(len(x)):
        g, c = game_terms(like, x[p], w[p])
        gradient[p], curvature[p] = m[p] * g, m[p] * c
