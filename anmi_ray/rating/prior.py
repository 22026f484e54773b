"""The Gaussian prior of ratings: its spread σ0 by empirical Bayes, and a known positive's own prior.

σ0 matters more than anything else in a fit of few games. It maximises the marginal likelihood of all queries of a
sample, each by Laplace's approximation at its mode. A known positive is no average document: its prior is that of the
maximum of n draws, mean a·M(n)·σ0 and sd b·S(n)·σ0 with a = b = 1, or a and b fitted alike.
Letters: Q queries, D documents, P games.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import game_log_likelihood, game_skew
from anmi_ray.rating.solver import Posterior, dot, solve
from anmi_ray.rating.uncertainty import covariance_root, gap_variances
from anmi_ray.scale import MODEL_CODES, Floats, Model, compiled, normal_cdf, normal_pdf

SIGMA0_BOUNDS = (0.02, 50.0)
MEAN_FACTOR_BOUNDS = (0.0, 2.0)
SD_FACTOR_BOUNDS = (1.0, 4.0)  # narrower than a maximum's, a prior would decide a positive's rating, not the games
_GRADIENT_TOLERANCE = 3e-4  # per document and unit of log σ0: about as much of σ0, a tenth of its error at 100 k


@dataclass(frozen=True)
class PriorShape:
    """Prior of all documents, N(0, σ0²), and of known positives, N(a M(n, r) σ0, (b S(n, r) σ0)²).

    n is the query's number of rated documents, r of its rated positives; None for a, b: positives are like the rest.
    """

    sigma0: float
    mean_factor: float | None = 1.0
    sd_factor: float | None = 1.0


class Free(NamedTuple):
    """What empirical Bayes may move."""

    sigma0: bool = True
    mean_factor: bool = False
    sd_factor: bool = False


@dataclass(frozen=True)
class PriorFit:
    """A prior found by empirical Bayes, how well it explains the games, and whether it sits at a bound."""

    shape: PriorShape
    log_marginal: float
    evaluations: int
    at_bound: bool
    latent: Floats


def top_of_normals(n: int, r: int = 1) -> tuple[float, float]:
    """Mean and sd of a random one of the r largest of n standard normal draws; r = 1 is the maximum.

    Density (n/r) φ(x) P(Bin(n-1, 1-Φ(x)) ≤ r-1), integrated by the trapezoid rule.

    >>> [round(value, 2) for value in top_of_normals(100)], [round(value, 2) for value in top_of_normals(5, 5)]
    ([2.51, 0.43], [0.0, 1.0])
    """
    x = np.linspace(-9.0, 9.0, 3601)
    density = n / r * normal_pdf(x) * special.bdtr(r - 1, n - 1, normal_cdf(-x))
    mean = np.trapezoid(x * density, x)
    return float(mean), math.sqrt(float(np.trapezoid(np.square(x - mean) * density, x)))


class TopAndRest(NamedTuple):
    """Moments of n standard normal draws, float64[Q] each: the r largest, and the others once those are taken out."""

    top_mean: Floats
    top_sd: Floats
    rest_mean: Floats
    rest_sd: Floats


def top_and_rest(games: Games) -> TopAndRest:
    """Per query with r known positives among n documents; (0, 1, 0, 1) where there is none."""
    positives = np.add.reduceat(games.positive, games.doc_start[:-1], dtype=np.int64)
    pairs, index = np.unique(np.stack([games.documents, positives]), axis=1, return_inverse=True)
    return TopAndRest(*np.array([_top_and_rest(int(n), int(r)) for n, r in pairs.T])[index].T)


def _top_and_rest(n: int, r: int) -> tuple[float, float, float, float]:
    if r == 0:
        return 0.0, 1.0, 0.0, 1.0
    mean, sd = top_of_normals(n, r)
    if r == n:
        return mean, sd, 0.0, 1.0
    rest = -r * mean / (n - r)  # the draws' sum is zero on average, their sum of squares n
    return mean, sd, rest, math.sqrt((n - r * (mean * mean + sd * sd)) / (n - r) - rest * rest)


def prior_arrays(games: Games, shape: PriorShape) -> tuple[Floats, Floats]:
    """Prior mean and precision of every document, float64[D] each, in latent units."""
    documents = len(games.doc_ids)
    if shape.mean_factor is None or shape.sd_factor is None:
        return np.zeros(documents), np.full(documents, shape.sigma0**-2)
    moments, query = top_and_rest(games), games.query_of_doc
    mean = np.where(games.positive, moments.top_mean[query], moments.rest_mean[query]) * shape.mean_factor
    sd = np.where(games.positive, moments.top_sd[query] * shape.sd_factor, moments.rest_sd[query])
    return mean * shape.sigma0, (sd * shape.sigma0) ** -2


def log_marginal(
    games: Games, model: Model, m: Floats, shape: PriorShape, start: Floats | None = None
) -> tuple[float, Floats, Floats]:
    """(Σ_q log ∫ likelihood · prior, its gradient in (log σ0, a, log b), modes) by Laplace's approximation.

    log p ≈ ℓ(ê) - Σ τ (ê - μ)²/2 + ½ Σ log τ - ½ log det A, A = observed information + diag(τ). The gradient is exact
    for this approximation: through ê too, by the likelihood's third derivative.
    """
    mean, precision = prior_arrays(games, shape)
    posterior = Posterior(games, model, m, mean, precision)
    solution = solve(posterior, 1e-8, 100, start)
    value, by_mean, by_log_tau = np.zeros(games.queries), np.empty_like(mean), np.empty_like(mean)
    _marginal_all(
        MODEL_CODES[model],
        games.doc_start,
        games.game_start,
        games.first,
        games.second,
        games.w,
        m,
        mean,
        precision,
        solution.latent,
        value,
        by_mean,
        by_log_tau,
    )
    by_log_scale = float(by_mean @ mean)  # every prior mean is proportional to a σ0
    gradient = np.array([by_log_scale - 2.0 * by_log_tau.sum(), 0.0, -2.0 * by_log_tau[games.positive].sum()])
    if shape.mean_factor is not None:
        unit = prior_arrays(games, replace(shape, mean_factor=1.0))[0]
        gradient[1] = by_mean @ unit
    return float(value.sum()), gradient, solution.latent


def empirical_bayes(
    games: Games,
    model: Model,
    m: Floats,
    start: PriorShape,
    free: Free,
    latent: Floats | None = None,
) -> PriorFit:
    """Maximise `log_marginal` over what is `free` (L-BFGS-B), from `start` and, warm, from the modes `latent`."""
    free_3 = list(free)
    bounds = np.array([np.log(SIGMA0_BOUNDS), MEAN_FACTOR_BOUNDS, np.log(SD_FACTOR_BOUNDS)])[free_3]
    modes, documents = latent, len(games.doc_ids)

    def shape_at(theta: Floats) -> PriorShape:
        full = np.array([math.log(start.sigma0), start.mean_factor or 0.0, math.log(start.sd_factor or 1.0)])
        full[free_3] = theta
        if start.mean_factor is None:
            return PriorShape(math.exp(full[0]), None, None)
        return PriorShape(math.exp(full[0]), float(full[1]), math.exp(full[2]))

    def objective(theta: Floats) -> tuple[float, Floats]:
        nonlocal modes
        value, gradient, modes = log_marginal(games, model, m, shape_at(theta), modes)
        return -value / documents, -gradient[free_3] / documents

    first = np.array([math.log(start.sigma0), start.mean_factor or 0.0, math.log(start.sd_factor or 1.0)])[free_3]
    found = optimize.minimize(
        objective,
        np.clip(first, bounds[:, 0], bounds[:, 1]),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"gtol": _GRADIENT_TOLERANCE, "ftol": 1e-12, "maxiter": 100},
    )
    at_bound = bool(np.any((found.x <= bounds[:, 0]) | (found.x >= bounds[:, 1])))
    if modes is None:
        raise AssertionError("the optimiser evaluated nothing")
    return PriorFit(shape_at(found.x), -float(found.fun) * documents, int(found.nfev), at_bound, modes)


@compiled
def _marginal_all(
    model, doc_start, game_start, first, second, w, m, mean, precision, latent, value, by_mean, by_log_tau
):
    for q in range(len(doc_start) - 1):
        d0, d1, g0, g1 = doc_start[q], doc_start[q + 1], game_start[q], game_start[q + 1]
        value[q] = _marginal(
            model,
            first[g0:g1],
            second[g0:g1],
            w[g0:g1],
            m[g0:g1],
            mean[d0:d1],
            precision[d0:d1],
            latent[d0:d1],
            by_mean[d0:d1],
            by_log_tau[d0:d1],
        )


@compiled
def _marginal(model, first, second, w, m, mean, precision, e, by_mean, by_log_tau):
    """Log marginal likelihood of one query at its mode e; its derivatives in each prior mean and log precision [n]."""
    n = len(e)
    upper, log_det = covariance_root(model, first, second, w, m, precision, e, np.zeros(n, np.int32))
    gap_variance, force = np.empty(len(first)), np.zeros(n)
    gap_variances(upper, first, second, gap_variance)
    value = -0.5 * log_det
    for p in range(len(first)):  # force = ∂(-½ log det A)/∂e
        i, j = first[p], second[p]
        x = e[i] - e[j]
        value += m[p] * game_log_likelihood(model, x, w[p])
        push = -0.5 * m[p] * game_skew(model, x, w[p]) * gap_variance[p]
        force[i] += push
        force[j] -= push
    along = np.zeros(n)  # Uᵀ force; Σ force = U (Uᵀ force) is how the mode's motion feels it
    for i in range(n):
        for k in range(i, n):
            along[k] += upper[i, k] * force[i]
    for i in range(n):
        shift = dot(upper[i, i:], along[i:])
        off, tau = e[i] - mean[i], precision[i]
        value += 0.5 * math.log(tau) - 0.5 * tau * off * off
        by_mean[i] = tau * (off + shift)
        by_log_tau[i] = 0.5 - tau * (0.5 * (off * off + dot(upper[i, i:], upper[i, i:])) + shift * off)
    return value
