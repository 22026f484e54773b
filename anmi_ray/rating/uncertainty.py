"""Standard errors of ratings and gaps, from a Gaussian approximation of the posterior.

From one factorisation per query come standard errors of centred ratings and var(gap) to anchors. A query of more than
DENSE_DOCUMENTS documents is not factorised: each of its errors is one system solved by conjugate gradient, which is
slower and needs no n² of memory.
Letters: Q queries, D documents, P games, G gaps; n is one query's number of documents.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.arrays import Flags
from anmi_ray.core.scale import Floats
from anmi_ray.rating.conjugate_gradient import (
    conjugate_gradient,
    covariance_root,
    covariances,
    dot,
    gap_variances,
    square_sums,
    times_covariance,
)
from anmi_ray.rating.games import Games, Longs
from anmi_ray.rating.gaussian import DENSE_DOCUMENTS, Gaussian
from anmi_ray.rating.likelihood import compiled
from anmi_ray.rating.solver import Posterior, gather, largest, one_query, over_queries, workspace

_RESIDUAL = 1e-7  # relative, of the systems of queries that are not factorised


class GapAnchors(NamedTuple):
    """What gaps are measured to: start int64[Q + 1] into position int32[A] (inside the query); known bool[Q]."""

    start: Longs
    position: NDArray[np.int32]
    known: NDArray[np.bool_]


class Errors(NamedTuple):
    """In latent units: std_err float64[D] of centred ratings; per gap (by anchor, then document) its size and error."""

    std_err: Floats
    gap_anchor: Longs
    gap_doc: Longs
    gap: Floats
    gap_se: Floats


def anchors(games: Games, latent: Floats, top: int = 1, confirmed: Flags | None = None) -> GapAnchors:
    """The known positives that were rated; in a query without one its `top` best documents (ties: smaller ids), and
    those that are `confirmed` bool[D].
    """
    query = games.query_of_doc
    has_positive = np.bincount(query[games.positive], minlength=games.queries) > 0
    best = np.lexsort((-latent, query))
    rank = np.arange(len(best)) - games.doc_start[query]  # sorting left every query's documents in their rows
    chosen = games.positive.copy()
    chosen[best[(rank < top) & ~has_positive[query]]] = True
    if confirmed is not None:
        chosen |= confirmed & ~has_positive[query]
    where = np.flatnonzero(chosen)
    counts = np.bincount(query[where], minlength=games.queries)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return GapAnchors(start, (where - games.doc_start[query[where]]).astype(np.int32), has_positive)


def errors(approximation: Gaussian, component: NDArray[np.int32], to: GapAnchors, threads: int = 1) -> Errors:
    """Standard errors of ratings centred per component, and gaps to the anchors with theirs.

    With C the centring per component, std_err_i² = (C Σ C)_ii and gap_se² = Σ_aa + Σ_ii - 2 Σ_ai, Σ = A⁻¹ of the
    approximation, the prior included. Inside a component a gap is the difference of the exported ratings; across
    components it is the posterior's own, which only the prior informs.
    """
    posterior = approximation.posterior
    games = approximation.posterior.games
    flat = posterior.upward
    weight = approximation.weight[posterior.upward_order]
    rows = np.diff(to.start) * (games.documents - 1)
    row_start = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    total = int(row_start[-1])
    gap_anchor, gap_doc = np.empty((2, total), np.int64)
    result = Errors(np.empty(len(games.doc_ids)), gap_anchor, gap_doc, *np.empty((2, total)))

    def part(begin: int, stop: int) -> None:
        _errors_all(flat, begin, stop, approximation.mean, weight, component, to, row_start, result)

    over_queries(games, threads, part)
    return result


def game_variances(posterior: Posterior, weight: Floats, component: NDArray[np.int32], threads: int = 1) -> Floats:
    """Variance of e_i - e_j of every game, float64[P], latent units squared, where games weigh `weight` float64[P]."""
    games = posterior.games
    flat = posterior.flat
    variance = np.empty(len(games.w))

    def part(begin: int, stop: int) -> None:
        _game_variances_all(flat, begin, stop, weight, component, variance)

    over_queries(games, threads, part)
    return variance


@compiled
def _game_variances_all(flat, begin, stop, weight, component, variance):
    documents, _ = largest(flat, begin, stop)
    root = np.empty(documents**2)
    inverse = np.empty(documents**2)
    for q in range(begin, stop):
        docs = slice(flat.doc_start[q], flat.doc_start[q + 1])
        played = slice(flat.game_start[q], flat.game_start[q + 1])
        query = one_query(flat, q)
        x, _ = covariance_root(query, weight[played], component[docs], root, inverse)
        gap_variances(np.ascontiguousarray(x.T), query.first, query.second, variance[played])


@compiled
def _errors_all(flat, begin, stop, latent, weight, component, to, row_start, result):
    documents, games = largest(flat, begin, stop)
    work = workspace(documents, games)
    dense = min(documents, DENSE_DOCUMENTS)
    root = np.empty(dense * dense)
    inverse = np.empty(dense * dense)
    for q in range(begin, stop):
        d0 = flat.doc_start[q]
        d1 = flat.doc_start[q + 1]
        e = latent[d0:d1]
        c = component[d0:d1]
        n = d1 - d0
        query = one_query(flat, q)
        anchors_of = to.position[to.start[q] : to.start[q + 1]]
        rows = slice(row_start[q], row_start[q + 1])
        own = weight[flat.game_start[q] : flat.game_start[q + 1]]
        if n <= DENSE_DOCUMENTS:
            x, _ = covariance_root(query, own, c, root, inverse)
            _dense_errors(x, c, anchors_of, work, result.std_err[d0:d1], result.gap_se[rows])
        else:
            _solved_errors(query, own, c, anchors_of, work, result.std_err[d0:d1], result.gap_se[rows])
        row = row_start[q]
        for a in anchors_of:
            for i in range(n):
                if i != a:
                    result.gap_anchor[row] = d0 + a
                    result.gap_doc[row] = d0 + i
                    result.gap[row] = e[a] - e[i]
                    row += 1


@compiled
def _dense_errors(x, component, anchors_of, work, std_err, gap_se):
    """Errors of one query from X, gaps by anchor, then document."""
    n = len(std_err)
    row = 0
    variance = work.rows[0, :n]
    joint = work.rows[1, :n]
    square_sums(x, variance)
    _centred_errors(x, variance, component, std_err)
    for a in anchors_of:
        covariances(x, a, joint)
        for i in range(n):
            if i != a:
                gap_se[row] = math.sqrt(max(0.0, variance[a] + variance[i] - 2.0 * joint[i]))
                row += 1


@compiled
def _solved_errors(query, weight, component, anchors_of, work, std_err, gap_se):
    """The same without a matrix: vᵀ Σ v for every contrast v, by solving A u = v."""
    n = len(std_err)
    row = 0
    contrast = np.zeros(n)
    solution = np.empty(n)
    diagonal = work.rows[5, :n]
    for p in range(len(weight)):
        work.curve[p] = weight[p]
        work.push[p] = 0.0
    gather(query, work, work.rows[1, :n], diagonal)
    for i in range(n):
        diagonal[i] += query.precision[i]
    size = np.zeros(n)
    for i in range(n):
        size[component[i]] += 1.0
    for i in range(n):
        for j in range(n):
            contrast[j] = -1.0 / size[component[i]] if component[j] == component[i] else 0.0
        contrast[i] += 1.0
        conjugate_gradient(query, contrast, diagonal, _RESIDUAL, solution, work)
        std_err[i] = math.sqrt(max(0.0, dot(contrast, solution)))
    for a in anchors_of:
        for i in range(n):
            if i != a:
                contrast[:] = 0.0
                contrast[a] = 1.0
                contrast[i] = -1.0
                conjugate_gradient(query, contrast, diagonal, _RESIDUAL, solution, work)
                gap_se[row] = math.sqrt(max(0.0, dot(contrast, solution)))
                row += 1


@compiled
def _centred_errors(x, variance, component, std_err):
    """sqrt((C Σ C)_ii) = sqrt(Σ_ii - 2 (Σ1)_i / n_c + 1ᵀΣ1 / n_c²) per component c; Σ is zero between components."""
    n = len(variance)
    row = np.empty(n)
    size = np.zeros(n)
    total = np.zeros(n)
    times_covariance(x, np.ones(n), row)
    for i in range(n):
        size[component[i]] += 1.0
        total[component[i]] += row[i]
    for i in range(n):
        s = size[component[i]]
        value = variance[i] - 2.0 * row[i] / s + total[component[i]] / (s * s)
        std_err[i] = math.sqrt(max(0.0, value))
