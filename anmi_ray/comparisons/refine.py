"""Which pairs to ask about once a model is trained: those of which it contradicts what is known.

A document's score is worth points of rating by one line for all queries, rating = β score + a constant of the query,
fitted by least squares; its error σ is what the line leaves of the ratings' variance less their own errors'. Two
documents are a disagreement where the line puts them in the other order than

| | what is known | z |
|---|---|---|
| anchors | that a known positive, else the top-rated document, is the best | (│m│ + max(g, 0)) / s |
| others | their ratings, beyond both errors: z > 1 | (│m│ + │g│) / s |

with the gap m that scores say, the gap g of the ratings (from the better one by what is known) and
s² = se² + se'² + 2 σ². Pairs of an anchor come first (zELO, arXiv 2509.12541, asks about those alone), of each kind
those of the largest z.

Letters: n documents of a query, P pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.comparisons.compare import rows
from anmi_ray.comparisons.graph import Edges
from anmi_ray.comparisons.rounds import among
from anmi_ray.core.arrays import Flags, Reals
from anmi_ray.core.identity import id_matrix, id_order
from anmi_ray.core.records import COMPARISON, by_query

DESIGN = "refined"
PAIRS = 10  # of a query at most, a fortieth of what a graph of degree 8 asks about 100 documents
_BEYOND = 1.0  # z above which ratings are contradicted


class ScoreLine(NamedTuple):
    """What scores say of ratings: points of a unit of score, and how wrong that is of a document, points (sd)."""

    slope: float
    error: float


class Scored(NamedTuple):
    """One query's documents that are rated and scored: uint8[n, 16] sorted, their ratings and errors in points, the
    model's scores, and which are known positives.
    """

    doc_ids: NDArray[np.uint8]
    rating: Reals
    std_err: Reals
    score: Reals
    positive: Flags


def scored(ratings: pa.Table, scores: pa.Table, candidates: pa.Table) -> Iterator[tuple[bytes, Scored]]:
    """(query, what is known of its documents) of a bucket's Rating, Run and Candidate tables, in order of query_id."""
    known = ratings.join(scores.select(["query_id", "doc_id", "score"]), ["query_id", "doc_id"], join_type="inner")
    known = known.join(candidates.select(["query_id", "doc_id", "is_positive"]), ["query_id", "doc_id"])
    for query, table in by_query(known):
        doc_ids = id_matrix(table["doc_id"])
        order = id_order(doc_ids)
        columns = (table[name].to_numpy()[order] for name in ("rating_elo", "std_err_elo", "score", "is_positive"))
        yield query, Scored(doc_ids[order], *columns)


def moments(queries: Iterator[tuple[bytes, Scored]]) -> Reals:
    """What `calibrated` needs, summed over queries: float64[5], to be added up over buckets.

    Documents less one a query; sums of squares and products of scores and ratings about their query's means; and of the
    ratings' squared errors.
    """
    total = np.zeros(5)
    for _, one in queries:
        x, y = one.score - one.score.mean(), one.rating - one.rating.mean()
        total += [len(x) - 1, x @ x, x @ y, y @ y, np.square(one.std_err).mean() * (len(x) - 1)]
    return total


def calibrated(total: Reals) -> ScoreLine:
    """The line of the module's text, from the sums of `moments`. Its slope is 0 where scores say nothing of ratings.

    >>> calibrated(np.array([4.0, 2.0, 200.0, 20_400.0, 0.0]))
    ScoreLine(slope=100.0, error=10.0)
    """
    count, xx, xy, yy, noise = total.tolist()
    slope = max(0.0, xy / xx) if xx > 0.0 else 0.0
    left = (yy - slope * xy - noise) / count if count else 0.0
    return ScoreLine(slope, float(np.sqrt(max(left, 0.0))))


def disagreements(known: Scored, asked: Edges, worth: ScoreLine, most: int = PAIRS) -> Edges:
    """At most `most` pairs int64[P, 2] (i < j) that are not in `asked`, in the order of the module's text.

    Of equal ones the pair that comes first by place comes first.
    """
    n = len(known.rating)
    i, j = np.triu_indices(n, 1)
    anchor = known.positive if known.positive.any() else known.rating == known.rating.max()
    by_anchor = anchor[i] != anchor[j]
    # from the better document to the other, by what is known
    sign = np.where(by_anchor, np.where(anchor[i], 1.0, -1.0), np.sign(known.rating[i] - known.rating[j]))
    gap = sign * (known.rating[i] - known.rating[j])
    said = sign * worth.slope * (known.score[i] - known.score[j])
    error = np.sqrt(np.square(known.std_err[i]) + np.square(known.std_err[j]) + 2.0 * worth.error**2)
    with np.errstate(divide="ignore", invalid="ignore"):  # an infinite error tells nothing, none at all tells apart
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
    """The Comparisons `before` and the disagreements as round `round_`, sorted by (query_id, doc_a, doc_b).

    Tables are of one bucket: Rating, Run of the model, Candidate. A query without scores or ratings gets no pair.
    """
    pairs_of = dict(by_query(before))
    asked: list[bytes] = []
    ends: list[NDArray[np.uint8]] = []
    for query, known in scored(ratings, scores, candidates):
        chosen = disagreements(known, among(known.doc_ids, pairs_of.get(query, COMPARISON.empty())), worth)
        asked += [query] * len(chosen)
        ends.append(known.doc_ids[chosen])
    found = np.concatenate([np.empty((0, 2, 16), np.uint8), *ends])
    first, second = ([row.tobytes() for row in found[:, end]] for end in (0, 1))
    table = pa.concat_tables([before, rows(asked, first, second, DESIGN, round_)])
    order = id_order(*(id_matrix(table[name]) for name in ("query_id", "doc_a", "doc_b")))
    return COMPARISON.check(table.take(pa.array(order)), "compare")
