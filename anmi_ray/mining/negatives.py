"""The shared view of mining: one bucket's possible negatives as flat arrays, and the signatures of rules over them.

Letters: E examples (one per query and anchor), N documents with a gap to an example's anchor (the anchor apart).
Rules compose as allow -> weigh -> sample, each a function of `Negatives` and the settings.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.mine import MineConfig

PLACE = "mine"  # of errors and rejects
Reals = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Negatives:
    """N rated documents beside an anchor, sorted by (example, doc_id)."""

    example: Ints  # [N], 0..E-1
    draw_ids: NDArray[np.uint8]  # [N, 16] identity of (example, document), to draw random numbers from
    gap: Reals  # [N] points: anchor minus document, or the least over the query's positives (MineConfig.gap)
    gap_se: Reals  # [N] points
    is_positive: Flags  # [N] another known positive of the query: never a negative


Allow = Callable[[Negatives, MineConfig], Flags]
Weigh = Callable[[Negatives, MineConfig], Reals]
Sample = Callable[[Negatives, Reals, MineConfig, int], Reals]  # (negatives, weights, config, seed) -> priority


def rank_within(group: Ints, *keys: NDArray[np.float64] | Ints) -> Ints:
    """Rank 0.. of each row in its group, by ascending `keys` (the first leads), ties in row order."""
    order = np.lexsort((*reversed(keys), group))
    ordered = group[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.r_[starts, len(ordered)])
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(ordered)) - np.repeat(starts, sizes)
    return rank
