"""What to look at before trusting a fit: components, separation, deviance, and a test for no difference.

The graph's own facts, which need no fit, are in `graph`.
Letters: Q queries, D documents, P games.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import sparse, special
from scipy.sparse import csgraph

from anmi_ray.core.errors import NoMaximumError
from anmi_ray.core.scale import Floats
from anmi_ray.rating.conjugate_gradient import conjugate_gradient, dot
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import BRADLEY_TERRY, compiled, game_log_likelihood, outcome_moments, shares
from anmi_ray.rating.solver import Posterior, gather, largest, one_query, over_queries, workspace


@dataclass(frozen=True)
class Components:
    """component int32[D], numbered from 0 inside each query by first document; count int64[Q]."""

    component: NDArray[np.int32]
    count: NDArray[np.int64]


def components(games: Games) -> Components:
    """Connected components of every query's comparison graph."""
    labels = _labels(games, directed=False)
    return Components(*_renumber(games, labels))


def without_maximum(games: Games) -> NDArray[np.int64]:
    """Queries (positions) where plain maximum likelihood has no finite unique maximum.

    It has one exactly if every document can be reached from every other by steps from loser to winner (Ford 1957):
    the graph with an edge i -> j wherever j took something from i is strongly connected.
    """
    _, strong_count = _renumber(games, _labels(games, directed=True))
    return np.flatnonzero(strong_count > 1)


def refuse_without_maximum(games: Games) -> None:
    """Raise NoMaximumError where plain maximum likelihood has no finite unique maximum, naming query and documents."""
    bad = without_maximum(games)
    if not len(bad):
        return
    weak = components(games)
    q = int(bad[0])
    docs = slice(int(games.doc_start[q]), int(games.doc_start[q + 1]))
    if weak.count[q] > 1:
        what = "comparisons do not connect the documents"
        group = weak.component[docs]
    else:
        strong, _ = _renumber(games, _labels(games, directed=True))
        what = "some documents won or lost everything against the others (separation)"
        group = strong[docs]
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
        took_first = games.w > 0.0
        took_second = games.w < 1.0
        tail = np.concatenate([second[took_first], first[took_second]])
        head = np.concatenate([first[took_first], second[took_second]])
    else:
        tail = first
        head = second
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


def deviance(posterior: Posterior, latent: Floats) -> Floats:
    """2 Σ m [ℓ of a model that predicts every game's shares - ℓ] per query: zero for a perfect fit."""
    total = np.empty(posterior.games.queries)
    _deviance_all(posterior.likelihood, posterior.flat, latent, total)
    return total


def equal_ratings_p(posterior: Posterior, component_count: NDArray[np.int64], threads: int = 1) -> Floats:
    """p-value per query of "all documents are equally good", by the score test at equal ratings.

    S = uᵀ L⁺ u / 4V, u_i = Σ m (2w - 1) (signed), L the Laplacian of the games weighted by m, V the variance of an
    answer between equal documents, 1/4 where ties have no model of their own; under the hypothesis S is chi-squared
    with documents - components degrees of freedom, whatever the link. It is the deviance test to first
    order and keeps its level where games are few; the likelihood ratio itself rejects too often there, because a
    quarter as many parameters as games inflates it (Sur and Candès 2019).
    """
    games = posterior.games
    statistic = np.empty(games.queries)
    flat = posterior.upward
    over_queries(games, threads, lambda begin, stop: _score_all(flat, begin, stop, statistic))
    variance = outcome_moments(posterior.likelihood, 0.0)[1]
    return special.chdtrc(games.documents - component_count, statistic / (4.0 * variance))


def spread(games: Games, latent: Floats) -> Floats:
    """Standard deviation of each query's (centred) ratings, latent units."""
    return np.sqrt(np.add.reduceat(latent * latent, games.doc_start[:-1]) / games.documents)


@compiled
def _deviance_all(like, flat, latent, total):
    for q in range(len(flat.doc_start) - 1):
        query = one_query(flat, q)
        e = latent[flat.doc_start[q] : flat.doc_start[q + 1]]
        total[q] = 0.0
        for p in range(len(query.first)):
            w = query.w[p]
            x = e[query.first[p]] - e[query.second[p]] + query.offset[p]
            best = _saturated(like, w)
            total[q] += 2.0 * query.m[p] * (best - game_log_likelihood(like, x, w))


@compiled
def _saturated(like, w):
    """Log-likelihood of a model that predicts exactly this game."""
    if like.kind <= BRADLEY_TERRY:
        return _x_log_x(w) + _x_log_x(1.0 - w)
    win, tie, loss = shares(w)
    return _x_log_x(win) + _x_log_x(tie) + _x_log_x(loss)


@compiled
def _x_log_x(x):
    return x * math.log(x) if x > 0.0 else 0.0


@compiled
def _score_all(flat, begin, stop, statistic):
    documents, games = largest(flat, begin, stop)
    work = workspace(documents, games)
    pushes = np.empty(documents)
    solutions = np.empty(documents)
    for q in range(begin, stop):
        query = one_query(flat, q)
        n = flat.doc_start[q + 1] - flat.doc_start[q]
        u = pushes[:n]
        x = solutions[:n]
        diagonal = work.rows[5, :n]
        for p in range(len(query.m)):
            work.push[p] = query.m[p] * (2.0 * query.w[p] - 1.0)
            work.curve[p] = query.m[p]
        gather(query, work, u, diagonal)
        conjugate_gradient(query, u, diagonal, 1e-6, x, work)
        statistic[q] = dot(u, x)
