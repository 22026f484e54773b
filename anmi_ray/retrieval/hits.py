"""Hits of a shard, random draws, texts, fusion and runs, without an index or a model, so that workers start quickly.

Rankings break ties by document, so that a rerun is byte-equal. Where ties go to the smaller document index, callers
sort documents by id.
Q queries, N documents or rows (a query and a document), K places, R retrievers.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.retrieve import RETRIEVERS
from anmi_ray.core import identity
from anmi_ray.core.records import RUN, TEXT_OF
from anmi_ray.core.schema import Record

Hits = tuple[NDArray[np.int64], NDArray[np.float64]]
"""(index int64[Q, K], score float64[Q, K]), best first; padded by index -1 and score 0 if a query has fewer hits."""
System = tuple[NDArray[np.int64], NDArray[np.float64]]
"""(rank int64[N], score float64[N]) over the same N rows; rank 0: not in the ranking."""

# <retriever>_score is null if the document is not among that retriever's best `depth` of the shard.
# is_positive and is_random are set for train queries only; is_random marks possible random negatives.
HITS = Record(
    "Hits",
    1,
    ("query_id", "doc_id"),
    pa.schema(
        [
            pa.field("query_id", identity.ID, nullable=False),
            pa.field("doc_id", identity.ID, nullable=False),
            *(pa.field(f"{name}_score", pa.float64()) for name in RETRIEVERS),
            pa.field("similarity", pa.float64(), nullable=False),
            pa.field("is_positive", pa.bool_(), nullable=False),
            pa.field("is_random", pa.bool_(), nullable=False),
        ]
    ),
)


def full_texts(documents: pa.Table) -> list[str]:
    """Return the texts to index: title and text of each document."""
    columns = zip(documents["title"].to_pylist(), documents["text"].to_pylist(), strict=True)
    return [f"{title} {text}".strip() for title, text in columns]


def texts_of(documents: pa.Table, doc_ids: pa.Array) -> pa.Table:
    """Return the Text table of the wanted documents of a shard (Document table), in order of doc_id."""
    table = documents.filter(pc.is_in(documents["doc_id"], value_set=doc_ids)).sort_by("doc_id")
    titles = table["title"].to_pylist()
    texts = table["text"].to_pylist()
    hashes = [identity.text_hash(title, text) for title, text in zip(titles, texts, strict=True)]
    return TEXT_OF.table(
        {
            "doc_id": table["doc_id"],
            "external_id": table["external_id"],
            "text_hash": identity.id_array(hashes),
            "title": table["title"],
            "text": table["text"],
        }
    )


def pair_hash(query_16: NDArray[np.uint8], doc_16: NDArray[np.uint8], seed: int) -> NDArray[np.float64]:
    """Return a uniform in [0, 1) for every pair of ids (uint8[..., 16], broadcast), for drawing random negatives.

    Each side is hashed once; a pair costs one multiply-shift mix (the finalizer of MurmurHash3).
    """
    query, doc = (_word(ids, seed, side) for ids, side in ((query_16, "query"), (doc_16, "doc")))
    with np.errstate(over="ignore"):
        mixed = query ^ doc
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xFF51AFD7ED558CCD)
        mixed ^= mixed >> np.uint64(33)
        mixed *= np.uint64(0xC4CEB9FE1A85EC53)
        mixed ^= mixed >> np.uint64(33)
    return (mixed >> np.uint64(11)).astype(np.float64) * 2.0**-53


def _word(ids: NDArray[np.uint8], seed: int, side: str) -> NDArray[np.uint64]:
    flat = np.ascontiguousarray(ids).reshape(-1, identity.ID_BYTES)
    return (identity.uniforms(flat, "random negative", seed, side) * 2.0**64).astype(np.uint64).reshape(ids.shape[:-1])


def rrf(rank_RN: NDArray[np.int64], k: int = 60, weight_R: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Σ_r w_r/(k + rank_r), equation (33) where all weights are 1 (Cormack, Clarke and Büttcher 2009).

    Ranks count from 1; 0: retriever r did not find the document.

    >>> rrf(np.array([[1, 2], [0, 1]])).round(6).tolist()
    [0.016393, 0.032522]
    """
    total = np.zeros(rank_RN.shape[1])
    weights = np.ones(len(rank_RN)) if weight_R is None else weight_R
    for rank_N, weight in zip(rank_RN, weights, strict=True):
        total += np.where(rank_N > 0, weight / (k + np.maximum(rank_N, 1)), 0.0)
    return total


