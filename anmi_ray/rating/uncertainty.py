"""Uncertainty from one factorisation per query of the observed posterior information A = Laplacian(m κ) + diag(τ).

A = L Lᵀ; with U = (L⁻¹)ᵀ the covariance is Σ = U Uᵀ, and every number wanted is a product of rows of U: Σ is never
formed. From it come standard errors of centred ratings, var(gap) to anchors, and log det A for the prior.
Letters: Q queries, D documents, P games, G gaps; n is one query's number of documents.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from anmi_ray.rating.games import Games, Longs
from anmi_ray.rating.likelihood import game_terms
from anmi_ray.rating.solver import Posterior, dot
from anmi_ray.scale import MODEL_CODES, Floats, compiled


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


def errors(posterior: Posterior, latent: Floats, component: NDArray[np.int32], to: Anchors) -> Errors:
    """Standard errors of ratings centred per component, and gaps to the anchors with theirs.

    With C the centring per component, std_err_i² = (C Σ C)_ii and gap_se² = Σ_aa + Σ_ii - 2 Σ_ai, Σ = A⁻¹ from the
    observed information including the prior. Inside a component a gap is the difference of the exported ratings;
    across components it is the posterior's own, which only the prior informs.
    """
    games = posterior.games
    sizes = games.documents
    total = int(np.sum(np.diff(to.start) * (sizes - 1)))
    std_err = np.empty(len(games.doc_ids))
    gap_anchor, gap_doc = np.empty(total, dtype=np.int64), np.empty(total, dtype=np.int64)
    gap, gap_se = np.empty(total), np.empty(total)
    _errors_all(
        MODEL_CODES[posterior.model],
        games.doc_start,
        games.game_start,
        games.first,
        games.second,
        games.w,
        posterior.m,
        posterior.prior_precision,
        latent,
        component,
        to.start,
        to.position,
        std_err,
        gap_anchor,
        gap_doc,
        gap,
        gap_se,
    )
    return Errors(std_err, gap_anchor, gap_doc, gap, gap_se)


def game_variances(posterior: Posterior, latent: Floats, component: NDArray[np.int32]) -> Floats:
    """Posterior variance of e_i - e_j for every game, float64[P], latent units squared."""
    games = posterior.games
    variance = np.empty(len(games.w))
    _game_variances_all(
        MODEL_CODES[posterior.model],
        games.doc_start,
        games.game_start,
        games.first,
        games.second,
        games.w,
        posterior.m,
        posterior.prior_precision,
        latent,
        component,
        variance,
    )
    return variance


@compiled
def _game_variances_all(model, doc_start, game_start, first, second, w, m, precision, latent, component, variance):
    for q in range(len(doc_start) - 1):
        d0, d1, g0, g1 = doc_start[q], doc_start[q + 1], game_start[q], game_start[q + 1]
        i, j = first[g0:g1], second[g0:g1]
        upper, _ = covariance_root(model, i, j, w[g0:g1], m[g0:g1], precision[d0:d1], latent[d0:d1], component[d0:d1])
        gap_variances(upper, i, j, variance[g0:g1])


@compiled
def gap_variances(upper, first, second, variance):
    """Σ_ii + Σ_jj - 2 Σ_ij of every game [p], from U [n, n] with Σ = U Uᵀ."""
    for p in range(len(first)):
        i, j = min(first[p], second[p]), max(first[p], second[p])
        total = 0.0
        for k in range(i, j):
            total += upper[i, k] * upper[i, k]
        for k in range(j, upper.shape[1]):
            d = upper[i, k] - upper[j, k]
            total += d * d
        variance[p] = total


@compiled
def _errors_all(
    model,
    doc_start,
    game_start,
    first,
    second,
    w,
    m,
    precision,
    latent,
    component,
    anchor_start,
    anchor,
    std_err,
    gap_anchor,
    gap_doc,
    gap,
    gap_se,
):
    row = 0
    for q in range(len(doc_start) - 1):
        d0, d1, g0, g1 = doc_start[q], doc_start[q + 1], game_start[q], game_start[q + 1]
        e, c = latent[d0:d1], component[d0:d1]
        upper, _ = covariance_root(model, first[g0:g1], second[g0:g1], w[g0:g1], m[g0:g1], precision[d0:d1], e, c)
        n = d1 - d0
        variance = np.empty(n)
        for i in range(n):
            variance[i] = dot(upper[i, i:], upper[i, i:])
        _centred_errors(upper, variance, c, std_err[d0:d1])
        for a in anchor[anchor_start[q] : anchor_start[q + 1]]:
            for i in range(n):
                if i == a:
                    continue
                k = max(a, i)
                gap_anchor[row], gap_doc[row] = d0 + a, d0 + i
                gap[row] = e[a] - e[i]
                gap_se[row] = math.sqrt(max(0.0, variance[a] + variance[i] - 2.0 * dot(upper[a, k:], upper[i, k:])))
                row += 1


@compiled
def _centred_errors(upper, variance, component, std_err):
    """sqrt((C Σ C)_ii) = sqrt(Σ_ii - 2 (Σ1)_i / n_c + 1ᵀΣ1 / n_c²) per component c; Σ is zero between components."""
    n = len(variance)
    sums, row = np.zeros(n), np.empty(n)
    for k in range(n):  # Uᵀ 1, then U (Uᵀ 1)
        for i in range(k + 1):
            sums[k] += upper[i, k]
    size, total = np.zeros(n), np.zeros(n)
    for i in range(n):
        row[i] = dot(upper[i, i:], sums[i:])
        size[component[i]] += 1.0
        total[component[i]] += row[i]
    for i in range(n):
        s = size[component[i]]
        value = variance[i] - 2.0 * row[i] / s + total[component[i]] / (s * s)
        std_err[i] = math.sqrt(max(0.0, value))


@compiled
def covariance_root(model, first, second, w, m, precision, e, component):
    """(U, log det A) with A⁻¹ = U Uᵀ, U upper triangular [n, n], A the posterior information of one query at e.

    Without a prior A is singular along each component's shift; adding 11ᵀ per component fixes the shift and leaves
    every centred quantity and every gap inside the component as it is.
    """
    n = len(e)
    a = np.zeros((n, n))
    for i in range(n):
        a[i, i] = precision[i]
    for p in range(len(first)):
        i, j = first[p], second[p]
        c = m[p] * game_terms(model, e[i] - e[j], w[p])[1]
        a[i, i] += c
        a[j, j] += c
        if i < j:
            a[j, i] -= c
        else:
            a[i, j] -= c
    for i in range(n):
        for j in range(i + 1):
            if precision[i] == 0.0 and component[i] == component[j]:
                a[i, j] += 1.0
    log_det = cholesky(a)
    return inverse_transposed(a), log_det


@compiled
def cholesky(a):
    """Factor the lower triangle of `a` [n, n] in place into L, a = L Lᵀ; returns log det a."""
    log_det = 0.0
    for i in range(len(a)):
        for j in range(i):
            a[i, j] = (a[i, j] - dot(a[i, :j], a[j, :j])) / a[j, j]
        pivot = a[i, i] - dot(a[i, :i], a[i, :i])
        log_det += math.log(pivot)
        a[i, i] = math.sqrt(pivot)
    return log_det


@compiled
def inverse_transposed(lower):
    """U = (L⁻¹)ᵀ, upper triangular with contiguous rows: U[i, k] = L⁻¹[k, i]."""
    n = len(lower)
    upper = np.zeros((n, n))
    for i in range(n):
        upper[i, i] = 1.0 / lower[i, i]
        for k in range(i + 1, n):
            upper[i, k] = -dot(lower[k, i:k], upper[i, i:k]) / lower[k, k]
    return upper
