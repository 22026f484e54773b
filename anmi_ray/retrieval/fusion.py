"""Reciprocal rank fusion, and ranking with ties broken by document id so that a rerun is byte-equal.

N rows (a query and a document), R retrievers.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from anmi_ray.identity import ID_BYTES


def rrf(rank_RN: NDArray[np.int64], k: int = 60) -> NDArray[np.float64]:
    """Σ_r 1/(k + rank_r), equation (33); ranks count from 1, and 0 says that retriever r did not find the document.

    >>> rrf(np.array([[1, 2], [0, 1]])).round(6).tolist()
    [0.016393, 0.032522]
    """
    total = np.zeros(rank_RN.shape[1])
    for rank_N in rank_RN:
        total += np.where(rank_N > 0, 1.0 / (k + np.maximum(rank_N, 1)), 0.0)
    return total


def ranks(query_N: NDArray[np.int64], score_N: NDArray[np.float64], doc_N16: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Rank of every row within its query, from 1, by falling score; equal scores by rising doc_id bytes."""
    words = np.ascontiguousarray(doc_N16).reshape(-1, ID_BYTES).view(">u8")
    order = np.lexsort((words[:, 1], words[:, 0], -score_N, query_N))
    ordered = query_N[order]
    rank = np.empty(len(order), dtype=np.int64)
    rank[order] = np.arange(len(order)) - np.searchsorted(ordered, ordered, side="left") + 1
    return rank
