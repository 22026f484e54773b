"""The best of a row of scores, with a rule for ties: what both retrievers share.

Q queries, N documents, K places. Equal scores go to the smaller document index, so callers sort documents by id.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Hits = tuple[NDArray[np.int64], NDArray[np.float64]]
"""(index int64[Q, K], score float64[Q, K]), best first; where a query has fewer hits, index -1 and score 0."""


def empty(queries: int, depth: int) -> Hits:
    """No hits."""
    return np.full((queries, depth), -1, dtype=np.int64), np.zeros((queries, depth))


def top(score_QN: NDArray[np.float64], depth: int, above: float = -np.inf) -> Hits:
    """The `depth` largest scores of each row that exceed `above`; ties by the smaller index.

    >>> top(np.array([[1.0, 3.0, 1.0]]), 2)[0].tolist()
    [[1, 0]]
    """
    queries, documents = score_QN.shape
    index, score = empty(queries, depth)
    if not queries or not documents:
        return index, score
    keep = score_QN > above
    if depth < documents:
        # Everything that ties with the last place stays in, then the tie is broken by index below.
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
