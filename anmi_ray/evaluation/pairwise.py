"""Held-out predictions of a pairwise judge as points of a triangle: folds, ranks, buckets and segments.

A prediction is a point (x, y) = (P_A, P_B), P_A that the first document is better, P_B that the second is; what is
missing to 1 is P(tie). The ensemble's score C is 0 where its judges prefer the first document, 1 where the second, and
its predicted mean is μ = P_B + P(tie)/2. Beside C there is how decided the ensemble is, |2C − 1|: 1 where all judges
agree, 0 where they tie or are evenly split. That is what E|C| stands for (C in [0, 1] is its own absolute value).

Two distances say what a point claims, and both are exact: to y = x − 1 it is |x − y − 1|/√2 = √2·μ, and to y = 1 − x it
is |1 − x − y|/√2 = P(tie)/√2 = (1 − E|C|)/√2. The second *falls* as E|C| grows.
Letters: P pairs, B buckets, S kinds of score.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import id_matrix

# Kinds of ensemble score, from all judges for the first document to all for the second. Three votes have seven means:
# 0 | 1/6, 1/3 | 1/2 | 2/3, 5/6 | 1.
KINDS = ("all for the first", "rather the first", "even", "rather the second", "all for the second")
# of |2C − 1|: up to the first it is even, from the second on consensus
_EVEN = 1 / 6
_ALL = 1.0


@dataclass(frozen=True)
class Pairs:
    """One model's predictions at one step: x = first_P, y = second_P, float[P] of the triangle; score_P in [0, 1].

    query_P numbers the queries 0..Q-1; rows are in order of their comparison_id, so that two models on the same pairs
    agree row by row. mended counts the two-head predictions with E|C| < |2 E[C] − 1|, which no distribution has: they
    stand on the nearest point of the triangle's side.
    """

    first_P: Reals
    second_P: Reals
    score_P: Reals
    query_P: Ints
    target: str = "ternary"
    mended: int = 0

    def __len__(self) -> int:
        return len(self.score_P)

    @property
    def tie_P(self) -> Reals:
        """P(tie)."""
        return np.maximum(1.0 - self.first_P - self.second_P, 0.0)

    @property
    def mean_P(self) -> Reals:
        """μ = E[C] = P_B + P(tie)/2, computed so that swapped documents give exactly 1 − μ where floats can."""
        return 0.5 + 0.5 * (self.second_P - self.first_P)

    @property
    def decided_P(self) -> Reals:
        """E|2C − 1| = P_A + P_B."""
        return np.minimum(self.first_P + self.second_P, 1.0)

    @property
    def queries(self) -> int:
        """How many queries the pairs are of."""
        return int(self.query_P.max()) + 1 if len(self) else 0

    @property
    def two_dimensional(self) -> bool:
        """Whether E|C| varies: it does not for a binary target."""
        return bool(len(self)) and float(np.ptp(self.decided_P)) > 1e-6


def read(table: pa.Table, model: str, step: int | None = None) -> Pairs:
    """The predictions of `model` at `step` (its last one by default) in a Prediction table.

    Raises DataError if there are none.
    """
    steps = steps_of(table, model)
    step = steps[-1] if step is None else step
    if step not in steps:
        known = ", ".join(map(str, steps))
        raise DataError(f"{model!r} has no predictions at step {step}; there are {known}", "predictions", "name one")
    rows = table.filter(pc.and_(pc.equal(table["model"], model), pc.equal(table["step"], step)))
    rows = rows.sort_by([("comparison_id", "ascending")])
    target = rows["target"][0].as_py()
    queries = np.unique(id_matrix(rows["query_id"]), axis=0, return_inverse=True)[1].reshape(-1)
    score = rows["score"].to_numpy()
    if target == "two-head":
        mean = rows["mean"].to_numpy()
        decided = rows["decided"].to_numpy()
        lean = 2 * mean - 1
        size = np.maximum(decided, np.abs(lean))
        mended = int(np.count_nonzero(size > decided + 1e-9))
        return Pairs((size - lean) / 2, (size + lean) / 2, score, queries, target, mended)
    return Pairs(rows["p_a"].to_numpy(), rows["p_b"].to_numpy(), score, queries, target)


def steps_of(table: pa.Table, model: str) -> list[int]:
    """The steps at which `model` predicted, ascending; DataError if it did not."""
    steps = sorted(pc.unique(table.filter(pc.equal(table["model"], model))["step"]).to_pylist())
    if not steps:
        known = ", ".join(sorted(pc.unique(table["model"]).to_pylist())) or "none"
        raise DataError(f"no predictions of {model!r}; there are {known}", "predictions", "name one of them")
    return steps


def same_pairs(table: pa.Table, model: str, step: int, other: str, other_step: int) -> None:
    """DataError unless both models predicted the same pairs at these steps: only then are they compared."""
    ids = [
        table.filter(pc.and_(pc.equal(table["model"], name), pc.equal(table["step"], at)))["comparison_id"]
        for name, at in ((model, step), (other, other_step))
    ]
    one, two = (set(column.to_pylist()) for column in ids)
    if one != two:
        raise DataError(
            f"{other!r} at step {other_step} and {model!r} at step {step} predicted different pairs: "
            f"{len(one & two):,} in common, {len(two - one):,} and {len(one - two):,} of one alone",
            "predictions",
            "let both predict all held-out pairs, or leave one out",
        )


def swapped(pairs: Pairs) -> Pairs:
    """The same predictions with the two documents of every pair exchanged."""
    return replace(pairs, first_P=pairs.second_P, second_P=pairs.first_P, score_P=1.0 - pairs.score_P)


def folded(pairs: Pairs) -> Pairs:
    """Points above y = x are reflected across it, their scores flipped: the first document is the one preferred."""
    over = pairs.second_P > pairs.first_P
    return replace(
        pairs,
        first_P=np.where(over, pairs.second_P, pairs.first_P),
        second_P=np.where(over, pairs.first_P, pairs.second_P),
        score_P=np.where(over, 1.0 - pairs.score_P, pairs.score_P),
    )


def kinds(score_P: Reals) -> Ints:
    """The kind of every score, int[P], an index of KINDS.

    >>> kinds(np.array([0, 1, 2, 3, 4, 5, 6]) / 6).tolist()
    [0, 1, 1, 2, 3, 3, 4]
    """
    lean = 2 * score_P - 1
    size = np.where(np.abs(lean) < _EVEN + 1e-9, 0, np.where(np.abs(lean) < _ALL - 1e-9, 1, 2))
    return (2 + np.sign(lean) * size).astype(np.int64)


def kind_shares(score_P: Reals) -> tuple[float, ...]:
    """The share of each kind among the scores; 0 of none."""
    return tuple((np.bincount(kinds(score_P), minlength=len(KINDS)) / max(len(score_P), 1)).tolist())


def radius(pairs: Pairs) -> Reals:
    """Distance of every point to (1, 0), where the first document wins for sure: [0, 1] once folded, else [0, √2]."""
    return np.hypot(1.0 - pairs.first_P, pairs.second_P)


def buckets(values_P: Reals, count: int) -> Ints:
    """The bucket of every value, int[P] in 0..count-1, ascending, of equal populations (to one); ties by row.

    >>> buckets(np.array([0.3, 0.1, 0.2, 0.9]), 2).tolist()
    [1, 0, 0, 1]
    """
    rank = np.empty(len(values_P), dtype=np.int64)
    rank[np.argsort(values_P, kind="stable")] = np.arange(len(values_P))
    return rank * count // max(len(values_P), 1)


def evenly(count: int, limit: int) -> Ints:
    """At most `limit` of the places 0..count-1, evenly chosen, the first and the last among them.

    >>> evenly(9, 3).tolist()
    [0, 4, 8]
    """
    return np.unique(np.linspace(0, count - 1, min(limit, count)).round().astype(np.int64))


def segments(pairs: Pairs, columns: int, rows: int) -> Ints:
    """Equal-population segments in both dimensions: E[C] in `columns`, and each by E|C| in `rows`; int[P].

    Numbered column by column: segment = column * rows + row. Populations differ by one at most.
    """
    column = buckets(pairs.mean_P, columns)
    found = np.empty(len(pairs), dtype=np.int64)
    for c in range(columns):
        inside = np.flatnonzero(column == c)
        found[inside] = c * rows + buckets(pairs.decided_P[inside], rows)
    return found


def shares(kind_P: Ints, bucket_P: Ints, count: int) -> Reals:
    """Of every bucket the share of each kind, float[B, S]; NaN in an empty bucket."""
    table = np.zeros((count, len(KINDS)))
    np.add.at(table, (bucket_P, kind_P), 1.0)
    total = table.sum(axis=1, keepdims=True)
    return np.where(total > 0, table / np.maximum(total, 1.0), np.nan)


@dataclass(frozen=True)
class Cumulative:
    """What the circle around (1, 0) holds as it grows: at each row the `radius`, the yield and the kinds' shares.

    rank[N] is the share of all pairs within radius[N] (the yield), kind[N, S] what those pairs' scores are.
    """

    rank: Reals
    radius: Reals
    kind: Reals


def cumulative(pairs: Pairs, rows: int = 200) -> Cumulative:
    """The cumulative distribution of scores by radius of the folded points, at about `rows` equally spaced ranks."""
    fold = folded(pairs)
    distance = radius(fold)
    order = np.argsort(distance, kind="stable")
    total = np.cumsum(np.eye(len(KINDS))[kinds(fold.score_P)[order]], axis=0)
    picked = evenly(len(pairs), rows)
    count = (picked + 1)[:, None]
    return Cumulative(count[:, 0] / len(pairs), distance[order][picked], total[picked] / count)


def within(pairs: Pairs, limit: float) -> tuple[int, tuple[float, ...]]:
    """How many folded points lie within `limit` of (1, 0), and the share of each kind among them."""
    fold = folded(pairs)
    inside = radius(fold) <= limit
    return int(inside.sum()), kind_shares(fold.score_P[inside])
