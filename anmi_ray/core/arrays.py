"""Names of the array types that the mathematics shares, and ranks within groups."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]
Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


def rank_within(group: Ints, *keys: NDArray[np.float64] | Ints) -> Ints:
    """Rank 0.. of each row in its group, by ascending `keys` (the first leads), ties in row order."""
    order = np.lexsort((*reversed(keys), group))
    ordered = group[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]]) if len(ordered) else np.zeros(0, dtype=np.int64)
    sizes = np.diff(np.r_[starts, len(ordered)])
    rank = np.empty(len(group), dtype=np.int64)
    rank[order] = np.arange(len(ordered)) - np.repeat(starts, sizes)
    return rank
