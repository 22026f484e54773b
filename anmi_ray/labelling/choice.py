"""Which of a run's judged pairs people are asked about: half a plain random share, half where their answers tell most.

The random share is drawn systematically with one random start (Madow 1949) over pairs in an order of queries by hash:
every pair has the same chance, and queries get their share of it. Agreement there estimates that over all pairs without
bias. Of what is left the other half is drawn systematically too, a pair in proportion to what it is worth, at most 1:

    worth = between judges + between orders + near the bound, each in [0, 1]

Everything is a pure function of ids and seed, whatever the order of rows. Letters: P judged pairs, J judges, N chosen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.identity import id_order, rng, uniforms
from anmi_ray.core.scale import normal_cdf

RANDOM = "random"
REASONS = ("judges", "orders", "bound")  # of the other half, as `Worth` has them
_LEAST = 1e-3  # worth of a pair about which nothing is known: it may be chosen where no other is left


@dataclass(frozen=True)
class Worth:
    """What is known of P pairs: ids and their queries' uint8[P, 16]; the rest float64[P] in [0, 1].

    judges: how far judges contradict each other; orders: how far a judge's answers in both orders do; bound: how open
    it is on which side of the bound of mining a document stands of its anchor.
    """

    ids: NDArray[np.uint8]
    queries: NDArray[np.uint8]
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


def choose(pairs: Worth, count: int, overlap: float, seed: int) -> Chosen:
    """Choose `count` pairs, or all where there are no more; the share `overlap` of them is for everyone."""
    total = len(pairs)
    if count >= total:  # nothing is left to chance, so all are a random share
        order = _order(pairs, np.arange(total), seed)
        return Chosen(order, (RANDOM,) * total, np.ones(total), _everyone(total, overlap, seed))
    share = -(-count // 2)
    order = _order(pairs, np.arange(total), seed)
    start = rng("people", seed, total).random()
    drawn = order[_every(total, share, start)]
    left = np.setdiff1d(order, drawn, assume_unique=True)
    left = left[np.argsort(uniforms(pairs.ids[left], "people", "worth", seed), kind="stable")]
    worth = np.maximum(pairs.parts[left].sum(axis=1), _LEAST)
    chance = inclusion(worth, count - share)
    picked = _systematic(chance, count - share, rng("people", "worth", seed, total).random())
    told = pairs.parts[left[picked]].argmax(axis=1)
    why = (*(RANDOM,) * share, *(REASONS[one] for one in told.tolist()))
    probability = np.concatenate([np.full(share, share / total), chance[picked]])
    row = np.concatenate([drawn, left[picked]])
    return Chosen(row, why, probability, _everyone(count, overlap, seed))


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


def _order(pairs: Worth, rows: Ints, seed: int) -> Ints:
    """Rows by their query and then by the pair, both by hash."""
    by_id = rows[id_order(pairs.ids[rows])]
    query = uniforms(pairs.queries[by_id], "people", "query", seed)
    pair = uniforms(pairs.ids[by_id], "people", "pair", seed)
    return by_id[np.lexsort((pair, query))]


def _every(total: int, count: int, start: float) -> Ints:
    """`count` of 0..total-1 at equal distances from a start in [0, 1); all different, each as likely as another."""
    return np.minimum(np.floor((np.arange(count) + start) * (total / max(count, 1))), total - 1).astype(np.int64)


def _systematic(chance: Reals, count: int, start: float) -> Ints:
    """`count` rows, each drawn with its chance; these sum to `count`."""
    certain = np.flatnonzero(chance >= 1.0 - 1e-12)
    rest = np.flatnonzero(chance < 1.0 - 1e-12)
    wanted = count - len(certain)
    if not wanted:
        return certain
    ends = np.cumsum(chance[rest])
    ends *= wanted / ends[-1]
    picked = np.searchsorted(ends, np.arange(wanted) + start, side="right")
    return np.concatenate([certain, rest[np.minimum(picked, len(rest) - 1)]])


def _everyone(count: int, overlap: float, seed: int) -> Flags:
    """Which of the chosen all people answer: as many of the random share as of the others, in proportion."""
    flags = np.zeros(count, np.bool_)
    flags[_every(count, round(overlap * count), rng("people", "everyone", seed).random())] = True
    return flags
