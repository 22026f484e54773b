"""What other libraries offer, on the retriever's ranks and scores alone: baselines that know of no judgment."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.rules import RankWindow, ScoreMargin
from anmi_ray.mining.negatives import Common, Negatives, RuleVerdict


def rank_window(negatives: Negatives, settings: RankWindow, common: Common) -> RuleVerdict:
    """Refuses what the retriever ranked outside `first` to `last`, or not at all."""
    del common
    last = np.inf if settings.last is None else settings.last
    return RuleVerdict(np.where((negatives.rank >= settings.first) & (negatives.rank <= last), np.nan, 0.0))


def score_margin(negatives: Negatives, settings: ScoreMargin, common: Common) -> RuleVerdict:
    """Refuses scores s above s⁺ − margin·|s⁺| (NV-Retriever's TopK-PercPos, safe for negative scores).

    As published it is s ≤ (1 − margin)·s⁺, which for a negative s⁺ allows documents above the positive.
    """
    del common
    positive = negatives.anchor_score
    bound = {
        "relative": positive - settings.margin * np.abs(positive),
        "literal": (1.0 - settings.margin) * positive,
        "absolute": positive - settings.margin,
    }[settings.form]
    return RuleVerdict(np.where(negatives.score <= bound, np.nan, 0.0))
