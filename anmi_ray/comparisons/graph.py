"""Random k-regular comparison graphs on n documents.

A union of k/2 independent random Hamiltonian cycles (report, eq. 32) repeats edges, so it is not k-regular and wastes
answers; here a cycle removes edges that it shares with earlier ones by 2-opt moves (Croes 1958), which keep it a cycle.
Cycles visit documents in hash order: adding or removing a document changes only its own neighbors, so most pairs of a
changed candidate list have been judged already.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numba import njit
from numpy.typing import NDArray

from anmi_ray.core import identity

Edges = NDArray[np.int64]
Order = NDArray[np.int64]  # a permutation of n documents
ATTEMPTS = 1000


def regular(ids: NDArray[np.uint8], degree: int, *salt: str | bytes | int) -> Edges:
    """Return a k-regular graph drawn by hashes of document `ids` uint8[n, 16] and `salt`: int64[m, 2], i < j, sorted.

    A graph of even degree contains that of any smaller even degree, as long as both degrees are below n/2.
    """
    return _drawn(len(ids), degree, lambda *draw: np.argsort(identity.uniforms(ids, *salt, *draw)))


def k_regular(documents: int, degree: int, rng: np.random.Generator) -> Edges:
    """Return the edges int64[m, 2] (i < j, sorted) of a random simple connected graph of the given degree.

    With at most degree + 1 documents the graph is complete. If degree and documents are both odd, one random document
    has degree - 1. With degree >= n/2 the complement is drawn: such a graph is connected by Dirac's theorem, others by
    their first cycle.

    >>> k_regular(4, 3, np.random.default_rng(0)).tolist()
    [[0, 1], [0, 2], [0, 3], [1, 2], [1, 3], [2, 3]]
    """
    return _drawn(documents, degree, lambda attempt, number: rng.permutation(documents))


def _drawn(documents: int, degree: int, order: Callable[[int, int], Order]) -> Edges:
    if documents < 2 or degree < 2:
        raise AssertionError(f"a comparison graph needs 2 documents and degree 2, not {documents} and {degree}")
    if documents <= degree + 1:
        return np.stack(np.triu_indices(documents, 1), axis=1).astype(np.int64)
    dense = 2 * degree >= documents
    cycles, odd = divmod(documents - 1 - degree if dense else degree, 2)
    for attempt in range(ATTEMPTS):
        adjacency = np.zeros((documents, documents), dtype=np.bool_)
        orders = (order(attempt, number) for number in range(cycles))
        simple = all(_add_cycle(adjacency, cycle) for cycle in orders)
        if simple and (not odd or _add_matching(adjacency, order(attempt, cycles), dense)):
            upper = np.triu(~adjacency if dense else adjacency, 1)
            return np.argwhere(upper).astype(np.int64)
    raise AssertionError(f"no simple graph of {documents} documents and degree {degree} in {ATTEMPTS} attempts")


@njit(cache=True)
def _add_cycle(adjacency: NDArray[np.bool_], order: Order) -> bool:  # pragma: no cover - compiled
    """Add a cycle in the given order; return False if that needs an edge that exists already.

    If edge (a, b) exists, find the next edge (c, d) such that (a, c) and (b, d) do not, and reverse the path b to c.
    """
    n = len(order)
    ring = order.copy()
    checked = 0
    while checked < n:
        a, b = ring[0], ring[1]
        if not adjacency[a, b]:
            ring = np.roll(ring, -1)
            checked += 1
            continue
        last = 2
        while last < n - 1 and (adjacency[a, ring[last]] or adjacency[b, ring[last + 1]]):
            last += 1
        if last == n - 1:
            return False
        ring[1 : last + 1] = ring[1 : last + 1][::-1].copy()
        checked = 0  # the reversed path may contain unchecked edges
    for i in range(n):
        adjacency[ring[i - 1], ring[i]] = adjacency[ring[i], ring[i - 1]] = True
    return True


@njit(cache=True)
def _add_matching(adjacency: NDArray[np.bool_], order: Order, surplus: bool) -> bool:  # pragma: no cover - compiled
    """Add a perfect matching; return False if that needs an edge that exists already.

    If the number is odd, one document is left out, or with `surplus` one is matched twice (for a complement).
    """
    n = len(order)
    pairs = order[: n - n % 2].copy().reshape(-1, 2)
    if surplus and n % 2:
        pairs = np.concatenate((pairs, order[-2:].copy().reshape(1, 2)))
    for e in range(len(pairs)):
        u, v = pairs[e]
        f = e
        while adjacency[u, v]:
            f += 1
            if f == e + len(pairs):
                return False
            x, y = pairs[f % len(pairs)]
            if u == x or v == y or adjacency[u, x] or adjacency[v, y]:
                continue
            pairs[e] = u, x
            pairs[f % len(pairs)] = v, y
            v = x
    for u, v in pairs:
        adjacency[u, v] = adjacency[v, u] = True
    return True