def weighted_scores(
    query_N: NDArray[np.int64],
    rank_RN: NDArray[np.int64],
    score_RN: NDArray[np.float64],
    weight_R: NDArray[np.float64],
) -> NDArray[np.float64]:
    """Σ_r w_r s̃_r with each retriever's scores scaled to [0, 1] over the documents that it found for the query.

    If all are equal, they are 1 (CombSUM of Fox and Shaw 1994, scaled as in Lee 1997). A document that a retriever did
    not find (rank 0) has 0.

    >>> query, rank = np.zeros(3, dtype=int), np.array([[1, 2, 0], [0, 1, 2]])
    >>> score = np.array([[9.0, 5.0, 0.0], [0.0, 0.8, 0.4]])
    >>> weighted_scores(query, rank, score, np.array([1.0, 2.0])).tolist()
    [1.0, 2.0, 0.0]
    """
    total = np.zeros(len(query_N))
    queries = int(query_N.max()) + 1 if len(query_N) else 0
    for rank_N, score_N, weight in zip(rank_RN, score_RN, weight_R, strict=True):
        ranked = rank_N > 0
        of = query_N[ranked]
        score = score_N[ranked]
        low_Q = np.full(queries, np.inf)
        high_Q = np.full(queries, -np.inf)
        np.minimum.at(low_Q, of, score)
        np.maximum.at(high_Q, of, score)
        flat_Q = ~(high_Q > low_Q)  # equal scores, or no documents
        low_Q = np.where(flat_Q, 0.0, low_Q)
        high_Q = np.where(flat_Q, 1.0, high_Q)
        width_Q = np.where(flat_Q, 1.0, high_Q - low_Q)
        scaled_N = np.zeros(len(query_N))
        scaled_N[ranked] = np.where(flat_Q[of], 1.0, (score - low_Q[of]) / width_Q[of])
        total += weight * scaled_N
    return total


def ranks(query_N: NDArray[np.int64], score_N: NDArray[np.float64], doc_N16: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the rank of every row within its query, from 1, by descending score, ties by ascending doc_id bytes."""
    words = np.ascontiguousarray(doc_N16).reshape(-1, identity.ID_BYTES).view(">u8")
    order = np.lexsort((words[:, 1], words[:, 0], -score_N, query_N))
    ordered = query_N[order]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered, side="left") + 1
    return rank


def empty(queries: int, depth: int) -> Hits:
    """Return empty hits."""
    return np.full((queries, depth), -1, dtype=np.int64), np.zeros((queries, depth))


def top(score_QN: NDArray[np.float64], depth: int, above: float = -np.inf) -> Hits:
    """Return the `depth` largest scores of each row that exceed `above`; ties go to the smaller index.

    >>> top(np.array([[1.0, 3.0, 1.0]]), 2)[0].tolist()
    [[1, 0]]
    """
    queries, documents = score_QN.shape
    index, score = empty(queries, depth)
    if not queries or not documents:
        return index, score
    keep = score_QN > above
    if depth < documents:
        # Keep all ties with the last place; they are broken by index below.
        floor_Q = np.partition(score_QN, documents - depth, axis=1)[:, documents - depth]
        keep &= score_QN >= floor_Q[:, None]
    row, column = np.nonzero(keep)
    value = score_QN[row, column]
    order = np.lexsort((column, -value, row))
    row = row[order]
    column = column[order]
    value = value[order]
    place = np.arange(len(row)) - np.searchsorted(row, row, side="left")
    inside = place < depth
    index[row[inside], place[inside]] = column[inside]
    score[row[inside], place[inside]] = value[inside]
    return index, score


class BestScores:
    """The `depth` best scores of each of `queries` queries over some shards, by retriever, and their random draws."""

    def __init__(self, queries: int, depth: int) -> None:
        self._queries, self._depth = queries, depth
        self._best: dict[str, NDArray[np.float64]] = {}
        self._draws: NDArray[np.float64] | None = None

    def keeps(self, name: str, row: NDArray[np.int64], score: NDArray[np.float64]) -> NDArray[np.bool_]:
        """Add a shard's hits, by ascending row (query); return which are not worse than `depth` others."""
        place = np.arange(len(row)) - np.searchsorted(row, row, side="left")
        new = np.full((self._queries, int(place.max(initial=-1)) + 1), -np.inf)
        new[row, place] = score
        before = self._best.get(name, np.full((self._queries, self._depth), -np.inf))
        self._best[name] = np.partition(np.hstack([before, new]), new.shape[1], axis=1)[:, new.shape[1] :]
        return score >= self._best[name][row, 0]  # the smallest of them

    def limit(self, rows: NDArray[np.int64], hash_BK: NDArray[np.float64], count: int) -> NDArray[np.float64]:
        """Add the hashes of a shard's documents that are not hits; return the `count`-th smallest of each of `rows`."""
        if self._draws is None:
            self._draws = np.full((self._queries, count), np.inf)
        self._draws[rows] = np.sort(np.hstack([self._draws[rows], hash_BK]), axis=1)[:, :count]
        return self._draws[rows, -1]


def to_run(query_N16: NDArray[np.uint8], doc_N16: NDArray[np.uint8], systems: Mapping[str, System]) -> pa.Table:
    """Return the Run table of `systems`, sorted by query_id, system and rank, without rows of rank 0."""
    parts = []
    for name, (rank_N, score_N) in systems.items():
        inside = rank_N > 0
        parts.append(
            RUN.table(
                {
                    "query_id": query_N16[inside],
                    "doc_id": doc_N16[inside],
                    "system": pa.array([name] * int(inside.sum()), type=pa.string()),
                    "rank": rank_N[inside],
                    "score": score_N[inside],
                }
            )
        )
    table = pa.concat_tables(parts) if parts else RUN.empty()
    return table.sort_by([("query_id", "ascending"), ("system", "ascending"), ("rank", "ascending")])
