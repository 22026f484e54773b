"""Statistics of mined examples: categories, weights, and the estimated share of false negatives, with an interval.

Given the judgments, the true share varies around its estimate for three reasons. Each document is a false negative (its
true gap is below δ₀) with probability p = P(Δ < δ₀). Gaps to one anchor share the anchor's error: errors are modeled
as normal, with correlation WITHIN in a query and independent between queries. And all p depend on the same estimated
prior and dispersion: the odds p / (1 - p) of all documents are off by a common factor, log-normal with sd SHARED.
Letters: N selected documents, Q queries.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from scipy import special

from anmi_ray.config.mine import MineConfig
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.scale import normal_cdf, normal_quantile
from anmi_ray.mining.categories import TIERS
from anmi_ray.mining.posterior import band, false_negative


def summary(examples: pa.Table, gaps: pa.Table, config: MineConfig | None = None) -> dict[str, object]:
    """JSON-able counts of `examples` and of the pool (`gaps`) that they were chosen from.

    `rated_share` is the share of all negatives' weight that rated ones have, random ones the rest.
    `false_negative_rate` is ρ̂ = Σ w·P(Δ < δ₀) / Σ w over the chosen rated negatives (weight > 0), with a 95 % interval
    of the true share among them (see `share`); `false_negative_rate_unweighted` gives every chosen negative
    weight 1.
    """
    config = config or MineConfig()
    owner = np.repeat(np.arange(examples.num_rows), pc.list_value_length(examples["doc_ids"]).to_numpy())
    category = _flat(examples["categories"])
    weight, gap, gap_se = (_flat(examples[name]).astype(np.float64) for name in ("weights", "gaps", "gap_errors"))
    negative = ~np.isin(category, ("anchor", "positive")) & (weight > 0)
    rated = negative & (category != "random")
    cluster = pc.dictionary_encode(examples["query_id"]).combine_chunks().indices.to_numpy() if len(examples) else owner
    danger = false_negative(gap[rated], gap_se[rated], config)
    pooled = np.array([band.category for band in config.bands])[band(gaps["gap_elo"].to_numpy(), config)]
    return {
        "examples": examples.num_rows,
        "queries": len(pc.unique(examples["query_id"])),
        "negatives_per_example": _mean(np.bincount(owner[negative], minlength=examples.num_rows)),
        "rated_share": float(weight[rated].sum() / weight[negative].sum()) if negative.any() else None,
        "categories": {
            name: {
                "negatives": int((negative & (category == name)).sum()),
                "mean_weight": _mean(weight[negative & (category == name)]),
                "extra": int(((weight == 0) & (category == name)).sum()),
                "pool": int((pooled == name).sum()),
            }
            for name in TIERS
            if name not in ("anchor", "positive")
        },
        "mean_gap_elo": _mean(gap[rated]),
        "mean_gap_se_elo": _mean(gap_se[rated]),
        "false_negative_gap_elo": config.false_negative_gap,
        "false_negative_rate": share(danger, weight[rated], cluster[owner[rated]]),
        "false_negative_rate_unweighted": share(danger, np.ones(len(danger)), cluster[owner[rated]]),
    }


def _flat(column: pa.ChunkedArray) -> NDArray[np.generic]:
    return pc.list_flatten(column).to_numpy(zero_copy_only=False)


def _mean(values: NDArray[np.int64] | NDArray[np.float64]) -> float | None:
    return float(np.mean(values)) if len(values) else None


# Both by simulation (docs/results/negative_share.md): errors of gaps to one anchor have correlations of .3 (k = 4, one
# judge) to .6 (k = 8, three judges). With SHARED = .3 the interval for 40 to 100 queries covers the truth in 92 to 100
# % of data sets if positives follow their prior, in 88 to 100 % if each is the best document, and in 80 to 99 % if
# three unlabeled documents are as good (100 to 160 queries); without SHARED in 37 % at worst.
WITHIN = 0.5
SHARED = 0.3
_NODES = np.polynomial.hermite_e.hermegauss(20)
_TAIL = 0.025


def share(p: Reals, weight: Reals, query: Ints) -> Mapping[str, object]:
    """Return ρ̂ = Σ w p / Σ w and a 95 % interval for the true Σ w 1[false negative] / Σ w.

    p, weight: [N]. query: [N], documents of a query share its anchor's error. Returns JSON: mean, low, high (None
    without weight) and n = N. The interval is that of a Beta distribution with this mean and `variance`; it starts at 0
    if zero false negatives are plausible.
    """
    total = float(weight.sum())
    if not len(p) or total <= 0:
        return {"mean": None, "low": None, "high": None, "n": 0}
    mean = min(1.0, max(0.0, float(weight @ p) / total))
    low, high = interval(mean, variance(p, weight / total, query))
    return {"mean": mean, "low": low, "high": high, "n": len(p)}


def variance(p: Reals, weight: Reals, query: Ints, within: float = WITHIN, shared: float = SHARED) -> float:
    """Return the variance of Σ w 1[z < Φ⁻¹(p)] for standard normal z with correlation `within` inside a query.

    By the law of total variance: given the shared part of a query's errors they are independent, and the integral over
    it is by Gauss-Hermite quadrature. `shared`, the sd of the log of the odds' common factor, adds
    (shared Σ w p (1 - p))².
    """
    edge = normal_quantile(p)
    queries = np.unique(query, return_inverse=True)[1]
    chances = _NODES[1] / _NODES[1].sum()
    own = 0.0
    sums = []
    for node, chance in zip(_NODES[0], chances, strict=True):
        conditional = _given(edge, node, within)
        own += chance * float((weight * weight * conditional * (1.0 - conditional)).sum())
        sums.append(np.bincount(queries, weight * conditional))
    between = float((chances @ np.square(np.array(sums) - chances @ np.array(sums))).sum())
    return own + between + float(shared * (weight * p) @ (1.0 - p)) ** 2


def _given(edge: Reals, node: float, within: float) -> Reals:
    """Return P(z < edge | the shared part, of variance `within`, is `node` standard deviations)."""
    if within >= 1.0:
        return (node < edge).astype(np.float64)
    return normal_cdf((edge - np.sqrt(within) * node) / np.sqrt(1.0 - within))


def interval(mean: float, variance: float) -> tuple[float, float]:
    """Return the 95 % interval of a Beta distribution with this mean and variance.

    An end is 0 or 1 if a binomial count of the same mean and variance, of mean (1 - mean) / variance draws, has a
    probability above 2.5 % of no or of all successes.

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
