"""Table 2 of the report: bands of the gap with a category, a weight and a curriculum tier."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.mine import MineConfig
from anmi_ray.mining.negatives import Flags, Ints, Negatives, Reals

# Algorithm 3's tiers; danger lies beyond its last tier, so no curriculum reaches it.
TIERS = {"anchor": 0, "random": 1, "easy": 1, "medium": 1, "goldilocks": 2, "soft": 3, "danger": 4}


def band(gap: Reals, config: MineConfig) -> Ints:
    """Index of each gap's band in `config.bands`; a gap on an edge belongs to the band above it.

    >>> band(np.array([99.9, 100.0, 700.0]), MineConfig()).tolist()
    [0, 1, 4]
    """
    return np.searchsorted(np.array(config.edges), gap, side="right")


def allow(negatives: Negatives, config: MineConfig) -> Flags:
    """Everything that is not a known positive: Table 2 rejects by weight 0."""
    del config
    return ~negatives.is_positive


def weigh(negatives: Negatives, config: MineConfig) -> Reals:
    """The band's weight at the estimated gap, as if it were exact (report, Table 2)."""
    return np.array([row.weight for row in config.bands])[band(negatives.gap, config)]
