"""Top documents of score matrices and fusion of rankings, with ties broken by document so that a rerun is byte-equal.

Q queries, N documents or rows (a query and a document), K places, R retrievers. Where ties go to the smaller document
index, callers sort documents by id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.identity import ID_BYTES

Hits = tuple[NDArray[np.int64], NDArray[np.float64]]
"""(index int64[Q, K], score float64[Q, K]), best first; padded by index -1 and score 0 if a query has fewer hits."""


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
    words = np.ascontiguousarray(doc_N16).reshape(-1, ID_BYTES).view(">u8")
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
