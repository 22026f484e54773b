"""Denoising and validation: is the anchor truly better, by the gap or by a dedicated judgment?"""

from __future__ import annotations

from typing import Any

import numpy as np

from anmi_ray.config.rules import Denoise, Reliability, RocketQA, Validate
from anmi_ray.core.arrays import Flags, Reals
from anmi_ray.mining.negatives import Common, Negatives, Rule, RuleVerdict
from anmi_ray.mining.posterior import below


def anchor_better(negatives: Negatives) -> Reals:
    """Return P(anchor is better) = P(Δ > 0) = Φ(Δ̂/se); the posterior includes the pair's own judgments."""
    return 1.0 - below(0.0, negatives.gap, negatives.gap_se)


def confidence(negatives: Negatives) -> Reals:
    """Return max(0, (p − .5)/.5) with p = P(anchor is better)."""
    return np.maximum(0.0, (anchor_better(negatives) - 0.5) / 0.5)


def denoise(negatives: Negatives, _settings: Denoise, _common: Common) -> RuleVerdict:
    """Reject documents whose `confidence` does not exceed .1."""
    return RuleVerdict(np.where(confidence(negatives) > 0.1, np.nan, 0.0))


def reliability(negatives: Negatives, _settings: Reliability, _common: Common) -> RuleVerdict:
    """Weigh by `confidence`."""
    return RuleVerdict(confidence(negatives))


def relevance(negatives: Negatives) -> Reals:
    """Return P(relevant) by a pointwise model if available, else P(anchor is not better)."""
    return np.where(np.isnan(negatives.relevance), 1.0 - anchor_better(negatives), negatives.relevance)


def rocketqa(negatives: Negatives, settings: RocketQA, _common: Common) -> RuleVerdict:
    """Reject P(relevant) of at least `negative_below` (RocketQA, Qu et al. 2021: denoising at .1)."""
    return RuleVerdict(np.where(relevance(negatives) < settings.negative_below, np.nan, 0.0))


def borderline(gap: Reals, settings: Validate) -> Flags:
    """Return which documents to judge directly against the anchor: low ≤ Δ ≤ high."""
    return (gap >= settings.low) & (gap <= settings.high)


def to_validate(negatives: Negatives, settings: Validate) -> Flags:
    """Return which documents validation applies to: borderline now, or before the validation round.

    The answers of that round change the fit and so the gaps. A document that was borderline and judged keeps its
    verdict regardless of its new gap, and one that has become borderline gets a verdict if it was judged. Known
    positives are excluded.
    """
    validated = borderline(negatives.gap, settings)
    if negatives.was_borderline is not None:
        validated = validated | negatives.was_borderline
    return validated & ~negatives.is_positive


def outcomes(preference: Reals) -> dict[str, Flags]:
    """Return the outcome of each direct preference for the anchor, by the report's bounds; all False for NaN."""
    return {
        "rejected": preference < 0.65,
        "reduced": (preference >= 0.65) & (preference <= 0.75),
        "full": preference > 0.75,
    }


def validate(negatives: Negatives, settings: Validate, _common: Common) -> RuleVerdict:
    """Validate borderline documents by a direct judgment p for the anchor (report 7.2, eq. 35).

    p < .65 rejects, up to .75 the weight is .3, above it is 1; other documents are left to later rules. p is the
    preference for the example's own anchor.
    """
    verdict = np.select(list(outcomes(negatives.direct).values()), [0.0, 0.3, 1.0], np.nan)
    return RuleVerdict(np.where(to_validate(negatives, settings), verdict, np.nan))


ALLOW: dict[str, Rule[Any]] = {"denoise": denoise, "rocketqa": rocketqa, "validate": validate}
WEIGH: dict[str, Rule[Any]] = {"reliability": reliability}
