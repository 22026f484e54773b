"""The solver: Newton on the observed posterior information, inner systems by preconditioned conjugate gradient.

All queries of a bucket are fitted by one compiled call over flat arrays (`Games`), without the GIL and without a
Python object per query. The posterior of a query is concave: log-likelihood plus a Gaussian prior per document,
Σ -τ_i (e_i - μ_i)²/2. A comparison graph is an expander, so conjugate gradient needs a handful of products.
Letters: Q queries, D documents, P games; n and p are one query's.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import game_terms
from anmi_ray.scale import MODEL_CODES, Floats, Model, compiled

_OVERSHOOT = 0.5  # a step is cut where the slope along it has turned to less than -0.5 of its start
_FORCING = 0.1  # relative residual at which conjugate gradient stops, tightened as Newton converges


@dataclass(frozen=True)
class Posterior:
    """What is being fitted: a likelihood with strengths m float64[P] and a Gaussian prior (mean, precision float64[D]).

    A precision of zero everywhere is plain maximum likelihood; ratings are then free up to a shift per component.
    """

    games: Games
    model: Model
    m: Floats
    prior_mean: Floats
    prior_precision: Floats


@dataclass(frozen=True)
class Solution:
    """Modes of all queries: latent float64[D] (not centred), and per query how they were obtained."""

    latent: Floats
    iterations: NDArray[np.int32]
    gradient_norm: Floats
    converged: NDArray[np.bool_]


def solve(posterior: Posterior, tolerance: float, max_iterations: int, start: Floats | None = None) -> Solution:
    """Maximise every query's posterior, from zero or from `start` (float64[D]).

    Converged: |gradient_i| ≤ tolerance · (games of document i), for every document. `gradient_norm` is the largest
    such ratio. A query that does not get there is flagged, not raised.
    """
    games = posterior.games
    latent = np.zeros(len(games.doc_ids)) if start is None else start.copy()
    iterations = np.zeros(games.queries, dtype=np.int32)
    gradient_norm = np.zeros(games.queries)
    _solve_all(
        MODEL_CODES[posterior.model],
        games.doc_start,
        games.game_start,
        games.first,
        games.second,
        games.w,
        posterior.m,
        posterior.prior_mean,
        posterior.prior_precision,
        tolerance,
        max_iterations,
        latent,
        iterations,
        gradient_norm,
    )
    return Solution(latent, iterations, gradient_norm, gradient_norm <= tolerance)


@compiled
def _solve_all(
    model, doc_start, game_start, first, second, w, m, mean, precision, tolerance, max_iterations, latent, its, norm
):
    for q in range(len(doc_start) - 1):
        d0, d1, g0, g1 = doc_start[q], doc_start[q + 1], game_start[q], game_start[q + 1]
        its[q], norm[q] = newton(
            model,
            first[g0:g1],
            second[g0:g1],
            w[g0:g1],
            m[g0:g1],
            mean[d0:d1],
            precision[d0:d1],
            tolerance,
            max_iterations,
            latent[d0:d1],
        )


@compiled
def newton(model, first, second, w, m, mean, precision, tolerance, max_iterations, e):
    """Fit one query in place in `e`; returns (iterations, gradient norm)."""
    n = len(e)
    games = np.zeros(n)
    grad, grad_new, diagonal, step, trial = np.empty(n), np.empty(n), np.empty(n), np.empty(n), np.empty(n)
    curvature, curvature_new = np.empty(len(first)), np.empty(len(first))
    work = np.empty((4, n))
    for p in range(len(first)):
        games[first[p]] += m[p]
        games[second[p]] += m[p]
    evaluate(model, first, second, w, m, mean, precision, e, grad, curvature)
    norm = _relative_norm(grad, games)
    start_norm = norm
    for iteration in range(max_iterations):
        if norm <= tolerance:
            return iteration, norm
        laplacian_diagonal(first, second, curvature, precision, diagonal)
        forcing = min(_FORCING, np.sqrt(norm / start_norm))
        conjugate_gradient(first, second, curvature, precision, diagonal, grad, forcing, step, work)
        slope = dot(grad, step)
        length = 1.0
        for _ in range(30):
            for i in range(n):
                trial[i] = e[i] + length * step[i]
            evaluate(model, first, second, w, m, mean, precision, trial, grad_new, curvature_new)
            slope_new = dot(grad_new, step)
            if slope_new >= -_OVERSHOOT * slope:
                break
            length *= slope / (slope - slope_new)  # secant to the maximum along the step
        for i in range(n):
            e[i] = trial[i]
        grad, grad_new = grad_new, grad
        curvature, curvature_new = curvature_new, curvature
        norm = _relative_norm(grad, games)
    return max_iterations, norm


@compiled
def evaluate(model, first, second, w, m, mean, precision, e, grad, curvature):
    """Gradient [n] of the log posterior at e, and m times the observed curvature of every game [p]."""
    for i in range(len(e)):
        grad[i] = -precision[i] * (e[i] - mean[i])
    for p in range(len(first)):
        i, j = first[p], second[p]
        g, c = game_terms(model, e[i] - e[j], w[p])
        g *= m[p]
        curvature[p] = m[p] * c
        grad[i] += g
        grad[j] -= g


@njit(cache=True, error_model="numpy", fastmath={"reassoc", "contract"})
def dot(x, y):
    """Σ x_i y_i; the reordering that vectorises it is fixed at compile time, so runs agree."""
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@compiled
def _relative_norm(grad, games):
    worst = 0.0
    for i in range(len(grad)):
        worst = max(worst, abs(grad[i]) / games[i])
    return worst


@compiled
def laplacian_diagonal(first, second, weight, precision, diagonal):
    """Diagonal of Laplacian(weight) + diag(precision), into `diagonal`."""
    for i in range(len(diagonal)):
        diagonal[i] = precision[i]
    for p in range(len(first)):
        diagonal[first[p]] += weight[p]
        diagonal[second[p]] += weight[p]


@compiled
def conjugate_gradient(first, second, weight, precision, diagonal, rhs, forcing, x, work):
    """Solve (Laplacian(weight) + diag(precision)) x = rhs from zero, Jacobi-preconditioned, to a relative residual.

    Without a prior the system is singular but consistent (rhs sums to zero per component), which the method bears.
    """
    r, z, d, product = work[0], work[1], work[2], work[3]
    rz = 0.0
    for i in range(len(x)):
        x[i] = 0.0
        r[i] = rhs[i]
        z[i] = r[i] / diagonal[i]
        d[i] = z[i]
        rz += r[i] * z[i]
    goal = forcing * forcing * rz
    for _ in range(4 * len(x)):
        if rz <= goal or rz <= 0.0:
            break
        for i in range(len(x)):
            product[i] = precision[i] * d[i]
        for p in range(len(first)):
            i, j = first[p], second[p]
            flow = weight[p] * (d[i] - d[j])
            product[i] += flow
            product[j] -= flow
        scale = rz / dot(d, product)
        rz_new = 0.0
        for i in range(len(x)):
            x[i] += scale * d[i]
            r[i] -= scale * product[i]
            z[i] = r[i] / diagonal[i]
            rz_new += r[i] * z[i]
        ratio = rz_new / rz
        for i in range(len(x)):
            d[i] = z[i] + ratio * d[i]
        rz = rz_new
