"""Candidate negatives of one bucket as flat arrays, and the signatures of mining rules.

Letters: E examples (one per query and anchor), N documents with a gap to an example's anchor, without the anchor.
Rules compose as allow -> weigh -> sample; each is a function of `Negatives`, its own settings and `Common`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.mine import MineConfig
from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.mining.mixture import Mixture


@dataclass(frozen=True)
class Negatives:
    """N rated documents paired with an anchor, sorted by (example, doc_id); NaN means unknown."""

    example: Ints  # [N], 0..E-1
    draw_ids: NDArray[np.uint8]  # [N, 16] identity of (example, document), to draw random numbers from
    gap: Reals  # [N] points: anchor minus document, or the least over the query's positives (MineConfig.gap)
    gap_se: Reals  # [N] points
    # [N] another known or likely positive of the query, or a copy of one: never a negative
    is_positive: Flags
    anchor_rating: Reals  # [N] points
    spread: Reals  # [N] points: robust sd of the query's ratings, floored
    rank: Reals  # [N] the retriever's fused rank, from 1
    score: Reals  # [N] the dense retriever's similarity to the query
    anchor_score: Reals  # [N] the anchor's similarity to the query
    direct: Reals  # [N] judged preference for the anchor over the document, 0 to 1, for validation
    relevance: Reals  # [N] P(relevant) of a pointwise model
    was_borderline: Flags | None = None  # [N] before the validation round; None without such a round


@dataclass(frozen=True)
class Common:
    """Settings and inputs that all rules share."""

    config: MineConfig
    seed: int
    mixture: Mixture | None = None


@dataclass(frozen=True)
class RuleVerdict:
    """A rule's weights and categories of N documents.

    weight: in [0, 1]. An allow rule returns 0 (rejected), NaN (left to later rules) or a final weight.
    category: the rule's own, or None for the band of the gap.
    """

    weight: Reals
    category: Ints | None = None  # index into CATEGORIES


# Elo points; lower bound on the spread of a query's ratings, which serves as a unit
LEAST_SD = 10.0
S = TypeVar("S", contravariant=True)


class Rule(Protocol[S]):
    """An allow or a weigh rule."""

    def __call__(self, negatives: Negatives, settings: S, common: Common, /) -> RuleVerdict: ...


class Sample(Protocol[S]):
    """A sample rule: priorities of documents with positive weight, highest first."""

    def __call__(self, negatives: Negatives, weights: Reals, settings: S, common: Common, /) -> Reals: ...


def grouped_quantiles(group: Ints, value: Reals, groups: int, qs: tuple[float, ...]) -> Reals:
    """Return quantiles of each group's values, [len(qs), groups], linearly interpolated; NaN for empty groups.

    >>> grouped_quantiles(np.array([0, 0, 0, 2]), np.array([3.0, 1.0, 2.0, 7.0]), 3, (0.25,)).tolist()
    [[1.5, nan, 7.0]]
    """
    count = np.bincount(group, minlength=groups)
    start = np.concatenate([[0], np.cumsum(count)])[:groups]
    ordered = value[np.lexsort((value, group))]
    quantile = np.full((len(qs), groups), np.nan)
    some = count > 0
    for row, q in zip(quantile, qs, strict=True):
        place = q * (count[some] - 1)
        low = np.floor(place).astype(np.int64)
        below = ordered[start[some] + low]
        above = ordered[start[some] + np.minimum(low + 1, count[some] - 1)]
        row[some] = below + (place - low) * (above - below)
    return quantile
