"""Mining rules held against each other on the same ratings: shares, weights by gap, overlap. Plain figures.

Every figure has a 95 % interval that takes queries as independent, documents of one query not. Letters: R rules, N
documents, P distinct (query, document) pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import scale
from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.identity import id_matrix, mix
from anmi_ray.core.records import find_rows
from anmi_ray.mining.anchors import codes

Z = 1.959963984540054  # 97.5 % quantile of the normal distribution


class Interval(NamedTuple):
    """A mean with its 95 % interval over queries, from n documents; None where it cannot be known."""

    mean: float | None
    low: float | None
    high: float | None
    n: int


NOTHING = Interval(None, None, None, 0)


class Overlaps(NamedTuple):
    """Of every two rules the mean Jaccard index over `queries`, with the ends of its interval; all [R, R]."""

    mean: Reals  # NaN where no query has a negative of either rule
    low: Reals  # NaN for fewer than two queries
    high: Reals
    queries: Ints


def chosen(examples: pa.Table) -> pa.Table:
    """The rated negatives with a weight above 0 in an Example table, a row each.

    Columns query_id, anchor_id, doc_id, weight, gap_elo, category.
    """
    lengths = pc.list_value_length(examples["doc_ids"]).to_numpy().astype(np.int64)
    owner = np.repeat(np.arange(examples.num_rows), lengths)
    first = np.cumsum(lengths) - lengths
    documents = pc.list_flatten(examples["doc_ids"])
    category, weight = (pc.list_flatten(examples[name]) for name in ("categories", "weights"))
    unrated = pc.is_in(category, value_set=pa.array(["anchor", "random"]))
    rows = np.flatnonzero(~unrated.to_numpy() & (weight.to_numpy() > 0))
    at = pa.array(rows)
    return pa.table(
        {
            "query_id": examples["query_id"].take(pa.array(owner[rows])),
            "anchor_id": documents.take(pa.array(first[owner[rows]])),
            "doc_id": documents.take(at),
            "weight": weight.take(at),
            "gap_elo": pc.list_flatten(examples["gaps"]).take(at),
            "category": category.take(at),
        }
    )


def true_gaps(pairs: pa.Table, truth: pa.Table) -> Reals:
    """For each (query_id, anchor_id, doc_id) the latent relevance of anchor minus document in points, NaN: not known.

    `truth` is a Truth table; it is in probits whatever model was fitted.
    """
    latent = np.append(truth["latent"].to_numpy().astype(np.float64), np.nan)  # row -1 is not there
    anchor, document = (
        latent[find_rows(truth, {"query_id": pairs["query_id"], "doc_id": pairs[name]})]
        for name in ("anchor_id", "doc_id")
    )
    return scale.to_elo(anchor - document, "thurstone")


def clustered_mean(value: Reals, query: Ints, weight: Reals | None = None) -> Interval:
    """Weighted mean of `value` [N]; Var = G/(G − 1) Σ_q (Σ w(v − mean))² / (Σ w)² over G queries (linearised ratio).

    >>> clustered_mean(np.array([1.0, 3.0]), np.array([0, 1])).mean
    2.0
    """
    weight = np.ones(len(value)) if weight is None else weight
    if not len(value) or weight.sum() <= 0:
        return NOTHING
    mean, error, _ = _linearised(value, query, weight)
    if error is None:
        return Interval(mean, None, None, len(value))
    return Interval(mean, mean - Z * error, mean + Z * error, len(value))


def clustered_share(flag: Flags, query: Ints, weight: Reals | None = None) -> Interval:
    """Weighted share of `flag` [N], with Wilson's interval at the effective sample size p(1 − p)/Var.

    (Franco et al. 2019, for shares in clustered samples.) That size is at most Kish's (Σ w)²/Σ w²; where no or all
    flags are set it is that of whole queries, so that none among few queries is not taken for none at all.
    """
    weight = np.ones(len(flag)) if weight is None else weight
    if not len(flag) or weight.sum() <= 0:
        return NOTHING
    mean, error, by_query = _linearised(flag.astype(np.float64), query, weight)
    if error is None:
        return Interval(mean, None, None, len(flag))
    size = _kish(by_query)
    if 0.0 < mean < 1.0 and error > 0.0:
        size = min(mean * (1.0 - mean) / error**2, _kish(weight))
    centre = (mean + Z**2 / (2.0 * size)) / (1.0 + Z**2 / size)
    half = Z * np.sqrt(mean * (1.0 - mean) / size + Z**2 / (4.0 * size**2)) / (1.0 + Z**2 / size)
    low = max(0.0, min(float(centre - half), mean))
    high = min(1.0, max(float(centre + half), mean))
    return Interval(mean, low, high, len(flag))


def _kish(weight: Reals) -> float:
    return float(weight.sum() ** 2 / (weight**2).sum())


def _linearised(value: Reals, query: Ints, weight: Reals) -> tuple[float, float | None, Reals]:
    """Mean, its standard error (None for a single query), and the weight of every query."""
    _, code = np.unique(query, return_inverse=True)
    by_query = np.bincount(code, weight).astype(np.float64)
    mean = float(np.average(value, weights=weight))
    groups = len(by_query)
    if groups < 2:
        return mean, None, by_query
    residual = np.bincount(code, weight * (value - mean))
    return mean, float(np.sqrt(groups / (groups - 1) * (residual**2).sum()) / weight.sum()), by_query


def binned(at: Reals, value: Reals, query: Ints, edges: Reals) -> list[Interval]:
    """The clustered mean of `value` for `at` in each bin [edge, next edge); what lies outside is in none.

    >>> found = binned(np.array([5.0, 15, 16]), np.array([0.0, 1, 0]), np.arange(3), np.array([0.0, 10, 20]))
    >>> [one.mean for one in found]
    [0.0, 0.5]
    """
    bin_of = np.searchsorted(edges, at, side="right") - 1
    rows = (np.flatnonzero(bin_of == number) for number in range(len(edges) - 1))
    return [clustered_mean(value[own], query[own]) for own in rows]


def gap_edges(gap: Reals) -> Reals:
    """Edges of gap bins that hold 98 % of the gaps and 0 to 700: at most 40 bins of 25, 50, 100, … points."""
    low, high = np.quantile(gap, [0.01, 0.99]) if len(gap) else (0.0, 0.0)
    low = min(float(low), 0.0)
    high = max(float(high), 700.0)
    width = 25.0
    while np.ceil(high / width) - np.floor(low / width) > 40:
        width *= 2.0
    return np.arange(np.floor(low / width), np.ceil(high / width) + 1) * width


def per_query(value: Reals, weight: Reals, query: Ints, queries: int) -> Reals:
    """Weighted mean of `value` of each of `queries`, NaN for one without weight.

    >>> per_query(np.array([1.0, 0.0, 1.0]), np.array([1.0, 3.0, 1.0]), np.array([0, 0, 2]), 3).tolist()
    [0.25, nan, 1.0]
    """
    total = np.bincount(query, weight, minlength=queries)
    mean = np.full(queries, np.nan)
    np.divide(np.bincount(query, weight * value, minlength=queries), total, out=mean, where=total > 0)
    return mean


def memberships(tables: Sequence[pa.Table], queries: pa.Array) -> tuple[Flags, Ints]:
    """Which rule took which (query_id, doc_id): flags [R, P] over all pairs that were taken, and their queries [P]."""
    keys = [mix(id_matrix(table["query_id"]), id_matrix(table["doc_id"])) for table in tables]
    pairs, first = np.unique(np.concatenate([*keys, np.zeros(0, dtype=np.uint64)]), return_index=True)
    code = np.concatenate([*(codes(table["query_id"], queries) for table in tables), np.zeros(0, dtype=np.int64)])
    return np.stack([np.isin(pairs, key) for key in keys]), code[first]


def overlap(members: Flags, query: Ints) -> Overlaps:
    """Mean of |A ∩ B| / |A ∪ B| (Jaccard) for every two rules, over queries of which either took something."""
    rules = len(members)
    queries = int(query.max()) + 1 if len(query) else 0
    taken = np.array([np.bincount(query, row, minlength=queries) for row in members])
    mean, low, high = (np.full((rules, rules), np.nan) for _ in range(3))
    count = np.zeros((rules, rules), dtype=np.int64)
    for i in range(rules):
        for j in range(i, rules):
            common = np.bincount(query, members[i] & members[j], minlength=queries)
            union = taken[i] + taken[j] - common
            index = common[union > 0] / union[union > 0]
            jaccard = clustered_mean(index, np.arange(len(index)))
            count[i, j] = count[j, i] = jaccard.n
            for matrix, value in ((mean, jaccard.mean), (low, jaccard.low), (high, jaccard.high)):
                if value is not None:
                    matrix[i, j] = matrix[j, i] = min(max(value, 0.0), 1.0)
    return Overlaps(mean, low, high, count)


def pairs_in(table: pa.Table, among: pa.Table, keys: Sequence[str] = ("query_id", "doc_id")) -> Flags:
    """Which rows of `table` stand in `among`, by `keys`; a tuple stands there once at most."""
    return find_rows(among, {name: table[name] for name in keys}) >= 0


def hidden_positives(qrels: pa.Table, gaps: pa.Table) -> pa.Table:
    """query_id, doc_id of rated documents that `qrels` call relevant (grade above 0) and that anchor no gap.

    Known positives anchor; so these were hidden from rating and mining.
    """
    keys = ["query_id", "doc_id"]
    relevant = qrels.filter(pc.greater(qrels["grade"], 0)).select(keys)
    rated = gaps.select(keys).group_by(keys).aggregate([])
    anchors = gaps.select(["query_id", "anchor_id"]).group_by(["query_id", "anchor_id"]).aggregate([])
    anchoring = pairs_in(relevant, anchors.rename_columns(keys))
    return relevant.filter(pa.array(pairs_in(relevant, rated) & ~anchoring))
