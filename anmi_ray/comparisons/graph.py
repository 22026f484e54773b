"""Random k-regular comparison graphs on n documents.

A union of k/2 random Hamiltonian cycles (report, eq. 32) shares edges, so it is neither k-regular nor worth its price;
here the cycles after the first are repaired by degree-preserving edge swaps until the graph is simple.
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

Edges = NDArray[np.int64]
RESTARTS = 1000


def k_regular(documents: int, degree: int, rng: np.random.Generator) -> Edges:
    """Edges int64[m, 2] (i < j, sorted) of a random simple connected graph in which every document has `degree` others.

    At most degree + 1 documents give the complete graph. An odd degree on an odd number of documents is impossible;
    then one random document has degree - 1. With degree >= n/2 the complement is drawn instead: such a graph is
    connected by its degree alone (Dirac), else the first cycle, which no swap touches, connects it.

    >>> k_regular(4, 3, np.random.default_rng(0)).tolist()
    [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    if documents < 2 or degree < 2:
        raise AssertionError(f"a comparison graph needs 2 documents and degree 2, not {documents} and {degree}")
    if documents <= degree + 1:
        return np.stack(np.triu_indices(documents, 1), axis=1).astype(np.int64)
    dense = 2 * degree >= documents
    drawn = documents - 1 - degree if dense else degree
    for _ in range(RESTARTS):
        adjacency, simple = _draw(documents, drawn, dense, rng)
        if simple:
            upper = np.triu(~adjacency if dense else adjacency, 1)
            return np.argwhere(upper).astype(np.int64)
    raise AssertionError(f"no simple graph of {documents} documents and degree {degree} in {RESTARTS} draws")


@njit(cache=True)
def _draw(
    n: int, degree: int, surplus: bool, rng: np.random.Generator
) -> tuple[NDArray[np.bool_], bool]:  # pragma: no cover - compiled
    """Adjacency bool[n, n] of a union of cycles (and a matching for odd degrees), and whether the repair succeeded.

    On odd n and degree the matching leaves one document out, or with `surplus` takes one twice (for a complement).
    """
    cycles = degree // 2
    odd = degree % 2
    matched = n // 2 + (1 if surplus and n % 2 else 0)
    edges = np.empty((cycles * n + odd * matched, 2), dtype=np.int64)
    row = 0
    for _ in range(cycles):
        order = rng.permutation(n)
        for i in range(n):
            edges[row, 0] = order[i]
            edges[row, 1] = order[(i + 1) % n]
            row += 1
    if odd:
        order = rng.permutation(n)
        for i in range(matched):
            second = 2 * i + 1 if 2 * i + 1 < n else n - 2
            edges[row, 0] = order[2 * i]
            edges[row, 1] = order[second]
            row += 1
    count = np.zeros((n, n), dtype=np.int16)
    for e in range(len(edges)):
        _add(count, edges[e, 0], edges[e, 1], 1)
    simple = _repair(edges, count, min(n, len(edges)) if cycles else 0, rng)
    return count > 0, simple


@njit(cache=True, inline="always")
def _add(count: NDArray[np.int16], u: int, v: int, change: int) -> None:  # pragma: no cover - compiled
    count[u, v] += change
    count[v, u] += change


@njit(cache=True)
def _repair(
    edges: Edges, count: NDArray[np.int16], fixed: int, rng: np.random.Generator
) -> bool:  # pragma: no cover - compiled
    """Swap the ends of doubled edges with random other edges, in place; the first `fixed` edges are never touched.

    A swap (u,v), (x,y) -> (u,x), (v,y) keeps all degrees and is made only if both new edges are new, so the number
    of doubled edges falls with each; false if a doubled edge found no partner.
    """
    free = len(edges) - fixed
    for e in range(fixed, len(edges)):
        tries = 0
        while count[edges[e, 0], edges[e, 1]] > 1:
            tries += 1
            if tries > 50 + 20 * free:
                return False
            f = fixed + int(rng.random() * free)
            side = int(rng.random() * 2.0)
            u = edges[e, 0]
            v = edges[e, 1]
            x = edges[f, side]
            y = edges[f, 1 - side]
            if f == e or u == x or v == y or count[u, x] or count[v, y]:
                continue
            _add(count, u, v, -1)
            _add(count, x, y, -1)
            _add(count, u, x, 1)
            _add(count, v, y, 1)
            edges[e, 0] = u
            edges[e, 1] = x
            edges[f, 0] = v
            edges[f, 1] = y
    return True
