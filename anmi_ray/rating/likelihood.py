"""The likelihood of pairwise games: log-likelihood, gradient, observed curvature and its slope, per game and per query.

methods: a game between i and j with preference w for i and strength m adds m [w log F(x) + (1-w) log F(-x)],
x = e_i - e_j, F = Φ (Thurstone) or σ (Bradley-Terry). Compiled scalar kernels serve the solver; the numpy functions
are the same in readable form, for tests and for reading.
Shapes: D documents of a query, P games.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anmi_ray.scale import (
    Floats,
    Model,
    compiled,
    inverse_mills,
    link_curvature,
    link_skew,
    link_slope_both,
    log_link,
    log_link_both,
    sigmoid,
)

Ints = NDArray[np.int32]


@compiled
def game_log_likelihood(model: int, x: float, w: float) -> float:
    """w log F(x) + (1-w) log F(-x) of one game of strength 1."""
    upper, lower = log_link_both(model, x)
    return w * upper + (1.0 - w) * lower


@compiled
def game_terms(model: int, x: float, w: float) -> tuple[float, float]:
    """(gradient in x, observed curvature) of one game: w s(x) - (1-w) s(-x) and w κ(x) + (1-w) κ(-x)."""
    slope, slope_back = link_slope_both(model, x)
    curvature = w * link_curvature(model, x, slope) + (1.0 - w) * link_curvature(model, -x, slope_back)
    return w * slope - (1.0 - w) * slope_back, curvature


@compiled
def game_skew(model: int, x: float, w: float) -> float:
    """d/dx of a game's observed curvature; the marginal likelihood's gradient needs it."""
    slope, slope_back = link_slope_both(model, x)
    return w * link_skew(model, x, slope) - (1.0 - w) * link_skew(model, -x, slope_back)


def log_likelihood(latent_D: Floats, first_P: Ints, second_P: Ints, w_P: Floats, m_P: Floats, model: Model) -> float:
    """Σ m [w log F(e_i - e_j) + (1-w) log F(e_j - e_i)], equations (22) and (30)."""
    x = latent_D[first_P] - latent_D[second_P]
    return float(np.sum(m_P * (w_P * log_link(x, model) + (1.0 - w_P) * log_link(-x, model))))


def gradient(latent_D: Floats, first_P: Ints, second_P: Ints, w_P: Floats, m_P: Floats, model: Model) -> Floats:
    """Gradient of `log_likelihood`: Σ m [w s(x) - (1-w) s(-x)] for a pair's first, minus that for its second."""
    x = latent_D[first_P] - latent_D[second_P]
    g = m_P * (w_P * _slope(x, model) - (1.0 - w_P) * _slope(-x, model))
    n = len(latent_D)
    return np.bincount(first_P, g, n).astype(np.float64) - np.bincount(second_P, g, n)


def information(latent_D: Floats, first_P: Ints, second_P: Ints, w_P: Floats, m_P: Floats, model: Model) -> Floats:
    """Observed information (minus the Hessian) of `log_likelihood`, dense [D, D]: a Laplacian weighted by m κ."""
    x = latent_D[first_P] - latent_D[second_P]
    c = m_P * (w_P * _curvature(x, model) + (1.0 - w_P) * _curvature(-x, model))
    n = len(latent_D)
    result = np.zeros((n, n))
    np.add.at(result, (first_P, second_P), -c)
    np.add.at(result, (second_P, first_P), -c)
    result[np.diag_indices(n)] = np.bincount(first_P, c, n) + np.bincount(second_P, c, n)
    return result


def _slope(x: Floats, model: Model) -> Floats:
    return inverse_mills(x) if model == "thurstone" else sigmoid(-x)


def _curvature(x: Floats, model: Model) -> Floats:
    slope = _slope(x, model)
    return slope * (slope + x) if model == "thurstone" else slope * (1.0 - slope)
