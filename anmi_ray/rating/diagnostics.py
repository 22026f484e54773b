"""What to look at before trusting a fit: components, connectivity, separation, deviance, and a test for no difference.

Letters: Q queries, D documents, P games.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special
from scipy.sparse import csgraph

from anmi_ray.errors import NoMaximumError
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import game_log_likelihood
from anmi_ray.rating.solver import conjugate_gradient, dot, laplacian_diagonal
from anmi_ray.scale import MODEL_CODES, Floats, Model, compiled


@dataclass(frozen=True)
class Components:
    """component int32[D], numbered from 0 inside each query by first document; count int64[Q]."""

    component: NDArray[np.int32]
    count: NDArray[np.int64]


def components(games: Games) -> Components:
    """Connected components of every query's comparison graph."""
    labels = _labels(games, directed=False)
    return Components(*_renumber(games, labels))


def refuse_without_maximum(games: Games) -> None:
    """Raise NoMaximumError where plain maximum likelihood has no finite unique maximum, naming query and documents.

    It has one exactly if every document can be reached from every other by steps from loser to winner (Ford 1957):
    the graph with an edge i -> j wherever j took something from i is strongly connected.
    """
    weak = components(games)
    _, strong_count = _renumber(games, _labels(games, directed=True))
    bad = np.flatnonzero((weak.count > 1) | (strong_count > 1))
    if not len(bad):
        return
    q = int(bad[0])
    docs = slice(int(games.doc_start[q]), int(games.doc_start[q + 1]))
    if weak.count[q] > 1:
        what, group = "comparisons do not connect the documents", weak.component[docs]
    else:
        strong, _ = _renumber(games, _labels(games, directed=True))
        what, group = "some documents won or lost everything against the others (separation)", strong[docs]
    sizes = np.bincount(group)
    named = np.flatnonzero(group == int(sizes.argmin()))
    raise NoMaximumError(
        f"without a prior the ratings have no finite unique maximum: {what} ({len(bad)} of {games.queries} queries)",
        "rate",
        "set rate.prior to empirical-bayes or to a standard deviation",
        games.query_ids[q].tobytes().hex(),
        tuple(games.doc_ids[docs][i].tobytes().hex() for i in named),
    )


def _labels(games: Games, directed: bool) -> NDArray[np.int32]:
    first, second = games.global_ends()
    n = len(games.doc_ids)
    if directed:  # an edge from i to j where j took something from i
        took_first, took_second = games.w > 0.0, games.w < 1.0
        tail = np.concatenate([second[took_first], first[took_second]])
        head = np.concatenate([first[took_first], second[took_second]])
    else:
        tail, head = first, second
    graph = sparse.coo_array((np.ones(len(tail)), (tail, head)), shape=(n, n)).tocsr()
    return csgraph.connected_components(graph, directed=directed, connection="strong" if directed else "weak")[1]


