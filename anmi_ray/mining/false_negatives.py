"""The share of false negatives among the chosen: its estimate, and an interval that holds the true share.

What is chosen is known, and whether it is a false negative is not: given the judgments, the true share varies about its
estimate, for three reasons. A document is false (its true gap is below δ₀) with the chance p = P(Δ < δ₀). Gaps to one
anchor share the anchor's error: their errors are taken as normal, correlated by WITHIN inside a query and independent
between queries. And all p come from the same priors and dispersion, which are estimated, and need not describe the
documents: the odds p / (1 - p) of all are off by one factor, log-normal with SHARED.
Letters: N chosen documents, Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import special

from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.scale import normal_cdf, normal_quantile

# Both from simulation (docs/results/negative_share.md): errors of gaps to one anchor correlate by .3 (k = 4, one judge)
# to .6 (k = 8, three). With SHARED = .3 the interval of 40 to 100 queries holds the truth in 92 to 100 % of data sets
# where positives are as their prior says, in 88 to 100 % where each is the best document, and in 80 to 99 % where 3
# unlabelled ones are like it (100 to 160 queries); without SHARED in 37 % at worst.
WITHIN = 0.5
SHARED = 0.3
_NODES = np.polynomial.hermite_e.hermegauss(20)
_TAIL = 0.025


def share(p: Reals, weight: Reals, query: Ints) -> Mapping[str, object]:
    """ρ̂ = Σ w p / Σ w of p, weight [N] with a 95 % interval of the true Σ w 1[false negative] / Σ w.

    `query` [N] says whose error a document shares. As JSON: mean, low, high (None without weight) and n = N. The
    interval is that of a Beta distribution of this mean and `variance`, and begins at 0 where it may well be that none
    is a false negative.
    """
    total = float(weight.sum())
    if not len(p) or total <= 0:
        return {"mean": None, "low": None, "high": None, "n": 0}
    mean = min(1.0, max(0.0, float(weight @ p) / total))
    low, high = interval(mean, variance(p, weight / total, query))
    return {"mean": mean, "low": low, "high": high, "n": len(p)}


def variance(p: Reals, weight: Reals, query: Ints, within: float = WITHIN, shared: float = SHARED) -> float:
    """Variance of Σ w 1[z < Φ⁻¹(p)] with standard normal z that correlate by `within` inside a query.

    Given the part that a query's errors share they are independent (law of total variance, the integral over it by
    Gauss and Hermite); `shared`, the sd of the odds' common factor on a log scale, adds (shared Σ w p (1 - p))².
    """
    edge = normal_quantile(p)
    queries = np.unique(query, return_inverse=True)[1]
    chances = _NODES[1] / _NODES[1].sum()
    own = 0.0
    sums = []
    for node, chance in zip(_NODES[0], chances, strict=True):
        given = _given(edge, node, within)
        own += chance * float((weight * weight * given * (1.0 - given)).sum())
        sums.append(np.bincount(queries, weight * given))
    between = float((chances @ np.square(np.array(sums) - chances @ np.array(sums))).sum())
    return own + between + float(shared * (weight * p) @ (1.0 - p)) ** 2


def _given(edge: Reals, node: float, within: float) -> Reals:
    """P(z < edge | its shared part, of variance `within`, stands at `node` of its standard deviations)."""
    if within >= 1.0:
        return (node < edge).astype(np.float64)
    return normal_cdf((edge - np.sqrt(within) * node) / np.sqrt(1.0 - within))


def interval(mean: float, variance: float) -> tuple[float, float]:
    """95 % of a Beta distribution with this mean and variance; an end is 0 or 1 where none or all has over 2.5 %.

    (That chance is a binomial count's, of the same mean and variance: of mean (1 - mean) / variance draws.)

    >>> interval(0.3, 0.0), [round(end, 3) for end in interval(0.02, 0.02 * 0.98 / 150)]
    ((0.3, 0.3), [0.0, 0.048])
    """
    draws = mean * (1.0 - mean) / variance if variance > 0 else np.inf
    if not np.isfinite(draws) or mean in (0.0, 1.0):
        return mean, mean
    size = max(draws - 1.0, 1e-6)
    low, high = special.betaincinv(mean * size, (1.0 - mean) * size, [_TAIL, 1.0 - _TAIL]).tolist()
    low = 0.0 if (1.0 - mean) ** draws > _TAIL else low
    high = 1.0 if mean**draws > _TAIL else high
    return min(low, mean), max(high, mean)
