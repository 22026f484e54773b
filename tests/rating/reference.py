"""The readable solver: gradient ascent as in the report's Algorithm 1, with a step that converges.

It is what the compiled Newton solver is tested against, and what a newcomer reads first.
"""

from __future__ import annotations

import numpy as np

from anmi_ray.core.errors import FitError
from anmi_ray.core.scale import Floats, Model
from anmi_ray.rating.likelihood import Ints, gradient

CURVATURE = {"thurstone": 2.0 / np.pi, "bradley-terry": 0.25}  # c: observed curvature of a tie at gap zero


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
