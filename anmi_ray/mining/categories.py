"""What a document is to a query's anchor, by its gap: the categories of examples, and the curriculum tier of each."""

from __future__ import annotations

import numpy as np

from anmi_ray.core.arrays import Ints

PLACE = "mine"  # of errors and rejects
# Algorithm 3's tiers; danger lies beyond its last tier, so no curriculum reaches it.
TIERS = {"anchor": 0, "random": 1, "easy": 1, "medium": 1, "goldilocks": 2, "soft": 3, "danger": 4}
CATEGORIES = tuple(TIERS)


def indices(names: list[str]) -> Ints:
    """Indices into CATEGORIES of categories by name."""
    return np.array([CATEGORIES.index(name) for name in names], dtype=np.int64)
