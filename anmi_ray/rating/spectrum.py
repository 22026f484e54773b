"""Algebraic connectivity of comparison graphs: the smallest eigenvalue that says how fast information spreads in them.

Games tell ratings apart along an eigenvector of the graph's Laplacian as well as its eigenvalue is large: λ₂ is the
weakest of them (0: the graph falls apart), and k - 2 √(k - 1) is about the best that k opponents each can give.
Letters: Q queries; of one query n documents, P games, a arcs (every game once from either end).
"""

from __future__ import annotations

import math

import numpy as np

from anmi_ray.core.scale import Floats
from anmi_ray.rating.conjugate_gradient import dot
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import compiled
from anmi_ray.rating.solver import over_queries

_WINDOW = 8  # steps from one look at the eigenvalue to the next
# less than both, of n and of itself, between two looks: it is found
_CHANGE = 1e-9
_RELATIVE_CHANGE = 1e-6
_STEPS = 8  # most steps a document; chains, the slowest of all graphs, take one
_WORK = 5e8  # most steps x (documents + arcs), about a second


def lambda2(games: Games, threads: int = 1) -> Floats:
    """Algebraic connectivity per query, float64[Q]: second smallest eigenvalue of the unweighted games' Laplacian.

    0 for a graph that is not connected. Else by the Lanczos method on the space of vectors that sum to zero, until
    eight steps change it by less than 1e-9 n and than a millionth of itself: random graphs of 100 documents need about
    40 steps, of 10,000 about 60, chains n. The steps are limited to 5e8 / (n + a), after which it is an upper bound;
    chains of more than 10,000 documents and the like would need more.

    The vectors are not made orthogonal again. Rounding then lets eigenvalues that are found come back, but adds none
    (Paige 1980, Linear Algebra and its Applications 34): the smallest is as exact, long chains take more steps. Only
    the constant vector is taken out at every step, since its eigenvalue 0 is excluded.
    """
    result = np.empty(games.queries)
    ends = games.doc_start, games.game_start, games.first, games.second, components(games).count == 1
    over_queries(games, threads, lambda begin, stop: _lambda2_all(begin, stop, *ends, result))
    return result


@compiled
def _lambda2_all(begin, stop, doc_start, game_start, first, second, connected, result):
    for q in range(begin, stop):
        own = slice(game_start[q], game_start[q + 1])
        n = doc_start[q + 1] - doc_start[q]
        result[q] = _lambda2(*_arcs(n, first[own], second[own])) if connected[q] else 0.0


@compiled
def _arcs(n, first, second):
    """Opponents of document i: other[row[i] : row[i + 1]], once a game."""
    row = np.zeros(n + 2, np.uint32)  # unsigned: an index that may be negative is checked at every use
    for p in range(len(first)):
        row[first[p] + 2] += 1
        row[second[p] + 2] += 1
    for i in range(2, n + 2):
        row[i] += row[i - 1]
    other = np.empty(2 * len(first), np.uint32)
    for p in range(len(first)):  # row[i + 1] is where the next arc of i goes, and ends where those of i + 1 begin
        for i, j in ((first[p], second[p]), (second[p], first[p])):
            other[row[i + 1]] = j
            row[i + 1] += 1
    return row[: n + 1], other


@compiled
def _lambda2(row, other):
    """Smallest eigenvalue of one connected graph's Laplacian on the complement of the constant vector."""
    n = len(row) - 1
    steps = max(_WINDOW, min(_STEPS * n, int(_WORK / (n + len(other)))))
    alpha = np.empty(steps)
    beta = np.empty(steps)
    before = np.zeros(n)
    v = np.zeros(n)
    product = np.empty(n)
    constant = np.full(n, 1.0 / math.sqrt(n))
    for i in range(n):  # any vector with a part along every eigenvector will do
        product[i] = math.sin(1.0 + i * i)
    _take_out(product, constant)
    length = math.sqrt(dot(product, product))
    ritz = math.inf
    for k in range(steps):
        before, v, product = v, product, before
        for i in range(n):
            v[i] /= length
        _multiply(row, other, v, before, length if k else 0.0, product)
        alpha[k] = _take_out(product, v)
        _take_out(product, constant)
        beta[k] = length = math.sqrt(dot(product, product))
        last = k == steps - 1 or length < _CHANGE * n
        if last or k % _WINDOW == _WINDOW - 1:
            estimate = _smallest_eigenvalue(alpha[: k + 1], beta[:k])
            if last or ritz - estimate < min(_CHANGE * n, _RELATIVE_CHANGE * estimate):
                return estimate
            ritz = estimate
    return ritz


@compiled
def _multiply(row, other, v, before, beta, product):
    """The Laplacian times v, less beta times the vector before."""
    for i in range(len(v)):
        total = 0.0
        for a in range(row[i], row[i + 1]):
            total += v[other[a]]
        product[i] = (row[i + 1] - row[i]) * v[i] - total - beta * before[i]


@compiled
def _take_out(x, direction):
    """Make x orthogonal to a direction of length one; returns its part along it."""
    along = dot(x, direction)
    for i in range(len(x)):
        x[i] -= along * direction[i]
    return along


@compiled
def _smallest_eigenvalue(alpha, beta):
    """Smallest eigenvalue of the symmetric tridiagonal matrix (alpha, beta), all above 0, by bisection.

    One is below x if and only if a pivot of the matrix less x is negative (Sturm).
    """
    low = 0.0
    high = alpha.min()
    while high - low > 1e-4 * _RELATIVE_CHANGE * high:
        x = 0.5 * (low + high)
        pivot = alpha[0] - x
        for i in range(len(beta)):
            if pivot <= 0.0:
                break
            pivot = alpha[i + 1] - x - beta[i] * beta[i] / pivot
        if pivot <= 0.0:
            high = x
        else:
            low = x
    return 0.5 * (low + high)
