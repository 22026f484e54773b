"""Fusion of rankings, by ranks or by scores, and ranking with ties broken by document id so that a rerun is byte-equal.

N rows (a query and a document), R retrievers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.identity import ID_BYTES


def rrf(rank_RN: NDArray[np.int64], k: int = 60, weight_R: NDArray[np.float64] | None = None) -> NDArray[np.float64]:
    """Σ_r w_r/(k + rank_r), equation (33) where all weights are 1 (Cormack, Clarke and Büttcher 2009).

    Ranks count from 1, and 0 says that retriever r did not find the document.

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
    """Σ_r w_r s̃_r with each retriever's scores on one scale over the documents that it found for the query.

    From 0 to 1, where all are equal 1 (CombSUM of Fox and Shaw 1994, as Lee 1997 scales it). A document that a
    retriever did not find (rank 0) has 0, so being found never counts less than not.

    >>> query, rank = np.zeros(3, dtype=int), np.array([[1, 2, 0], [0, 1, 2]])
    >>> score = np.array([[9.0, 5.0, 0.0], [0.0, 0.8, 0.4]])
    >>> weighted_scores(query, rank, score, np.array([1.0, 2.0])).tolist()
    [1.0, 2.0, 0.0]
    """
    total = np.zeros(len(query_N))
    queries = int(query_N.max()) + 1 if len(query_N) else 0
    for rank_N, score_N, weight in zip(rank_RN, score_RN, weight_R, strict=True):
        found = rank_N > 0
        of = query_N[found]
        score = score_N[found]
        low_Q = np.full(queries, np.inf)
        high_Q = np.full(queries, -np.inf)
        np.minimum.at(low_Q, of, score)
        np.maximum.at(high_Q, of, score)
        flat_Q = ~(high_Q > low_Q)  # all are equal, or nothing was found
        low_Q = np.where(flat_Q, 0.0, low_Q)
        high_Q = np.where(flat_Q, 1.0, high_Q)
        width_Q = np.where(flat_Q, 1.0, high_Q - low_Q)
        scaled_N = np.zeros(len(query_N))
        scaled_N[found] = np.where(flat_Q[of], 1.0, (score - low_Q[of]) / width_Q[of])
        total += weight * scaled_N
    return total


def ranks(query_N: NDArray[np.int64], score_N: NDArray[np.float64], doc_N16: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Rank of every row within its query, from 1, by falling score; equal scores by rising doc_id bytes."""
    words = np.ascontiguousarray(doc_N16).reshape(-1, ID_BYTES).view(">u8")
    order = np.lexsort((words[:, 1], words[:, 0], -score_N, query_N))
    ordered = query_N[order]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered, side="left") + 1
    return rank
