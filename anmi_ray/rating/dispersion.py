"""The dispersion φ of answers over a fair coin's variance, pooled over all queries.

Judges who agree because they share their errors, two orders that answer alike, and graded instead of yes/no answers
all show in one number: how far preferences scatter around the fit. A pair of `answers` answers then counts as
answers/φ games (methods 3).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anmi_ray.rating.games import Games
from anmi_ray.scale import Floats, Model, link

MIN_DISPERSION = 0.01  # graded judges can follow the model exactly; a pair then counts at most 100 games an answer
_TAIL = 1e-3  # fitted probabilities are held this far from 0 and 1: one stray upset must not set φ for all


def pooled_dispersion(
    games: Games, model: Model, latent: Floats, component_count: NDArray[np.int64]
) -> tuple[float, int]:
    """(φ, residual degrees of freedom): Pearson's X² = Σ answers (w - F)² / (F (1 - F)) over Σ_q (P - n + components).

    φ is NaN where no degrees of freedom are left (a tree, or a single game per query).
    """
    first, second = games.global_ends()
    fitted = np.clip(link(latent[first] - latent[second], model), _TAIL, 1.0 - _TAIL)
    chi2 = float(np.sum(games.answers * np.square(games.w - fitted) / (fitted * (1.0 - fitted))))
    freedom = int(np.sum(games.games - games.documents + component_count))
    return (max(chi2 / freedom, MIN_DISPERSION) if freedom > 0 else float("nan")), freedom
