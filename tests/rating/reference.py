"""The plain form of links, likelihood and solver, which the compiled kernels are tested against.

The solver is gradient ascent as in the report's Algorithm 1, with a step that converges.
Letters: D documents of a query, P games.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

from anmi_ray.core.errors import FitError
from anmi_ray.core.scale import Floats, Model, log_sigmoid, sigmoid

Ints = NDArray[np.int32]
CURVATURE = {"thurstone": 2.0 / np.pi, "bradley-terry": 0.25}  # c: observed curvature of a tie at gap zero


def log_normal_cdf(x: ArrayLike) -> Floats:
    """log Φ(x), to full precision far in the lower tail.

    >>> log_normal_cdf(-40.0).round(3).item()
    -804.608
    """
    return special.log_ndtr(np.asarray(x, dtype=np.float64))


def inverse_mills(x: ArrayLike) -> Floats:
    """λ(x) = φ(x) / Φ(x) = √(2/π) / erfcx(-x/√2): about -x far below zero, 0 far above.

    >>> inverse_mills([-40.0, 0.0, 40.0]).round(4).tolist()
    [40.025, 0.7979, 0.0]
    """
    return math.sqrt(2.0 / math.pi) / special.erfcx(-np.asarray(x, dtype=np.float64) / math.sqrt(2.0))


def log_link(x: ArrayLike, model: Model) -> Floats:
    """log F(x)."""
    return log_normal_cdf(x) if model == "thurstone" else log_sigmoid(x)


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


def gradient_ascent(
    first_P: Ints,
    second_P: Ints,
    w_P: Floats,
    m_P: Floats,
    prior_mean_D: Floats,
    prior_precision_D: Floats,
    model: Model,
    tolerance: float = 1e-10,
    max_iterations: int = 200_000,
) -> Floats:
    """Mode of one query's posterior, float64[D], by e ← e + η ∇ with η = 1 / (2 k c + τ).

    k is the largest number of games of a document and c bounds the curvature of a game, so 2 k c + τ bounds that of
    the posterior and every step climbs. Algorithm 1 as printed has η = 1 / √t: at t = 1 it oversteps by more than the
    bound allows and diverges. A win's probit curvature can exceed c = 2/π (up to 1 far behind): the bound holds where
    ratings follow the games, and FitError says where it did not converge.
    """
    documents = len(prior_mean_D)
    games = np.bincount(first_P, m_P, documents) + np.bincount(second_P, m_P, documents)
    rate = 1.0 / (2.0 * games.max() * CURVATURE[model] + prior_precision_D.max())
    latent = np.zeros(documents)
    for _ in range(max_iterations):
        ascent = gradient(latent, first_P, second_P, w_P, m_P, model) - prior_precision_D * (latent - prior_mean_D)
        if np.max(np.abs(ascent) / games) <= tolerance:
            return latent
        latent = latent + rate * ascent
    raise FitError(f"gradient ascent did not converge in {max_iterations} steps", "rating.reference", "use the solver")
