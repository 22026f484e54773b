"""Weigh the information of a negative against the cost of a false negative.

Theorem 12: information less that cost; or, by a mixture of gaps, P(true negative) times information.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy import special

from anmi_ray.config.rules import BetaMixture, GaussianMixture, Optimum
from anmi_ray.core.arrays import Reals
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.scale import win_probability
from anmi_ray.mining.categories import PLACE
from anmi_ray.mining.negatives import Common, Negatives, Rule, RuleVerdict
from anmi_ray.mining.posterior import below, false_negative


def information(gap: Reals) -> Reals:
    """I(Δ) = H(Bernoulli(Φ(Δ))) in bits (report, eq. 46): 1 at a gap of 0, towards 0 as gaps widen.

    >>> information(np.array([0.0, 277.21])).round(3).tolist()
    [1.0, 0.631]
    """
    q = win_probability(-np.abs(gap), "thurstone")
    return np.minimum((special.entr(q) - (1.0 - q) * np.log1p(-q)) / math.log(2.0), 1.0)


def optimum(negatives: Negatives, settings: Optimum, _common: Common) -> RuleVerdict:
    """max(0, I(Δ̂) − λ·P(Δ < false_gap)), λ in bits (report, Theorem 12)."""
    danger = below(settings.false_gap, negatives.gap, negatives.gap_se)
    return RuleVerdict(np.maximum(0.0, information(negatives.gap) - settings.cost * danger))


def by_mixture(negatives: Negatives, settings: BetaMixture | GaussianMixture, common: Common) -> RuleVerdict:
    """P(true negative | Δ̂)·I(Δ̂) (methods 5, report eq. 46), categories by the discovered thresholds.

    P(true negative) is 1 − `Mixture.false_negative`, but at most the gap's own P(Δ > 0): I is as large below a gap of 0
    as above, and a document that beats the anchor is not a true negative, whatever the mixture knows. Where one
    component suffices it is 1 − P(Δ < false_negative_gap), and categories are the bands'.
    Raises ConfigError without a mixture of the same kind in `common`.
    """
    mixture = common.mixture
    kind = "beta" if isinstance(settings, BetaMixture) else "gaussian"
    if mixture is None or mixture.kind != kind:
        actual = "none is given" if mixture is None else f"a {mixture.kind} mixture is given"
        remedy = f"fit one on gaps of many queries (anmi_ray.mining.mixture.fit with the settings of {settings.rule})"
        raise ConfigError(f"{settings.rule} needs a fitted {kind} mixture, {actual}", f"{PLACE}.weigh", remedy)
    gap = negatives.gap
    gap_se = negatives.gap_se
    if mixture.one_suffices:
        return RuleVerdict((1.0 - false_negative(gap, gap_se, common.config)) * information(gap))
    p_true = 1.0 - np.maximum(mixture.false_negative(gap), below(0.0, gap, gap_se))
    return RuleVerdict(p_true * information(gap), mixture.categories(gap))


WEIGH: dict[str, Rule[Any]] = {"beta-mixture": by_mixture, "gaussian-mixture": by_mixture, "optimum": optimum}
