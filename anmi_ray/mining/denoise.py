"""Denoising and validation: is the anchor truly better? By the gap, or a judgment that was asked for on purpose."""

from __future__ import annotations

from typing import Any

import numpy as np

from anmi_ray.config.rules import Denoise, Reliability, RocketQA, Validate
from anmi_ray.core.arrays import Flags, Reals
from anmi_ray.mining.negatives import Common, Negatives, Rule, RuleVerdict
from anmi_ray.mining.posterior import below


def anchor_better(negatives: Negatives) -> Reals:
    """P(the anchor is truly better), P(Δ > 0) = Φ(Δ̂/se): the posterior holds what judges said of the pair itself."""
    return 1.0 - below(0.0, negatives.gap, negatives.gap_se)


def confidence(negatives: Negatives) -> Reals:
    """max(0, (p − .5)/.5), p = P(the anchor is truly better)."""
    return np.maximum(0.0, (anchor_better(negatives) - 0.5) / 0.5)


def denoise(negatives: Negatives, settings: Denoise, _common: Common) -> RuleVerdict:
    """Refuses what the anchor does not surely beat: `confidence` must exceed `keep_above`."""
    return RuleVerdict(np.where(confidence(negatives) > settings.keep_above, np.nan, 0.0))


def reliability(negatives: Negatives, _settings: Reliability, _common: Common) -> RuleVerdict:
    """Weighs by `confidence`."""
    return RuleVerdict(confidence(negatives))


def relevance(negatives: Negatives) -> Reals:
    """P(relevant): a pointwise model's where there is one, else P(the anchor is not better)."""
    return np.where(np.isnan(negatives.relevance), 1.0 - anchor_better(negatives), negatives.relevance)


def rocketqa(negatives: Negatives, settings: RocketQA, _common: Common) -> RuleVerdict:
    """Refuses P(relevant) at or above `negative_below` (RocketQA, Qu et al. 2021: cross-batch denoising at .1)."""
    return RuleVerdict(np.where(relevance(negatives) < settings.negative_below, np.nan, 0.0))


def borderline(gap: Reals, settings: Validate) -> Flags:
    """Documents whose gap Stage 4 wants judged directly against the anchor: low ≤ Δ ≤ high."""
    return (gap >= settings.low) & (gap <= settings.high)


def to_validate(negatives: Negatives, settings: Validate) -> Flags:
    """Documents that Stage 4 speaks of: borderline by the gap as it is, or as it was before the round of questions.

    The answers of that round join the fit, so gaps move: a document that was found borderline and judged keeps its
    verdict wherever its gap has moved to, and one that has become borderline gets a verdict if it happens to have been
    judged. Known positives are none.
    """
    held = borderline(negatives.gap, settings)
    if negatives.was_borderline is not None:
        held = held | negatives.was_borderline
    return held & ~negatives.is_positive


def outcomes(preference: Reals, settings: Validate) -> dict[str, Flags]:
    """What a direct preference for the anchor makes of documents; none of these where it is NaN."""
    return {
        "rejected": preference < settings.reject_below,
        "reduced": (preference >= settings.reject_below) & (preference <= settings.full_above),
        "full": preference > settings.full_above,
    }


def validate(negatives: Negatives, settings: Validate, _common: Common) -> RuleVerdict:
    """Stage 4 (report 7.2, eq. 35) on documents `to_validate` with a direct judgment p for the anchor.

    p < .65 refuses, up to .75 the weight is .3, above it is 1; all others are left to the rules after it. p is the
    preference for the example's own anchor, also with gap: minimum: there a document is borderline by its least gap
    over the positives, and is judged against every one of them.
    """
    verdict = np.select(list(outcomes(negatives.direct, settings).values()), [0.0, settings.weight, 1.0], np.nan)
    return RuleVerdict(np.where(to_validate(negatives, settings), verdict, np.nan))


ALLOW: dict[str, Rule[Any]] = {"denoise": denoise, "rocketqa": rocketqa, "validate": validate}
WEIGH: dict[str, Rule[Any]] = {"reliability": reliability}
