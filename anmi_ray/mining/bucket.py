"""Inputs of the mine stage for one bucket as arrays: C candidates of Q queries, and the pool of N rated documents."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.arrays import Flags, Ints, Reals
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import find_rows
from anmi_ray.mining.anchors import POSSIBLE, Anchors, codes
from anmi_ray.mining.categories import PLACE
from anmi_ray.mining.negatives import LEAST_SD, Negatives, grouped_quantiles

AGAIN = "recompute the rate stage from these candidates"
_CANDIDATE = ["query_id", "doc_id", "source", "is_positive", "rank", "similarity"]


@dataclass(frozen=True)
class RatedBucket:
    """Candidates of rated queries with their ratings, and the moments of each query's ratings (Elo points)."""

    candidates: pa.Table  # sorted by (query_id, doc_id)
    queries: pa.Array  # [Q]
    query: Ints  # [C]
    is_positive: Flags  # [C] known positives, including any withheld from rating
    probability: Reals  # [C] P(relevant), whether or not judges were asked; 0 where unknown
    is_random: Flags  # [C]
    rating: Reals  # [C] points, NaN where not rated
    error: Reals  # [C] standard error of the rating, points, NaN where not rated
    mean: Reals  # [Q]
    sd: Reals  # [Q]
    spread: Reals  # [Q] robust sd (interquartile range / 1.349), floored
    rank: Reals  # [C] fused rank, NaN where not retrieved
    score: Reals  # [C] similarity to the query
    text: Ints  # [C] text number; copies within a query share it


@dataclass(frozen=True)
class Pool:
    """The E anchors and N other rated documents, as rows of the candidates, with gaps to their own anchor."""

    is_copy: Flags  # [C] relevant, or a copy of a relevant document: never a negative

    anchor: Ints  # [E] row in the candidates
    doc: Ints  # [N] row in the candidates
    gap: Reals  # [N] to the example's own anchor
    gap_se: Reals  # [N]
    negatives: Negatives


def read(
    ratings: pa.Table, gaps: pa.Table, candidates: pa.Table, config: MineConfig, confirmed: pa.Table | None = None
) -> RatedBucket:
    """Join ratings to candidates.

    `confirmed` as in `compose.RuleInputs`. Candidates with the same `text_key`, if that column exists, are copies.
    Raises DataError on rows without a candidate.
    """
    rated_queries = pc.is_in(candidates["query_id"], value_set=pc.unique(ratings["query_id"]))
    key = "text_key" if "text_key" in candidates.column_names else "doc_id"
    candidates = candidates.append_column("key", candidates[key]).select([*_CANDIDATE, "key"]).filter(rated_queries)
    order = identity.id_order(identity.id_matrix(candidates["query_id"]), identity.id_matrix(candidates["doc_id"]))
    candidates = candidates.take(pa.array(order))  # so that sums and ties do not depend on the order of rows
    queries = pc.unique(candidates["query_id"])
    query = codes(candidates["query_id"], queries)
    rated = candidate_rows(candidates, ratings["query_id"], ratings["doc_id"], "rated documents")
    rating, error = (np.full(candidates.num_rows, np.nan) for _ in range(2))
    rating[rated] = ratings["rating_elo"].to_numpy()
    error[rated] = ratings["std_err_elo"].to_numpy()
    rows = np.flatnonzero(~np.isnan(rating))
    count = np.maximum(np.bincount(query[rows], minlength=len(queries)), 1)
    mean = np.bincount(query[rows], rating[rows], minlength=len(queries)) / count
    spread = np.sqrt(np.bincount(query[rows], (rating[rows] - mean[query[rows]]) ** 2, minlength=len(queries)) / count)
    probability = np.zeros(candidates.num_rows)
    if confirmed is not None:
        row = find_rows(confirmed, {name: candidates[name] for name in ("query_id", "doc_id")})
        probability = np.append(confirmed["probability"].to_numpy(), 0.0)[row]  # row -1: unknown
    low, high = grouped_quantiles(query[rows], rating[rows], len(queries), (0.25, 0.75))
    text = candidates["query_id"], candidates["key"]
    return RatedBucket(
        candidates=candidates,
        queries=queries,
        query=query,
        is_positive=candidates["is_positive"].to_numpy(),
        probability=probability,
        is_random=pc.equal(candidates["source"], "random").to_numpy().astype(bool),
        rating=rating,
        error=error,
        mean=mean,
        sd=np.maximum(spread, LEAST_SD),
        spread=np.maximum(np.nan_to_num(high - low) / 1.349, LEAST_SD),  # as of a normal distribution
        rank=pc.fill_null(pc.cast(candidates["rank"], pa.float64()), np.nan).to_numpy(),
        score=candidates["similarity"].to_numpy(),
        text=np.unique(identity.mix(*map(identity.id_matrix, text)), return_inverse=True)[1],
    )


