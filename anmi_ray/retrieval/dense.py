"""Dense retrieval: exact inner product of unit vectors (FAISS flat), with exact ties.

FAISS proposes a few more documents than asked for; their scores are computed again in a fixed order and double
precision, so a similarity is one number wherever it is used, and does not depend on FAISS' blocking.
Q queries, N documents, d dimensions.
"""

from __future__ import annotations

import faiss
import numpy as np
from numpy.typing import NDArray

from anmi_ray.retrieval.top import Hits, empty, top

_MARGIN = 32  # more documents than asked for, among which ties and rounding are settled
_ROUNDING = 1e-5  # what single precision may be wrong by in a sum of d products of unit vectors
_BLOCK = 1024  # queries searched at once
_ROWS = 1024  # pairs rescored at once: within the cache


def search(query_Qd: NDArray[np.float32], doc_Nd: NDArray[np.float32], depth: int, threads: int = 1) -> Hits:
    """The `depth` documents of largest inner product: (index int64[Q, depth], -1 padded; score float64[Q, depth])."""
    queries, documents = len(query_Qd), len(doc_Nd)
    index, score = empty(queries, depth)
    if not queries or not documents:
        return index, score
    proposed = min(documents, depth + _MARGIN)
    faiss.omp_set_num_threads(threads)
    flat = faiss.IndexFlatIP(doc_Nd.shape[1])
    flat.add(np.ascontiguousarray(doc_Nd))  # pyright: ignore[reportCallIssue]
    for start in range(0, queries, _BLOCK):
        block = np.ascontiguousarray(query_Qd[start : start + _BLOCK])
        found = np.sort(flat.search(block, proposed)[1], axis=1)  # pyright: ignore[reportCallIssue]
        exact = similarity(block, doc_Nd, np.repeat(np.arange(len(block)), proposed), found.ravel())
        place, value = top(exact.reshape(len(block), proposed), depth)
        column = np.take_along_axis(found, np.maximum(place, 0), axis=1)
        index[start : start + len(block)] = np.where(place >= 0, column, -1)
        score[start : start + len(block)] = value
        if proposed < documents:
            # Where the last document proposed might tie with the last one wanted, others might too: look at all.
            worst = exact.reshape(len(block), proposed).min(axis=1)
            for row in np.flatnonzero(worst >= value[:, depth - 1] - _ROUNDING):
                every = similarity(block, doc_Nd, np.full(documents, row), np.arange(documents))
                index[start + row], score[start + row] = (part[0] for part in top(every[None, :], depth))
    return index, score


def similarity(
    query_Qd: NDArray[np.float32], doc_Nd: NDArray[np.float32], row: NDArray[np.int64], column: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Inner products of query `row[i]` with document `column[i]`, float64, each summed on its own."""
    result = np.empty(len(row))
    for start in range(0, len(row), _ROWS):
        part = slice(start, start + _ROWS)
        result[part] = (query_Qd[row[part]].astype(np.float64) * doc_Nd[column[part]]).sum(axis=1)
    return result
