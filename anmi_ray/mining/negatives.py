"""The shared view of mining: one bucket's possible negatives as flat arrays, and the signatures of rules over them.

Letters: E examples (one per query and anchor), N documents with a gap to an example's anchor (the anchor apart).
Rules compose as allow -> weigh -> sample, each a function of `Negatives`, its own settings and what all share.
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
    """N rated documents beside an anchor, sorted by (example, doc_id); NaN where something is not known."""

    example: Ints  # [N], 0..E-1
    draw_ids: NDArray[np.uint8]  # [N, 16] identity of (example, document), to draw random numbers from
    gap: Reals  # [N] points: anchor minus document, or the least over the query's positives (MineConfig.gap)
    gap_se: Reals  # [N] points
    # [N] another known positive of the query, a document likelier than not to be one, or a copy: never a negative
    is_positive: Flags
    anchor_rating: Reals  # [N] points
    spread: Reals  # [N] points: robust sd of the query's ratings, floored
    rank: Reals  # [N] the retriever's fused rank, from 1
    score: Reals  # [N] the dense retriever's similarity to the query
    anchor_score: Reals  # [N] that of the anchor
    direct: Reals  # [N] judged preference for the anchor over the document, 0 to 1, for validation
    relevance: Reals  # [N] P(relevant) of a pointwise model
    was_borderline: Flags | None = None  # [N] by the fit before the validation round; None: there was no such round


@dataclass(frozen=True)
class Common:
    """What rules share besides their own settings."""

    config: MineConfig
    seed: int
    mixture: Mixture | None = None


@dataclass(frozen=True)
class RuleVerdict:
    """What a rule says of N documents.

    Weights lie in [0, 1]. An allow rule says 0 (refused), NaN (the weight is others' to say), or a weight that no
    later rule changes. Categories are a rule's own, or None: the band of the gap.
    """

    weight: Reals
    category: Ints | None = None  # index into CATEGORIES


# points: a query whose ratings spread less is treated as if they spread so much, or units would blow up
LEAST_SD = 10.0
S = TypeVar("S", contravariant=True)


class Rule(Protocol[S]):
    """An allow or a weigh rule."""

    def __call__(self, negatives: Negatives, settings: S, common: Common, /) -> RuleVerdict: ...


class Sample(Protocol[S]):
    """A sample rule: priorities of the documents with weight, the largest are taken first."""

    def __call__(self, negatives: Negatives, weights: Reals, settings: S, common: Common, /) -> Reals: ...


def grouped_quantiles(group: Ints, value: Reals, groups: int, qs: tuple[float, ...]) -> Reals:
    """The quantiles of each group's values, [len(qs), groups], linear between order statistics; NaN for empty groups.

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
