"""Categories of documents by their gap to the anchor, and the curriculum tier of each."""

from __future__ import annotations

import numpy as np

from anmi_ray.core.arrays import Ints

PLACE = "mine"  # of errors and rejects
# Tiers of the report's algorithm 3; danger is beyond its last tier, so no curriculum uses it.
TIERS = {"anchor": 0, "positive": 0, "random": 1, "easy": 1, "medium": 1, "goldilocks": 2, "soft": 3, "danger": 4}
CATEGORIES = tuple(TIERS)


def indices(names: list[str]) -> Ints:
    """Return the indices of category names in CATEGORIES."""
    return np.array([CATEGORIES.index(name) for name in names], dtype=np.int64)
