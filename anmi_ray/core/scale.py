"""Scales and links, each formula once: Φ, log Φ, σ, log σ, the inverse Mills ratio, Elo points, win probabilities.

A latent rating is in probits (Thurstone, F = Φ) or logits (Bradley-Terry, F = σ); Elo points are what is shown.
All is vectorised numpy; `rating/likelihood.py` holds the links compiled, for the solver.
"""

from __future__ import annotations

import math
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy import special

Model = Literal["thurstone", "bradley-terry"]
Floats = NDArray[np.float64]

ELO_PER_LOGIT = 400.0 / math.log(10.0)  # 173.718: a gap of 400 points is odds of ten to one
ELO_PER_PROBIT = ELO_PER_LOGIT * 4.0 / math.sqrt(2.0 * math.pi)  # 277.21: equal slope of the win curve at gap zero
Z95 = 1.959963984540054  # Φ⁻¹(.975): half a 95 % interval in standard errors


def elo_per_latent(model: Model) -> float:
    """Elo points per latent unit: 277.21 per probit (Thurstone), 173.718 per logit (Bradley-Terry)."""
    return ELO_PER_PROBIT if model == "thurstone" else ELO_PER_LOGIT


def to_elo(latent: ArrayLike, model: Model) -> Floats:
    """Latent units to Elo points.

    >>> to_elo(1.0, "thurstone").round(2).item(), to_elo(1.0, "bradley-terry").round(3).item()
    (277.21, 173.718)
    """
    return np.asarray(latent, dtype=np.float64) * elo_per_latent(model)


def to_latent(elo: ArrayLike, model: Model) -> Floats:
    """Elo points to latent units, the inverse of `to_elo`."""
    return np.asarray(elo, dtype=np.float64) / elo_per_latent(model)


def normal_pdf(x: ArrayLike) -> Floats:
    """φ(x) = exp(-x²/2) / √(2π)."""
    return np.exp(-0.5 * np.square(np.asarray(x, dtype=np.float64))) / math.sqrt(2.0 * math.pi)


def normal_cdf(x: ArrayLike) -> Floats:
    """Φ(x), the standard normal distribution function."""
    return special.ndtr(np.asarray(x, dtype=np.float64))


def normal_quantile(p: ArrayLike) -> Floats:
    """Φ⁻¹(p), the probit; ±inf at 0 and 1."""
    return special.ndtri(np.asarray(p, dtype=np.float64))


def wilson(share: float, size: float) -> tuple[float, float]:
    """Return Wilson's 95 % interval (1927) of a share of `size` independent units."""
    middle = (share + Z95**2 / (2 * size)) / (1 + Z95**2 / size)
    half = Z95 / (1 + Z95**2 / size) * math.sqrt(share * (1 - share) / size + Z95**2 / (4 * size**2))
    return max(middle - half, 0.0) if share else 0.0, min(middle + half, 1.0) if share < 1 else 1.0


def sigmoid(x: ArrayLike) -> Floats:
    """σ(x) = 1 / (1 + exp(-x))."""
    return special.expit(np.asarray(x, dtype=np.float64))


def log_sigmoid(x: ArrayLike) -> Floats:
    """log σ(x) = -log(1 + exp(-x)), stable on both sides."""
    return special.log_expit(np.asarray(x, dtype=np.float64))


def link(x: ArrayLike, model: Model) -> Floats:
    """F(x), the probability that a document better by x latent units wins."""
    return normal_cdf(x) if model == "thurstone" else sigmoid(x)


def win_probability(gap_elo: ArrayLike, model: Model) -> Floats:
    """Probability that a document `gap_elo` points better is preferred.

    >>> win_probability([100, 400], "bradley-terry").round(2), win_probability([100, 400], "thurstone").round(2)
    (array([0.64, 0.91]), array([0.64, 0.93]))
    """
    return link(to_latent(gap_elo, model), model)
