"""Which of the weighted negatives an example takes: a priority per document, the largest first."""

from __future__ import annotations

from typing import Any

import numpy as np

from anmi_ray.config.rules import Closed, RankedSample, SimANS, Top, UniformSample, Weighted
from anmi_ray.core.arrays import Reals, rank_within
from anmi_ray.core.identity import uniforms
from anmi_ray.mining.negatives import Common, Negatives, Sample

_UNIT = 100.0  # points of one unit of SimANS' gap: a and b are then of the size that the paper has them


def top(_negatives: Negatives, weights: Reals, _settings: Top, _common: Common) -> Reals:
    """The weight itself: the largest first (ties go to the smaller gap)."""
    return weights


def weighted(negatives: Negatives, weights: Reals, _settings: Weighted, common: Common) -> Reals:
    """log w + Gumbel noise hashed from (example, document): the top k are k draws by weight without replacement.

    (Gumbel top-k; Efraimidis & Spirakis 2006.)
    """
    return np.log(np.maximum(weights, np.finfo(np.float64).tiny)) + _gumbel(negatives, common)


def uniform(negatives: Negatives, _weights: Reals, _settings: UniformSample, common: Common) -> Reals:
    """Noise alone: k draws with equal chances, without replacement."""
    return _gumbel(negatives, common)


def ranked(negatives: Negatives, _weights: Reals, _settings: RankedSample, _common: Common) -> Reals:
    """The retriever's fused rank, the first first; what it did not retrieve comes last."""
    return np.where(np.isnan(negatives.rank), -np.inf, -negatives.rank)


def simans(negatives: Negatives, _weights: Reals, settings: SimANS, common: Common) -> Reals:
    """k draws without replacement with chances p_i ∝ exp(−a (x_i − b)²), x = Δ/100 (SimANS, Zhou et al. 2022, eq. 2).

    The rank form is exp(−a |r_i − b r⁺|), r the rank by rating in the query and r⁺ the anchor's, both from 1. As a
    grows the draws become the nearest to the target.
    """
    if settings.form == "gap":
        log_chance = -settings.a * (negatives.gap / _UNIT - settings.b) ** 2
    else:
        better = negatives.gap < 0
        before = np.bincount(negatives.example, better)[negatives.example] if len(better) else np.zeros(0)
        rank = 1 + rank_within(negatives.example, negatives.gap) + ~better  # the anchor is between
        log_chance = -settings.a * np.abs(rank - settings.b * (1 + before))
    return log_chance + _gumbel(negatives, common)


def closed(negatives: Negatives, _weights: Reals, settings: Closed, _common: Common) -> Reals:
    """Nearness to 200 (1 + 2ρ)(σ_q/σ_ref) points at ρ = .15 (report, 8.3: "principled adaptation")."""
    target = 260.0 * negatives.spread / settings.reference_sd
    return -np.abs(negatives.gap - target)


def _gumbel(negatives: Negatives, common: Common) -> Reals:
    return -np.log(-np.log(uniforms(negatives.draw_ids, "mine", common.seed, "gumbel")))


SAMPLE: dict[str, Sample[Any]] = {
    "top": top,
    "weighted": weighted,
    "uniform": uniform,
    "ranked": ranked,
    "simans": simans,
    "closed": closed,
}
