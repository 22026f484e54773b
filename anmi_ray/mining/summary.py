"""What was mined, in numbers: categories, weights, and the estimated share of false negatives among the chosen."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.mine import MineConfig
from anmi_ray.mining.categories import TIERS
from anmi_ray.mining.false_negatives import share
from anmi_ray.mining.posterior import band, false_negative


def summary(examples: pa.Table, gaps: pa.Table, config: MineConfig | None = None) -> dict[str, object]:
    """JSON-able counts of `examples` and of the pool (`gaps`) that they were chosen from.

    `rated_share` is the share of all negatives' weight that rated ones have, random ones the rest.
    `false_negative_rate` is ρ̂ = Σ w·P(Δ < δ₀) / Σ w over the chosen rated negatives (weight > 0), with a 95 % interval
    of the true share among them (see `false_negatives`); `false_negative_rate_unweighted` gives every chosen negative
    weight 1.
    """
    config = config or MineConfig()
    owner = np.repeat(np.arange(examples.num_rows), pc.list_value_length(examples["doc_ids"]).to_numpy())
    category = _flat(examples["categories"])
    weight, gap, gap_se = (_flat(examples[name]).astype(np.float64) for name in ("weights", "gaps", "gap_errors"))
    negative = (category != "anchor") & (weight > 0)
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
            if name != "anchor"
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
