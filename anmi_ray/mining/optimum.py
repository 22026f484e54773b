"""What a negative teaches, its information, against what a false negative costs.

Theorem 12: information less that cost, and the gap at which it is largest; or, by a mixture of gaps, P(true negative)
times information.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy import special

from anmi_ray.config.rules import BetaMixture, GaussianMixture, Optimum
from anmi_ray.core.arrays import Reals
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.scale import ELO_PER_PROBIT, win_probability
from anmi_ray.mining.categories import PLACE
from anmi_ray.mining.negatives import Common, Negatives, Rule, RuleVerdict
from anmi_ray.mining.posterior import below, false_negative

ZONE = (150.0, 300.0)  # points: where Theorem 12 expects the optimum
COSTS = (1e-6, 1e12)  # bits: costs between which one is looked for
_GOLDEN = (1.0 + math.sqrt(5.0)) / 2.0
# points: information is below 1e-30 bits beyond
_REACH = 12.0 * ELO_PER_PROBIT
_GRID = 400


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


def best_gap(cost: ArrayLike, gap_se: ArrayLike, false_gap: float = 0.0) -> Reals:
    """Δ* = argmax_Δ I(Δ) − λ·P(Δ_true < false_gap | Δ), points (report, Theorem 12), for costs λ in bits.

    `cost` and `gap_se` (points) broadcast. 0 without a cost; infinity where no gap is worth its danger: with errors
    above 277 points (a probit) information fades faster than danger does. Never below 0: there both only get worse.
    With an error of 140 points, costs of a quarter and of 100 bits:

    >>> best_gap([0.25, 2.0, 100.0], 140.0).round().tolist()
    [56.0, 207.0, 450.0]
    """
    cost, gap_se = np.broadcast_arrays(np.asarray(cost, dtype=np.float64), np.asarray(gap_se, dtype=np.float64))
    shape = cost.shape
    cost = cost.ravel()[:, None]
    gap_se = gap_se.ravel()[:, None]

    def worth(gap: Reals) -> Reals:
        return information(gap) - cost * below(false_gap, gap, gap_se)

    step = (_REACH + max(false_gap, 0.0)) / _GRID
    grid = np.append(np.arange(_GRID + 1) * step, max(false_gap, 0.0))[None, :]
    top = np.take_along_axis(grid, worth(grid).argmax(axis=1)[:, None], axis=1)
    low = np.maximum(top - step, 0.0)
    high = top + step
    for _ in range(40):  # a golden section each: to 1e-7 points
        near = high - (high - low) / _GOLDEN
        far = low + (high - low) / _GOLDEN
        left = worth(near) >= worth(far)
        low = np.where(left, low, near)
        high = np.where(left, far, high)
    best = (low + high) / 2.0
    best = np.where(worth(top) > worth(best), top, best)
    return np.where(worth(best) > 0.0, best, np.inf)[:, 0].reshape(shape)


def zone_costs(gap_se: ArrayLike, zone: tuple[float, float] = ZONE, false_gap: float = 0.0) -> Reals:
    """The costs λ between which `best_gap` lies in the zone, bits, float64[..., 2]; NaN where no cost has it there.

    The optimum never falls as λ grows, so bisection finds where it reaches an edge: where it does so without a jump,
    λ = −I'(Δ)·se/φ((Δ − false_gap)/se) there. Infinity: no cost in COSTS takes it that far.

    >>> zone_costs(140.0).round(2).tolist()
    [0.98, 7.33]
    """
    gap_se = np.asarray(gap_se, dtype=np.float64)
    ends = np.stack([_reaching(edge, gap_se, false_gap) for edge in zone], axis=-1)
    none = np.isinf(ends[..., :1]) | (ends[..., 1:] <= ends[..., :1] * (1.0 + 1e-9))
    return np.where(none, np.nan, ends)


def _reaching(gap: float, gap_se: Reals, false_gap: float) -> Reals:
    """The least cost in COSTS whose best gap is at least `gap`, infinity if none is."""
    low, high = (np.full(gap_se.shape, math.log(cost)) for cost in COSTS)
    reached = best_gap(np.exp(high), gap_se, false_gap) >= gap
    for _ in range(45):
        middle = (low + high) / 2.0
        enough = best_gap(np.exp(middle), gap_se, false_gap) >= gap
        low = np.where(enough, low, middle)
        high = np.where(enough, middle, high)
    return np.where(reached, np.exp(high), np.inf)


WEIGH: dict[str, Rule[Any]] = {"beta-mixture": by_mixture, "gaussian-mixture": by_mixture, "optimum": optimum}
