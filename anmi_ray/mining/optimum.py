"""Theorem 12: information less the cost of false negatives, and the gap at which that is largest."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.rules import Optimum
from anmi_ray.mining.negatives import Common, Negatives, Reals, Ruled
from anmi_ray.mining.posterior import below
from anmi_ray.scale import win_probability


def information(gap: Reals) -> Reals:
    """I(Δ) = H(Bernoulli(Φ(Δ))) in bits (report, eq. 46): 1 at a gap of 0, towards 0 as gaps widen.

    >>> information(np.array([0.0, 277.21])).round(3).tolist()
    [1.0, 0.631]
    """
    p = np.clip(win_probability(np.abs(gap), "thurstone"), 0.5, 1.0)
    q = np.maximum(1.0 - p, np.finfo(np.float64).tiny)
    return -(p * np.log2(p) + q * np.log2(q))


def optimum(negatives: Negatives, settings: Optimum, common: Common) -> Ruled:
    """max(0, I(Δ̂) − λ·P(Δ < false_gap)), λ in bits (report, Theorem 12)."""
    del common
    danger = below(settings.false_gap, negatives.gap, negatives.gap_se)
    return Ruled(np.maximum(0.0, information(negatives.gap) - settings.cost * danger))
