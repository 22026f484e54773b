"""Algebraic connectivity of comparison graphs: the smallest eigenvalue that says how fast information spreads in them.

Games tell ratings apart along an eigenvector of the graph's Laplacian as well as its eigenvalue is large: λ₂ is the
weakest of them (0: the graph falls apart), and k - 2 √(k - 1) is about the best that k opponents each can give.
Letters: Q queries; n documents of one query.
"""

from __future__ import annotations

import math

import numpy as np

from anmi_ray.rating.games import Games
from anmi_ray.rating.solver import dot, over_queries
from anmi_ray.scale import Floats, compiled

_LANCZOS_WORK = 5e8  # documents x steps², about a second; more than a graph of 793 documents can take
_LANCZOS_ROWS = 64  # the basis starts with so many vectors and doubles when they are used up


def lambda2(games: Games, threads: int = 1) -> Floats:
    """Algebraic connectivity per query, float64[Q]: second smallest eigenvalue of the unweighted games' Laplacian.

    By the Lanczos method with full reorthogonalisation on the space of vectors that sum to zero, until eight steps
    change it by less than 1e-9 n; 0 below 1e-9 n, so for every disconnected graph. Above 793 documents the steps are
    limited to √(5e8 / n), after which it is an upper bound: to 223 for 10,000 documents, of which random graphs need
    about 60. Only long chains need more.
    """
    result = np.empty(games.queries)
    ends = games.doc_start, games.game_start, games.first, games.second
    over_queries(games, threads, lambda begin, stop: _lambda2_all(begin, stop, *ends, result))
    return result


@compiled
def _lambda2_all(begin, stop, doc_start, game_start, first, second, result):
    for q in range(begin, stop):
        g0, g1 = game_start[q], game_start[q + 1]
        result[q] = _lambda2(doc_start[q + 1] - doc_start[q], first[g0:g1], second[g0:g1])


@compiled
def _lambda2(n, first, second):
    """Smallest eigenvalue of one graph's Laplacian on the complement of the constant vector."""
    steps = min(n - 1, max(_LANCZOS_ROWS, int(math.sqrt(_LANCZOS_WORK / n))))
    basis, alpha, beta = np.zeros((min(n, _LANCZOS_ROWS), n)), np.zeros(n), np.zeros(n)
    for i in range(n):  # any vector with a part along every eigenvector will do
        basis[0, i] = math.sin(1.0 + i * i)
    _orthonormal(basis, 0)
    ritz = math.inf
    for k in range(steps):
        if k + 1 == len(basis):
            basis = _longer(basis)
        v, nxt = basis[k], basis[k + 1]
        for p in range(len(first)):
            flow = v[first[p]] - v[second[p]]
            nxt[first[p]] += flow
            nxt[second[p]] -= flow
        alpha[k] = dot(v, nxt)
        beta[k] = _orthonormal(basis, k + 1)
        last = k == steps - 1 or beta[k] < 1e-9 * n
        if last or k % 8 == 7:
            found = _smallest_eigenvalue(alpha[: k + 1], beta[:k])
            if last or ritz - found < 1e-9 * n:
                return max(0.0, found) if found > 1e-9 * n else 0.0
            ritz = found
    return 0.0


@compiled
def _longer(basis):
    """The same rows and as many rows of zeros, up to a square."""
    rows, n = basis.shape
    longer = np.zeros((min(n, 2 * rows), n))
    for k in range(rows):
        for i in range(n):
            longer[k, i] = basis[k, i]
    return longer


@compiled
def _orthonormal(basis, k):
    """Make row k orthogonal to earlier rows and to the constant vector, of length one; returns its length before."""
    v = basis[k]
    for _ in range(2):  # once is not enough in floating point, twice is
        mean = 0.0
        for i in range(len(v)):
            mean += v[i] / len(v)
        for i in range(len(v)):
            v[i] -= mean
        for j in range(k):
            along = dot(basis[j], v)
            for i in range(len(v)):
                v[i] -= along * basis[j, i]
    length = math.sqrt(dot(v, v))
    if length > 0.0:
        for i in range(len(v)):
            v[i] /= length
    return length


@compiled
def _smallest_eigenvalue(alpha, beta):
    """Of the symmetric tridiagonal matrix (alpha, beta), by bisection on Sturm's count of negative pivots."""
    low, high = 0.0, alpha[0]
    for i in range(len(alpha)):
        high = min(high, alpha[i])
    for _ in range(60):
        middle = 0.5 * (low + high)
        pivot, below = alpha[0] - middle, False
        for i in range(1, len(alpha)):
            if pivot <= 0.0:
                below = True
                break
            pivot = alpha[i] - middle - beta[i - 1] * beta[i - 1] / pivot
        if below or pivot <= 0.0:
            high = middle
        else:
            low = middle
    return high
