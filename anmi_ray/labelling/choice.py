"""Which of a run's judged pairs people answer: half a plain random share, half those where their answers tell most.

The random share are the pairs of the smallest hashes, whatever their query: each has the same chance, and agreement
there estimates that over all pairs without bias. Of what is left a pair is drawn in proportion to what it is worth, by
Pareto sampling (Rosén 1997), whose chances are these within a percent or so:

    worth = between judges + between orders + near the bound, each in [0, 1]

A larger choice holds the random share of a smaller one, and most of the others. Everything is a pure function of ids
and seed, whatever the order of rows. Letters: P judged pairs, J judges, N chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.identity import uniforms
from anmi_ray.core.scale import normal_cdf

RANDOM = "random"
REASONS = ("judges", "orders", "bound")  # of the other half, as `PairWorth` has them
_LEAST = 1e-3  # worth of a pair about which nothing is known: it may be chosen where no other is left


@dataclass(frozen=True)
class PairWorth:
    """What is known of P pairs: ids uint8[P, 16], and float64[P] in [0, 1] each.

    judges: how far judges contradict each other; orders: how far a judge's answers in both orders do; bound: how open
    it is on which side of the bound of mining a document stands of its anchor.
    """

    ids: NDArray[np.uint8]
    judges: Reals
    orders: Reals
    bound: Reals

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def parts(self) -> Reals:
        """What pairs are worth by reason, float64[P, 3]."""
        return np.stack([self.judges, self.orders, self.bound], axis=1)


@dataclass(frozen=True)
class Chosen:
    """N chosen pairs: their row among the P, why, and with which probability.

    probability[N]: of a pair of the random share its chance to be in it; of another its chance to be drawn where that
    share is as it is. So the sum over the random share of y, and over the others of y / probability, estimates the sum
    over all pairs without bias. everyone[N]: whether all people answer it.
    """

    row: Ints
    why: tuple[str, ...]
    probability: Reals
    everyone: Flags


def disputes(p_a: Reals) -> tuple[Reals, Reals]:
    """(between judges, between orders) in [0, 1] of preferences float64[P, J, 2], NaN where a judge said nothing.

    Four times the variance between judges' means over their orders, and the mean difference of a judge's orders.

    >>> disputes(np.array([[[1.0, 1.0], [0.0, 0.0]], [[1.0, 0.0], [np.nan, np.nan]]]))
    (array([1., 0.]), array([0., 1.]))
    """
    answered = ~np.isnan(p_a)
    filled = np.where(answered, p_a, 0.0)
    orders = answered.sum(axis=2)
    mean = filled.sum(axis=2) / np.maximum(orders, 1)
    there = orders > 0
    judges = np.maximum(there.sum(axis=1), 1)
    centre = np.where(there, mean, 0.0).sum(axis=1) / judges
    spread = (np.where(there, mean - centre[:, None], 0.0) ** 2).sum(axis=1) / judges
    both = answered.all(axis=2)
    differs = np.where(both, np.abs(filled[..., 0] - filled[..., 1]), 0.0)
    return np.minimum(4.0 * spread, 1.0), differs.sum(axis=1) / np.maximum(both.sum(axis=1), 1)


def near_bound(gap: Reals, error: Reals, bound: float) -> Reals:
    """4 P (1 - P) in [0, 1], P the chance that a gap (Elo points, with its standard error) is below `bound`."""
    below = normal_cdf((bound - gap) / np.maximum(error, 1e-9))
    return 4.0 * below * (1.0 - below)


def choose(pairs: PairWorth, count: int, overlap: float, seed: int) -> Chosen:
    """Choose `count` pairs, or all where there are no more; the share `overlap` of them is for everyone."""
    total = len(pairs)
    order = np.argsort(uniforms(pairs.ids, "people", seed), kind="stable")
    if count >= total:  # nothing is left to chance, so all are a random share
        return Chosen(order, (RANDOM,) * total, np.ones(total), _everyone(pairs.ids[order], overlap, seed))
    share = -(-count // 2)
    left = order[share:]
    chance = inclusion(np.maximum(pairs.parts[left].sum(axis=1), _LEAST), count - share)
    picked = _pareto(chance, uniforms(pairs.ids[left], "people", "worth", seed), count - share)
    told = pairs.parts[left[picked]].argmax(axis=1)
    row = np.concatenate([order[:share], left[picked]])
    return Chosen(
        row=row,
        why=(*(RANDOM,) * share, *(REASONS[one] for one in told.tolist())),
        probability=np.concatenate([np.full(share, share / total), chance[picked]]),
        everyone=_everyone(pairs.ids[row], overlap, seed),
    )


def inclusion(worth: Reals, count: int) -> Reals:
    """Chances in proportion to `worth` (above 0), at most 1, that sum to `count`, which is at most their number."""
    chance = np.zeros(len(worth))
    certain = np.zeros(len(worth), np.bool_)
    while True:
        rest = count - int(certain.sum())
        some = worth[~certain]
        chance[certain] = 1.0
        chance[~certain] = rest * some / some.sum() if len(some) else 0.0
        above = chance > 1.0
        if not above.any():
            return chance
        certain |= above


def _pareto(chance: Reals, uniform: Reals, count: int) -> Ints:
    """`count` rows, each drawn with about its chance; those that are certain first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        rank = uniform / (1.0 - uniform) * (1.0 - chance) / chance
    return np.argsort(rank, kind="stable")[:count]


def _everyone(ids: NDArray[np.uint8], overlap: float, seed: int) -> Flags:
    """Which of the chosen all people answer: the share of them with the smallest hashes."""
    flags = np.zeros(len(ids), np.bool_)
    flags[np.argsort(uniforms(ids, "people", "everyone", seed), kind="stable")[: round(overlap * len(ids))]] = True
    return flags