def candidate_rows(candidates: pa.Table, query_id: pa.ChunkedArray, doc_id: pa.ChunkedArray, what: str) -> Ints:
    """Return the candidate rows of (query, document) pairs. Raises DataError if one is missing."""
    rows = find_rows(candidates, {"query_id": query_id, "doc_id": doc_id})
    if (rows < 0).any():
        raise DataError(f"{int((rows < 0).sum())} {what} are not candidates of their query", PLACE, AGAIN)
    return rows


def pool(
    gaps: pa.Table,
    bucket: RatedBucket,
    anchors: Anchors,
    config: MineConfig,
    direct: pa.Table | None = None,
    relevance: pa.Table | None = None,
) -> Pool:
    """Return the pool: gaps from the chosen anchors to other documents, sorted by (example, doc_id).

    `direct` and `relevance` as in `compose.RuleInputs`.
    """
    example = find_rows(anchors.table, {"query_id": gaps["query_id"], "anchor_id": gaps["anchor_id"]})
    keep = (example >= 0) & (identity.id_matrix(gaps["anchor_id"]) != identity.id_matrix(gaps["doc_id"])).any(axis=1)
    gaps = gaps.filter(pa.array(keep))
    example = example[keep]
    words = np.ascontiguousarray(identity.id_matrix(gaps["doc_id"])).view(">u8").astype(np.uint64)
    order = np.lexsort((words[:, 1], words[:, 0], example))
    gaps = gaps.take(pa.array(order))
    example = example[order]
    doc = candidate_rows(bucket.candidates, gaps["query_id"], gaps["doc_id"], "documents with a gap")
    anchor = candidate_rows(bucket.candidates, anchors.table["query_id"], anchors.table["anchor_id"], "anchors")
    for rows, what in ((doc, "documents with a gap"), (anchor, "anchors")):
        if np.isnan(bucket.rating[rows]).any():
            raise DataError(f"{what} have no rating", PLACE, AGAIN)
    is_anchor = np.zeros(bucket.candidates.num_rows, dtype=bool)
    is_anchor[anchor] = True  # a positive that anchors nothing was withheld from rating
    is_relevant = (bucket.is_positive & is_anchor) | (bucket.probability > POSSIBLE)
    is_copy = np.isin(bucket.text, bucket.text[is_relevant])
    gap, gap_se = (gaps[name].to_numpy().astype(np.float64) for name in ("gap_elo", "gap_se_elo"))
    example_ids = identity.id_matrix(identity.id_array(anchors.example_ids))
    negatives = Negatives(
        example=example,
        draw_ids=example_ids[example] ^ identity.id_matrix(gaps["doc_id"]),
        gap=gap,
        gap_se=gap_se,
        is_positive=is_copy[doc],
        anchor_rating=bucket.rating[anchor][example],
        spread=bucket.spread[anchors.query][example],
        rank=bucket.rank[doc],
        score=bucket.score[doc],
        anchor_score=bucket.score[anchor][example],
        direct=_judged(gaps, direct),
        was_borderline=_was_borderline(gaps, direct),
        relevance=_relevance(gaps, relevance),
    )
    return Pool(is_copy, anchor, doc, gap, gap_se, negatives)


def _meetings(gaps: pa.Table, direct: pa.Table) -> list[tuple[Ints, float]]:
    """Return, for both orders of each gap's pair, the row in `direct` (or -1) and the anchor's sign."""
    orders = (("anchor_id", "doc_id", 1.0), ("doc_id", "anchor_id", -1.0))
    return [
        (find_rows(direct, {"query_id": gaps["query_id"], "doc_a": gaps[first], "doc_b": gaps[second]}), sign)
        for first, second, sign in orders
    ]


def _judged(gaps: pa.Table, direct: pa.Table | None) -> Reals:
    """Return each gap's direct preference for anchor over document, NaN if they were not compared."""
    preferences = np.full(gaps.num_rows, np.nan)
    if direct is None:
        return preferences
    preference = direct["preference"].to_numpy().astype(np.float64)
    for row, sign in _meetings(gaps, direct):
        met = row >= 0
        preferences[met] = 0.5 + sign * (preference[row[met]] - 0.5)
    return preferences


def _was_borderline(gaps: pa.Table, direct: pa.Table | None) -> Flags | None:
    """Return whether each gap's pair was borderline before the validation round, None without such a round."""
    if direct is None or "was_borderline" not in direct.column_names:
        return None
    borderline = np.zeros(gaps.num_rows, dtype=bool)
    flags = direct["was_borderline"].to_numpy().astype(bool)
    for row, _ in _meetings(gaps, direct):
        borderline[row >= 0] |= flags[row[row >= 0]]
    return borderline


def _relevance(gaps: pa.Table, relevance: pa.Table | None) -> Reals:
    """Return P(relevant) of each gap's document, NaN if unknown."""
    relevances = np.full(gaps.num_rows, np.nan)
    if relevance is not None:
        row = find_rows(relevance, {"query_id": gaps["query_id"], "doc_id": gaps["doc_id"]})
        relevances[row >= 0] = relevance["relevance"].to_numpy().astype(np.float64)[row[row >= 0]]
    return relevances
