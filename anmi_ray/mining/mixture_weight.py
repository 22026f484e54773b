"""The weight of a negative by a mixture of gaps: P(true negative) times information."""

from __future__ import annotations

import numpy as np

from anmi_ray.config.rules import BetaMixture, GaussianMixture
from anmi_ray.core.errors import ConfigError
from anmi_ray.mining.categories import PLACE
from anmi_ray.mining.negatives import Common, Negatives, RuleVerdict
from anmi_ray.mining.optimum import information
from anmi_ray.mining.posterior import below, false_negative


def weigh(negatives: Negatives, settings: BetaMixture | GaussianMixture, common: Common) -> RuleVerdict:
    """P(true negative | Δ̂)·I(Δ̂) (methods 5, report eq. 46), categories by the discovered thresholds.

    P(true negative) is 1 − `Mixture.false_negative`, but at most the gap's own P(Δ > 0): I is as large below a gap of 0
    as above, and a document that beats the anchor is no true negative, whatever the mixture knows. Where one
    component suffices it is 1 − P(Δ < false_negative_gap), and categories are the bands'.
    Raises ConfigError without a mixture of the same kind in `common`.
    """
    mixture = common.mixture
    kind = "beta" if isinstance(settings, BetaMixture) else "gaussian"
    if mixture is None or mixture.kind != kind:
        given = "none is given" if mixture is None else f"a {mixture.kind} mixture is given"
        remedy = f"fit one on gaps of many queries (anmi_ray.mining.mixture.fit with the settings of {settings.rule})"
        raise ConfigError(f"{settings.rule} needs a fitted {kind} mixture, {given}", f"{PLACE}.weigh", remedy)
    gap = negatives.gap
    gap_se = negatives.gap_se
    if mixture.one_suffices:
        return RuleVerdict((1.0 - false_negative(gap, gap_se, common.config)) * information(gap))
    p_true = 1.0 - np.maximum(mixture.false_negative(gap), below(0.0, gap, gap_se))
    return RuleVerdict(p_true * information(gap), mixture.categories(gap))
