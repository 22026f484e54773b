"""Table 2 under uncertainty: a gap is Δ̂ ± se, so its weight is an expectation and its danger a probability."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.mine import MineConfig
from anmi_ray.mining.negatives import Flags, Negatives, Reals
from anmi_ray.scale import normal_cdf

EXACT = 1e-9  # points: an error below this is none


def below(edge: float, gap: Reals, gap_se: Reals) -> Reals:
    """P(Δ < edge) = Φ((edge − Δ̂)/se); without error it is 0 or 1, an edge itself counting as not below.

    >>> below(100.0, np.array([100.0, 100.0]), np.array([50.0, 0.0])).tolist()
    [0.5, 0.0]
    """
    exact = gap_se <= EXACT
    z = (edge - gap) / np.where(exact, 1.0, gap_se)
    return np.where(exact, (gap < edge).astype(np.float64), normal_cdf(z))


def false_negative(gap: Reals, gap_se: Reals, config: MineConfig) -> Reals:
    """P(Δ < δ₀): the probability that the document's true gap is below `false_negative_gap`."""
    return below(config.false_negative_gap, gap, gap_se)


def allow(negatives: Negatives, config: MineConfig) -> Flags:
    """Not a known positive, and P(false negative) at most `gate`."""
    return ~negatives.is_positive & (false_negative(negatives.gap, negatives.gap_se, config) <= config.gate)


def weigh(negatives: Negatives, config: MineConfig) -> Reals:
    """E[w] = Σ_b w_b [Φ((u_b − Δ̂)/se) − Φ((l_b − Δ̂)/se)] over the bands of Table 2; Table 2 itself as se → 0."""
    weights = [row.weight for row in config.bands]
    edges = [*(below(edge, negatives.gap, negatives.gap_se) for edge in config.edges), np.ones(len(negatives.gap))]
    expected, under = np.zeros(len(negatives.gap)), np.zeros(len(negatives.gap))
    for weight, edge in zip(weights, edges, strict=True):
        expected += weight * (edge - under)
        under = edge
    # A convex combination of the weights, up to rounding.
    return np.clip(expected, min(weights), max(weights))