def _renumber(games: Games, labels: NDArray[np.int32]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Labels to 0, 1, ... per query in order of first appearance, and their number per query."""
    _, first_seen, inverse = np.unique(labels, return_index=True, return_inverse=True)
    rank = np.empty(len(first_seen), dtype=np.int64)
    rank[np.argsort(first_seen)] = np.arange(len(first_seen))
    ordered = rank[inverse]  # documents of a query are contiguous, so are its ranks
    if not games.queries:
        return np.zeros(0, dtype=np.int32), np.zeros(0, dtype=np.int64)
    base = np.minimum.reduceat(ordered, games.doc_start[:-1])
    count = np.maximum.reduceat(ordered, games.doc_start[:-1]) - base + 1
    return (ordered - base[games.query_of_doc]).astype(np.int32), count


def deviance(games: Games, model: Model, m: Floats, latent: Floats) -> Floats:
    """2 Σ m [w log(w/F) + (1-w) log((1-w)/(1-F))] per query, F = F(e_i - e_j): zero for a perfect fit."""
    total = np.empty(games.queries)
    _deviance_all(
        MODEL_CODES[model], games.doc_start, games.game_start, games.first, games.second, games.w, m, latent, total
    )
    return total


def equal_ratings_p(games: Games, m: Floats, component_count: NDArray[np.int64]) -> Floats:
    """p-value per query of "all documents are equally good", by the score test at equal ratings.

    S = uᵀ L⁺ u, u_i = Σ m (2w - 1) (signed), L the Laplacian of the games weighted by m; under the hypothesis S is
    chi-squared with documents - components degrees of freedom, whatever the link. It is the deviance test to first
    order and keeps its level where games are few; the likelihood ratio itself rejects too often there, because a
    quarter as many parameters as games inflates it (Sur and Candès 2019).
    """
    statistic = np.empty(games.queries)
    _score_all(games.doc_start, games.game_start, games.first, games.second, games.w, m, statistic)
    return special.chdtrc(games.documents - component_count, statistic)


def lambda2(games: Games) -> Floats:
    """Algebraic connectivity per query: second smallest eigenvalue of the unweighted comparison graph's Laplacian.

    By the Lanczos method with full reorthogonalisation on the space of vectors that sum to zero; 0 if disconnected.
    """
    result = np.empty(games.queries)
    _lambda2_all(games.doc_start, games.game_start, games.first, games.second, result)
    return result


def spread(games: Games, latent: Floats) -> Floats:
    """Standard deviation of each query's (centred) ratings, latent units."""
    return np.sqrt(np.add.reduceat(latent * latent, games.doc_start[:-1]) / games.documents)


@compiled
def _deviance_all(model, doc_start, game_start, first, second, w, m, latent, total):
    for q in range(len(doc_start) - 1):
        start = doc_start[q]
        total[q] = 0.0
        for p in range(game_start[q], game_start[q + 1]):
            v = w[p]
            saturated = 0.0
            if 0.0 < v < 1.0:
                saturated = v * math.log(v) + (1.0 - v) * math.log(1.0 - v)
            x = latent[start + first[p]] - latent[start + second[p]]
            total[q] += 2.0 * m[p] * (saturated - game_log_likelihood(model, x, v))


@compiled
def _score_all(doc_start, game_start, first, second, w, m, statistic):
    for q in range(len(doc_start) - 1):
        n, g0, g1 = doc_start[q + 1] - doc_start[q], game_start[q], game_start[q + 1]
        u, x, none, diagonal, work = np.zeros(n), np.empty(n), np.zeros(n), np.empty(n), np.empty((4, n))
        for p in range(g0, g1):
            push = m[p] * (2.0 * w[p] - 1.0)
            u[first[p]] += push
            u[second[p]] -= push
        laplacian_diagonal(first[g0:g1], second[g0:g1], m[g0:g1], none, diagonal)
        conjugate_gradient(first[g0:g1], second[g0:g1], m[g0:g1], none, diagonal, u, 1e-6, x, work)
        statistic[q] = 0.0
        for i in range(n):
            statistic[q] += u[i] * x[i]


@compiled
def _lambda2_all(doc_start, game_start, first, second, result):
    for q in range(len(doc_start) - 1):
        g0, g1 = game_start[q], game_start[q + 1]
        result[q] = _lambda2(doc_start[q + 1] - doc_start[q], first[g0:g1], second[g0:g1])


@compiled
def _lambda2(n, first, second):
    """Smallest eigenvalue of one graph's Laplacian on the complement of the constant vector."""
    basis, alpha, beta = np.zeros((n, n)), np.zeros(n), np.zeros(n)
    for i in range(n):  # any vector with a part along every eigenvector will do
        basis[0, i] = math.sin(1.0 + i * i)
    _orthonormal(basis, 0)
    ritz = math.inf
    for k in range(n - 1):
        v, nxt = basis[k], basis[k + 1]
        for p in range(len(first)):
            flow = v[first[p]] - v[second[p]]
            nxt[first[p]] += flow
            nxt[second[p]] -= flow
        alpha[k] = dot(v, nxt)
        beta[k] = _orthonormal(basis, k + 1)
        last = k == n - 2 or beta[k] < 1e-9 * n
        if last or k % 8 == 7:
            found = _smallest_eigenvalue(alpha[: k + 1], beta[:k])
            if last or ritz - found < 1e-9 * n:
                return max(0.0, found) if found > 1e-9 * n else 0.0
            ritz = found
    return 0.0


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
