"""The share of false negatives among the chosen: its estimate, and an interval that holds the true share.

What is chosen is known and whether it is a false negative is not: given the judgments, the true share varies about its
estimate. A document is one if its true gap lies below δ₀, with the chance p = P(Δ < δ₀), and this is not drawn document
by document: gaps to one anchor share the anchor's error, and all gaps share what was assumed or estimated for all
queries (priors, dispersion). So an error of a gap, in units of its standard error, is taken as the sum of three
independent normal parts: variance SHARED² common to all, WITHIN - SHARED² common to a query, the rest its own.
Letters: N chosen documents, Q queries, U nodes of the integral over a shared error.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from scipy import special

from anmi_ray.mining.negatives import Ints, Reals
from anmi_ray.scale import normal_cdf, normal_quantile

# Both measured on simulated queries of 100 documents (jobs/studies/negatives.py --coverage): the errors of two gaps to
# one anchor correlate by .30 (k = 4, one judge) to .62 (k = 8, three), and the second is what intervals need in order
# to hold the truth where the priors are wrong: positives that are always the best, unlabelled relevant documents.
WITHIN = 0.5
SHARED = 0.15
_NODES, _WEIGHTS = (np.sqrt(2.0) * np.polynomial.hermite.hermgauss(20)[0],
                    np.polynomial.hermite.hermgauss(20)[1] / np.sqrt(np.pi))  # fmt: skip
_TAIL = 0.025


def share(p: Reals, weight: Reals, query: Ints) -> Mapping[str, object]:
    """ρ̂ = Σ w p / Σ w of p, weight [N] with a 95 % interval of the true Σ w 1[false negative] / Σ w.

    `query` [N] says whose error a document shares. As JSON: mean, low, high (None without weight) and n = N. The
    interval is that of a Beta distribution of this mean and `variance`, and begins at 0 where it may be that none is a
    false negative.
    """
    total = float(weight.sum())
    if not len(p) or total <= 0:
        return {"mean": None, "low": None, "high": None, "n": 0}
    mean = min(1.0, max(0.0, float(weight @ p) / total))
    low, high = interval(mean, variance(p, weight / total, query))
    return {"mean": mean, "low": low, "high": high, "n": len(p)}


def variance(p: Reals, weight: Reals, query: Ints, within: float = WITHIN, shared: float = SHARED) -> float:
    """Variance of Σ w 1[z < Φ⁻¹(p)] with normal z that correlate by `within` in a query and `shared`² across queries.

    (Law of total variance, over the error common to all and, given none, that common to a query.)
    """
    edge = normal_quantile(p)
    whole = [float(weight @ _given(edge, node, shared**2)) for node in _NODES]
    return _variance(np.array(whole)[:, None]) + _inside(edge, weight, query, within - shared**2)


def _inside(edge: Reals, weight: Reals, query: Ints, within: float) -> float:
    """Σ over queries of the variance of their sums: own part, and the part of an error common to the query."""
    queries = np.unique(query, return_inverse=True)[1]
    own, sums = 0.0, []
    for node, chance in zip(_NODES, _WEIGHTS, strict=True):
        p = _given(edge, node, within)
        own += chance * float((weight * weight * p * (1.0 - p)).sum())
        sums.append(np.bincount(queries, weight * p))
    return own + _variance(np.array(sums))


def _given(edge: Reals, node: float, common: float) -> Reals:
    """P(z < edge | its common part, of variance `common`, stands at `node` standard deviations)."""
    if common >= 1.0:
        return (node < edge).astype(np.float64)
    return normal_cdf((edge - np.sqrt(common) * node) / np.sqrt(1.0 - common))


def _variance(value_UQ: Reals) -> float:
    """Σ over columns of the variance over the nodes."""
    return float((_WEIGHTS @ np.square(value_UQ - _WEIGHTS @ value_UQ)).sum())


def interval(mean: float, variance: float) -> tuple[float, float]:
    """95 % of a Beta distribution with this mean and variance; low is 0 where a count of 0 has a chance above 2.5 %.

    The count is a binomial one of the same share and variance, of mean (1 - mean) / variance draws.

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
