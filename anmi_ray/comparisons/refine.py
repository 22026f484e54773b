"""Choose the pairs to judge after a model is trained: those on which it contradicts labels or ratings.

Scores are converted to ratings by one line for all queries, rating = β score + a constant per query, fitted by least
squares; its error σ² is the residual variance minus that of the ratings' own errors. Two documents are a disagreement
if the line orders them differently from

| | reference | z |
|---|---|---|
| anchors | a known positive, else the top-rated document, is the best | (│m│ + max(g, 0)) / s |
| others | their ratings, if z > 1 | (│m│ + │g│) / s |

with the gap m by scores, the gap g by ratings (from the better document by the reference) and s² = se² + se'² + 2 σ².
Pairs with an anchor come first (zELO, arXiv 2509.12541, uses only those), each kind by descending z.
Letters: n documents of a query, P pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.comparisons.adaptive import among
from anmi_ray.comparisons.compare import extended
from anmi_ray.comparisons.graph import Edges
from anmi_ray.core.arrays import Flags, Reals
from anmi_ray.core.identity import id_matrix, id_order
from anmi_ray.core.records import COMPARISON, by_query

DESIGN = "refined"
PAIRS = 10  # at most per query: a fortieth of a graph of degree 8 over 100 documents
_BEYOND = 1.0  # z above which a model contradicts ratings


class ScoreLine(NamedTuple):
    """The line from scores to ratings: points per unit of score, and the error of a document in points (sd)."""

    slope: float
    error: float


class Scored(NamedTuple):
    """A query's rated and scored documents.

    doc_ids: uint8[n, 16], sorted.
    rating, std_err: points.
    score: the model's.
    positive: whether a document is a known positive.
    """

    doc_ids: NDArray[np.uint8]
    rating: Reals
    std_err: Reals
    score: Reals
    positive: Flags


def scored(ratings: pa.Table, scores: pa.Table, candidates: pa.Table) -> Iterator[tuple[bytes, Scored]]:
    """Yield (query, its documents) from a bucket's Rating, Run and Candidate tables, in order of query_id."""
    known = ratings.join(scores.select(["query_id", "doc_id", "score"]), ["query_id", "doc_id"], join_type="inner")
    known = known.join(candidates.select(["query_id", "doc_id", "is_positive"]), ["query_id", "doc_id"])
    for query, table in by_query(known):
        doc_ids = id_matrix(table["doc_id"])
        order = id_order(doc_ids)
        columns = (table[name].to_numpy()[order] for name in ("rating_elo", "std_err_elo", "score", "is_positive"))
        yield query, Scored(doc_ids[order], *columns)


def moments(queries: Iterator[tuple[bytes, Scored]]) -> Reals:
    """Return the sums over queries that `calibrated` needs, float64[5], to be added over buckets.

    The number of documents minus one per query; centered sums of squares and products of scores and ratings; and the
    sum of the ratings' squared errors.
    """
    total = np.zeros(5)
    for _, one in queries:
        x, y = one.score - one.score.mean(), one.rating - one.rating.mean()
        total += [len(x) - 1, x @ x, x @ y, y @ y, np.square(one.std_err).mean() * (len(x) - 1)]
    return total


def calibrated(total: Reals) -> ScoreLine:
    """Fit the line of the module docstring to the sums of `moments`; its slope is at least 0.

    >>> calibrated(np.array([4.0, 2.0, 200.0, 20_400.0, 0.0]))
    ScoreLine(slope=100.0, error=10.0)
    """
    count, xx, xy, yy, noise = total.tolist()
    slope = max(0.0, xy / xx) if xx > 0.0 else 0.0
    left = (yy - slope * xy - noise) / count if count else 0.0
    return ScoreLine(slope, float(np.sqrt(max(left, 0.0))))


def disagreements(known: Scored, asked: Edges, worth: ScoreLine, most: int = PAIRS) -> Edges:
    """Return at most `most` pairs int64[P, 2] (i < j) not in `asked`, in the order of the module docstring.

    Ties go to the smaller indices.
    """
    n = len(known.rating)
    i, j = np.triu_indices(n, 1)
    anchor = known.positive if known.positive.any() else known.rating == known.rating.max()
    by_anchor = anchor[i] != anchor[j]
    # from the better document to the other, by the reference
    sign = np.where(by_anchor, np.where(anchor[i], 1.0, -1.0), np.sign(known.rating[i] - known.rating[j]))
    gap = sign * (known.rating[i] - known.rating[j])
    said = sign * worth.slope * (known.score[i] - known.score[j])
    error = np.sqrt(np.square(known.std_err[i]) + np.square(known.std_err[j]) + 2.0 * worth.error**2)
    with np.errstate(divide="ignore", invalid="ignore"):  # errors may be infinite or 0
        z = (np.maximum(gap, 0.0) - said) / error
    free = np.ones((n, n), np.bool_)
    free[asked[:, 0], asked[:, 1]] = False
    free &= free.T
    wanted = free[i, j] & (said < 0.0) & (by_anchor | (z > _BEYOND)) & ~np.isnan(z)
    at = np.flatnonzero(wanted)
    at = at[np.lexsort((at, -z[at], ~by_anchor[at]))][:most]
    return np.stack([i[at], j[at]], axis=1).astype(np.int64)


def refined(
    before: pa.Table, ratings: pa.Table, scores: pa.Table, candidates: pa.Table, worth: ScoreLine, round_: int
) -> pa.Table:
    """Return the Comparisons `before` and the disagreements as round `round_`, sorted by (query_id, doc_a, doc_b).

    Tables are of one bucket: Rating, Run of the model, Candidate. Queries without scores or ratings have no pairs.
    """
    pairs_of = dict(by_query(before))
    added: list[tuple[bytes, NDArray[np.uint8]]] = []
    for query, known in scored(ratings, scores, candidates):
        chosen = disagreements(known, among(known.doc_ids, pairs_of.get(query, COMPARISON.empty())), worth)
        added.append((query, known.doc_ids[chosen]))
    return extended(before, added, DESIGN, round_)
