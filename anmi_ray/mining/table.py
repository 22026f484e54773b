"""Table 2 of the report: bands of the gap with a category, a weight and a curriculum tier."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import Table2
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.mining.categories import indices
from anmi_ray.mining.negatives import Common, Negatives, RuleVerdict


def band(gap: Reals, config: MineConfig) -> Ints:
    """Index of each gap's band in `config.bands`; a gap on an edge belongs to the band above it.

    >>> band(np.array([99.9, 100.0, 700.0]), MineConfig()).tolist()
    [0, 1, 4]
    """
    return np.searchsorted(np.array(config.edges), gap, side="right")


def categories(gap: Reals, config: MineConfig) -> Ints:
    """Index into CATEGORIES of each gap's band."""
    return indices([part.category for part in config.bands])[band(gap, config)]


def table2(negatives: Negatives, settings: Table2, common: Common) -> RuleVerdict:
    """The band's weight at the estimated gap, as if it were exact (report, Table 2)."""
    del settings
    return RuleVerdict(np.array([row.weight for row in common.config.bands])[band(negatives.gap, common.config)])
