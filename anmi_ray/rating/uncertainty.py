"""Uncertainty from one factorisation per query of the posterior information A = Laplacian(m κ) + diag(τ).

A = Rᵀ R; with X = (Rᵀ)⁻¹, lower triangular, the covariance is Σ = Xᵀ X, and every number wanted is a sum over columns
of X: Σ is never formed. From it come standard errors of centred ratings, var(gap) to anchors, and log det A for the
prior. Both triangular loops add four rows at a time to a row, which a compiler vectorises; n³/3 multiplications in all.
A query of more than DENSE_DOCUMENTS documents is not factorised: each of its errors is one system solved by conjugate
gradient, which is slower and needs no n² of memory.
Letters: Q queries, D documents, P games, G gaps; n is one query's number of documents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.rating.games import Games, Longs
from anmi_ray.rating.solver import (
    Posterior,
    conjugate_gradient,
    dot,
    evaluate,
    largest,
    one_query,
    over_queries,
    workspace,
)
from anmi_ray.scale import Floats, compiled

DENSE_DOCUMENTS = 3000  # two matrices of this size take 144 MB
_RESIDUAL = 1e-7  # relative, of the systems of larger queries


@dataclass(frozen=True)
class Anchors:
    """What gaps are measured to: start int64[Q + 1] into position int32[A] (inside the query); known bool[Q]."""

    start: Longs
    position: NDArray[np.int32]
    known: NDArray[np.bool_]


@dataclass(frozen=True)
class Errors:
    """In latent units: std_err float64[D] of centred ratings; per gap (by anchor, then document) its size and error."""

    std_err: Floats
    gap_anchor: Longs
    gap_doc: Longs
    gap: Floats
    gap_se: Floats


def anchors(games: Games, latent: Floats) -> Anchors:
    """The known positives that were rated; in a query without one the top-rated document (ties: the smallest id)."""
    query = games.query_of_doc
    known = np.bincount(query[games.positive], minlength=games.queries) > 0
    best = np.full(games.queries, -np.inf)
    np.maximum.at(best, query, latent)
    top = np.flatnonzero(latent == best[query])
    top = top[np.unique(query[top], return_index=True)[1]]
    chosen = games.positive.copy()
    chosen[top[~known]] = True
    where = np.flatnonzero(chosen)
    counts = np.bincount(query[where], minlength=games.queries)
    start = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    return Anchors(start, (where - games.doc_start[query[where]]).astype(np.int32), known)


def errors(posterior: Posterior, latent: Floats, component: NDArray[np.int32], to: Anchors, threads: int = 1) -> Errors:
    """Standard errors of ratings centred per component, and gaps to the anchors with theirs.

    With C the centring per component, std_err_i² = (C Σ C)_ii and gap_se² = Σ_aa + Σ_ii - 2 Σ_ai, Σ = A⁻¹ from the
    information including the prior. Inside a component a gap is the difference of the exported ratings; across
    components it is the posterior's own, which only the prior informs.
    """
    games = posterior.games
    rows = np.diff(to.start) * (games.documents - 1)
    row_start = np.concatenate([[0], np.cumsum(rows)]).astype(np.int64)
    total = int(row_start[-1])
    std_err = np.empty(len(games.doc_ids))
    gaps = (np.empty(total, np.int64), np.empty(total, np.int64), np.empty(total), np.empty(total))
    flat = posterior.upward

    def part(begin: int, stop: int) -> None:
        given = (latent, component, to.start, to.position, row_start)
        _errors_all(posterior.likelihood, flat, begin, stop, *given, std_err, *gaps)

    over_queries(games, threads, part)
    return Errors(std_err, *gaps)


def game_variances(posterior: Posterior, latent: Floats, component: NDArray[np.int32], threads: int = 1) -> Floats:
    """Posterior variance of e_i - e_j for every game, float64[P], latent units squared."""
    variance = np.empty(len(posterior.games.w))
    flat = posterior.flat

    def part(begin: int, stop: int) -> None:
        _game_variances_all(posterior.likelihood, flat, begin, stop, latent, component, variance)

    over_queries(posterior.games, threads, part)
    return variance


@compiled
def _game_variances_all(like, flat, begin, stop, latent, component, variance):
    documents, games = largest(flat, begin, stop)
    work, root, inverse = workspace(documents, games), np.empty(documents**2), np.empty(documents**2)
    for q in range(begin, stop):
        docs = slice(flat.doc_start[q], flat.doc_start[q + 1])
        played = slice(flat.game_start[q], flat.game_start[q + 1])
        query, e = one_query(flat, q), latent[docs]
        x, _ = covariance_root(like, query, e, component[docs], work, root, inverse)
        gap_variances(np.ascontiguousarray(x.T), query.first, query.second, variance[played])


@compiled
def gap_variances(columns, first, second, variance):
    """Σ_ii + Σ_jj - 2 Σ_ij of every game [p], from the columns of X as rows [n, n], Σ = Xᵀ X."""
    for p in range(len(first)):
        i, j = min(first[p], second[p]), max(first[p], second[p])
        total = dot(columns[i, i:j], columns[i, i:j])
        for k in range(j, columns.shape[1]):
            d = columns[i, k] - columns[j, k]
            total += d * d
        variance[p] = total


@compiled
def _errors_all(
    like,
    flat,
    begin,
    stop,
    latent,
    component,
    anchor_start,
    anchor,
    row_start,
    std_err,
    gap_anchor,
    gap_doc,
    gap,
    gap_se,
):
    documents, games = largest(flat, begin, stop)
    work, dense = workspace(documents, games), min(documents, DENSE_DOCUMENTS)
    root, inverse = np.empty(dense * dense), np.empty(dense * dense)
    for q in range(begin, stop):
        d0, d1 = flat.doc_start[q], flat.doc_start[q + 1]
        e, c, n, query = latent[d0:d1], component[d0:d1], d1 - d0, one_query(flat, q)
        anchors_of = anchor[anchor_start[q] : anchor_start[q + 1]]
        rows = slice(row_start[q], row_start[q + 1])
        if n <= DENSE_DOCUMENTS:
            x, _ = covariance_root(like, query, e, c, work, root, inverse)
            _dense_errors(x, c, anchors_of, work, std_err[d0:d1], gap_se[rows])
        else:
            _solved_errors(like, query, e, c, anchors_of, work, std_err[d0:d1], gap_se[rows])
        row = row_start[q]
        for a in anchors_of:
            for i in range(n):
                if i != a:
                    gap_anchor[row], gap_doc[row], gap[row] = d0 + a, d0 + i, e[a] - e[i]
                    row += 1


@compiled
def _dense_errors(x, component, anchors_of, work, std_err, gap_se):
    """Errors of one query from X, gaps by anchor, then document."""
    n, row = len(std_err), 0
    variance, joint = work.rows[0, :n], work.rows[1, :n]
    _square_sums(x, variance)
    _centred_errors(x, variance, component, std_err)
    for a in anchors_of:
        covariances(x, a, joint)
        for i in range(n):
            if i != a:
                gap_se[row] = math.sqrt(max(0.0, variance[a] + variance[i] - 2.0 * joint[i]))
                row += 1


@compiled
def _solved_errors(like, query, e, component, anchors_of, work, std_err, gap_se):
    """The same without a matrix: vᵀ Σ v for every contrast v, by solving A u = v."""
    n, row = len(e), 0
    contrast, solution, diagonal = np.zeros(n), np.empty(n), work.rows[5, :n]
    evaluate(like, query, e, work.rows[1, :n], diagonal, work)
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
                contrast[a], contrast[i] = 1.0, -1.0
                conjugate_gradient(query, contrast, diagonal, _RESIDUAL, solution, work)
                gap_se[row] = math.sqrt(max(0.0, dot(contrast, solution)))
                row += 1


@compiled
def _square_sums(x, variance):
    """Σ_jj = Σ_i X_ij² into `variance` [n]."""
    for j in range(len(variance)):
        variance[j] = 0.0
    for i in range(len(variance)):
        row = x[i]
        for j in range(i + 1):
            variance[j] += row[j] * row[j]


@compiled
def covariances(x, a, joint):
    """Σ_aj = Σ_i X_ia X_ij into `joint` [n]."""
    for j in range(len(joint)):
        joint[j] = 0.0
    for i in range(a, len(joint)):
        row, factor = x[i], x[i, a]
        for j in range(i + 1):
            joint[j] += factor * row[j]


@compiled
def times_covariance(x, vector, out):
    """Σ vector = Xᵀ (X vector) into `out` [n]."""
    for j in range(len(out)):
        out[j] = 0.0
    for i in range(len(out)):
        row = x[i, : i + 1]
        factor = dot(row, vector[: i + 1])
        for j in range(i + 1):
            out[j] += factor * row[j]


@compiled
def _centred_errors(x, variance, component, std_err):
    """sqrt((C Σ C)_ii) = sqrt(Σ_ii - 2 (Σ1)_i / n_c + 1ᵀΣ1 / n_c²) per component c; Σ is zero between components."""
    n = len(variance)
    row, size, total = np.empty(n), np.zeros(n), np.zeros(n)
    times_covariance(x, np.ones(n), row)
    for i in range(n):
        size[component[i]] += 1.0
        total[component[i]] += row[i]
    for i in range(n):
        s = size[component[i]]
        value = variance[i] - 2.0 * row[i] / s + total[component[i]] / (s * s)
        std_err[i] = math.sqrt(max(0.0, value))


@compiled
def covariance_root(like, query, e, component, work, root, inverse):
    """(X, log det A) of one query at e, A⁻¹ = Xᵀ X, X lower triangular [n, n] in the memory of `inverse`.

    Without a prior A is singular along each component's shift; adding 11ᵀ per component fixes the shift and leaves
    every centred quantity and every gap inside the component as it is. `root`, `inverse`: float64[≥ n²].
    """
    n = len(e)
    a, x = root[: n * n].reshape(n, n), inverse[: n * n].reshape(n, n)
    evaluate(like, query, e, work.rows[1, :n], work.rows[5, :n], work)
    for i in range(n):
        for j in range(i, n):
            a[i, j] = 1.0 if query.precision[i] == 0.0 and component[i] == component[j] else 0.0
        a[i, i] += work.rows[5, i]
    for p in range(len(query.first)):
        a[min(query.first[p], query.second[p]), max(query.first[p], query.second[p])] -= work.curve[p]
    log_det = cholesky(a)
    inverse_lower(a, x)
    return x, log_det


@compiled
def cholesky(a):
    """Factor the upper triangle of `a` [n, n] in place into R, a = Rᵀ R; returns log det a."""
    n = len(a)
    log_det = 0.0
    for block in range(0, n, 4):
        stop = min(block + 4, n)
        for k in range(block, stop):
            row = a[k, k:]
            for above in range(block, k):
                factor, earlier = a[above, k], a[above, k:]
                for j in range(n - k):
                    row[j] -= factor * earlier[j]
            log_det += math.log(row[0])
            scale = 1.0 / math.sqrt(row[0])
            for j in range(n - k):
                row[j] *= scale
        for i in range(stop, n):  # only whole blocks have rows below them
            row, r0, r1, r2, r3 = a[i, i:], a[block, i:], a[block + 1, i:], a[block + 2, i:], a[block + 3, i:]
            f0, f1, f2, f3 = r0[0], r1[0], r2[0], r3[0]
            for j in range(n - i):
                row[j] -= f0 * r0[j] + f1 * r1[j] + f2 * r2[j] + f3 * r3[j]
    return log_det


@compiled
def inverse_lower(a, x):
    """X = (Rᵀ)⁻¹ into `x` [n, n], zeros above its diagonal, from R in the upper triangle of `a`."""
    n = len(a)
    for i in range(n):
        row = x[i]
        for j in range(n):
            row[j] = 0.0
        whole = i - i % 4
        for k in range(0, whole, 4):
            f0, f1, f2, f3 = a[k, i], a[k + 1, i], a[k + 2, i], a[k + 3, i]
            r0, r1, r2, r3 = x[k], x[k + 1], x[k + 2], x[k + 3]
            for j in range(k + 4):
                row[j] += f0 * r0[j] + f1 * r1[j] + f2 * r2[j] + f3 * r3[j]
        for k in range(whole, i):
            factor, earlier = a[k, i], x[k]
            for j in range(k + 1):
                row[j] += factor * earlier[j]
        scale = 1.0 / a[i, i]
        for j in range(i):
            row[j] *= -scale
        row[i] = scale
