"""Table 2 of the report: bands of the gap with a category, a weight and a curriculum tier."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import Table2
from anmi_ray.mining.negatives import Common, Ints, Negatives, Reals, Ruled

# Algorithm 3's tiers; danger lies beyond its last tier, so no curriculum reaches it.
TIERS = {"anchor": 0, "random": 1, "easy": 1, "medium": 1, "goldilocks": 2, "soft": 3, "danger": 4}
CATEGORIES = tuple(TIERS)


def band(gap: Reals, config: MineConfig) -> Ints:
    """Index of each gap's band in `config.bands`; a gap on an edge belongs to the band above it.

    >>> band(np.array([99.9, 100.0, 700.0]), MineConfig()).tolist()
    [0, 1, 4]
    """
    return np.searchsorted(np.array(config.edges), gap, side="right")


def categories(gap: Reals, config: MineConfig) -> Ints:
    """Index into CATEGORIES of each gap's band."""
    return named([one.category for one in config.bands])[band(gap, config)]


def named(names: list[str]) -> Ints:
    """Indices into CATEGORIES of categories by name."""
    return np.array([CATEGORIES.index(name) for name in names], dtype=np.int64)


def table2(negatives: Negatives, settings: Table2, common: Common) -> Ruled:
    """The band's weight at the estimated gap, as if it were exact (report, Table 2)."""
    del settings
    return Ruled(np.array([row.weight for row in common.config.bands])[band(negatives.gap, common.config)])
