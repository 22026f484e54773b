"""Table 2 of the report, bands of the gap with a category, a weight and a curriculum tier, as printed and under error.

A gap is Δ̂ ± se, so its weight is an expectation and its danger a probability.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import Equal, GateRule, PosteriorRule, Table2
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.scale import normal_cdf
from anmi_ray.mining.categories import indices
from anmi_ray.mining.negatives import Common, Negatives, Rule, RuleVerdict

EXACT = 1e-9  # points: a smaller error counts as zero


def band(gap: Reals, config: MineConfig) -> Ints:
    """Index of each gap's band in `config.bands`; a gap on an edge belongs to the band above it.

    >>> band(np.array([99.9, 100.0, 700.0]), MineConfig()).tolist()
    [0, 1, 4]
    """
    return np.searchsorted(np.array(config.edges), gap, side="right")


def categories(gap: Reals, config: MineConfig) -> Ints:
    """Index into CATEGORIES of each gap's band."""
    return indices([part.category for part in config.bands])[band(gap, config)]


def table2(negatives: Negatives, _settings: Table2, common: Common) -> RuleVerdict:
    """The band's weight at the estimated gap, as if it were exact (report, Table 2)."""
    return RuleVerdict(np.array([row.weight for row in common.config.bands])[band(negatives.gap, common.config)])


def below(edge: float, gap: Reals, gap_se: Reals) -> Reals:
    """P(Δ < edge) = Φ((edge − Δ̂)/se); without error it is 0 or 1, an edge itself counting as not below.

    >>> below(100.0, np.array([100.0, 100.0]), np.array([50.0, 0.0])).tolist()
    [0.5, 0.0]
    """
    exact = gap_se <= EXACT
    z = (edge - gap) / np.where(exact, 1.0, gap_se)
    return np.where(exact, (gap < edge).astype(np.float64), normal_cdf(z))


def false_negative(gap: Reals, gap_se: Reals, config: MineConfig) -> Reals:
    """P(Δ < δ₀): the probability that the document's true gap is below `false_negative_gap`."""
    return below(config.false_negative_gap, gap, gap_se)


def gate(negatives: Negatives, settings: GateRule, common: Common) -> RuleVerdict:
    """Refuses where P(false negative) exceeds `largest`."""
    p = false_negative(negatives.gap, negatives.gap_se, common.config)
    return RuleVerdict(np.where(p <= settings.largest, np.nan, 0.0))


def posterior(negatives: Negatives, settings: PosteriorRule, common: Common) -> RuleVerdict:
    """max(0, E[w] − λ P(Δ < δ₀)), E[w] = Σ_b w_b [Φ((u_b − Δ̂)/se) − Φ((l_b − Δ̂)/se)] over the bands of Table 2.

    Table 2 itself as se → 0, if its bands below δ₀ weigh nothing.
    """
    gap = negatives.gap
    gap_se = negatives.gap_se
    bands = common.config.bands
    edges = [*(below(edge, gap, gap_se) for edge in common.config.edges), np.ones(len(gap))]
    expected = np.zeros(len(gap))
    under = np.zeros(len(gap))
    for component, edge in zip(bands, edges, strict=True):
        expected += component.weight * (edge - under)
        under = edge
    weights = [component.weight for component in bands]
    expected = np.clip(expected, min(weights), max(weights))  # a convex combination of the weights, up to rounding
    if settings.penalty:
        expected = np.maximum(0.0, expected - settings.penalty * false_negative(gap, gap_se, common.config))
    return RuleVerdict(expected)


def equal(negatives: Negatives, _settings: Equal, _common: Common) -> RuleVerdict:
    """Weight 1 for all."""
    return RuleVerdict(np.ones(len(negatives.gap)))


ALLOW: dict[str, Rule[Any]] = {"gate": gate}
WEIGH: dict[str, Rule[Any]] = {"table2": table2, "posterior": posterior, "equal": equal}
