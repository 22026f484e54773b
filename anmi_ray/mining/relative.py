"""Rules by the gap from the anchor to a document: in units of the query, or by the query's own percentiles.

What other libraries offer does so on the retriever's ranks and scores alone: baselines that know of no judgment.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from anmi_ray.config.rules import Percentile, PositiveRelative, RankWindow, Relative, ScoreMargin
from anmi_ray.core.arrays import Reals
from anmi_ray.mining.categories import indices
from anmi_ray.mining.negatives import LEAST_SD, Common, Negatives, Rule, RuleVerdict, grouped_quantiles

# of a query's mean document, where chess puts the average player: the report's thresholds assume it
_MEAN_RATING = 1500.0


def relative(negatives: Negatives, settings: Relative, _common: Common) -> RuleVerdict:
    """1 for γ_min ≤ Δ/u ≤ γ_max, (Δ/u)/γ_min below, 0 at Δ ≤ 0, exp(−(Δ/u − γ_max)/s) above (methods 5).

    NV-Retriever's rule (Moreira et al. 2024), carried to ratings. u is the query's robust sd, which no shift of the
    ratings changes; anchored, u is the anchor's rating where the mean document's is 1500 (the report: "gap > .05 x
    positive"), which a shift does change.
    """
    x = _in_units(negatives, settings)
    above = np.exp(-np.maximum(x - settings.most, 0.0) / settings.fade)
    return RuleVerdict(np.where(x < settings.least, np.clip(x / settings.least, 0.0, 1.0), above))


def positive_relative(negatives: Negatives, settings: PositiveRelative, _common: Common) -> RuleVerdict:
    """Refuses Δ/u < `least`, u as in `relative` (report, extended method 2)."""
    return RuleVerdict(np.where(_in_units(negatives, settings) >= settings.least, np.nan, 0.0))


def _in_units(negatives: Negatives, settings: Relative | PositiveRelative) -> Reals:
    """Δ/u of all N documents."""
    if settings.form == "spread":
        return negatives.gap / negatives.spread
    return negatives.gap / np.maximum(_MEAN_RATING + negatives.anchor_rating, LEAST_SD)


def percentile(negatives: Negatives, _settings: Percentile, _common: Common) -> RuleVerdict:
    """Weight and category by the percentiles of the example's own gaps, known positives left out.

    It refuses the same share of every query, whatever its documents are. Gaps of 0 and below are danger.
    """
    rows = np.flatnonzero(~negatives.is_positive)
    groups = int(negatives.example.max()) + 1 if len(negatives.example) else 0
    edges = grouped_quantiles(negatives.example[rows], negatives.gap[rows], groups, (0.1, 0.25, 0.75))
    band = (negatives.gap >= edges[:, negatives.example]).sum(axis=0)
    band[negatives.gap <= 0] = 0
    return RuleVerdict(np.array([0.0, 0.5, 1.0, 0.3])[band], indices(["danger", "soft", "goldilocks", "easy"])[band])


def rank_window(negatives: Negatives, settings: RankWindow, _common: Common) -> RuleVerdict:
    """Refuses what the retriever ranked outside `first` to `last`, or not at all."""
    last = np.inf if settings.last is None else settings.last
    return RuleVerdict(np.where((negatives.rank >= settings.first) & (negatives.rank <= last), np.nan, 0.0))


def score_margin(negatives: Negatives, settings: ScoreMargin, _common: Common) -> RuleVerdict:
    """Refuses scores s above s⁺ − margin·|s⁺| (NV-Retriever's TopK-PercPos, safe for negative scores).

    As published it is s ≤ (1 − margin)·s⁺, which for a negative s⁺ allows documents above the positive.
    """
    positive = negatives.anchor_score
    bound = positive - settings.margin * np.abs(positive)
    return RuleVerdict(np.where(negatives.score <= bound, np.nan, 0.0))


ALLOW: dict[str, Rule[Any]] = {
    "rank-window": rank_window,
    "score-margin": score_margin,
    "positive-relative": positive_relative,
}
WEIGH: dict[str, Rule[Any]] = {"percentile": percentile, "relative": relative}
