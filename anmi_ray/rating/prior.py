"""The Gaussian prior of ratings: its spread σ0 by empirical Bayes, and a known positive's own prior.

σ0 matters more than anything else in a fit of few games. It maximises the marginal likelihood of all queries of a
sample, each by Laplace's approximation at its mode. A known positive has a separate prior, that of the
maximum of n draws, mean a·M(n)·σ0 and sd b·S(n)·σ0 with a = b = 1, or a and b fitted alike.
Letters: Q queries, D documents, P games.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from scipy import optimize, special

from anmi_ray.core.scale import Floats, normal_cdf, normal_pdf
from anmi_ray.rating.conjugate_gradient import covariance_root, dot, gap_variances, times_covariance
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import Likelihood, compiled, game_log_likelihood, game_skew, game_terms, terms
from anmi_ray.rating.solver import Posterior, largest, one_query, over_queries, solve, workspace

SIGMA0_BOUNDS = (0.02, 50.0)
MEAN_FACTOR_BOUNDS = (0.0, 2.0)
SD_FACTOR_BOUNDS = (1.0, 4.0)  # narrower than a maximum's, a prior would decide a positive's rating, not the games
OFFSET_BOUNDS = (-5.0, 5.0)
_START = 0.1  # least σ0 that a search begins from: near 0 the gradient in log σ0 vanishes whatever the games say
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
    offsets: bool = False


@dataclass(frozen=True)
class PriorFit:
    """A prior found by empirical Bayes, how well it explains the games, and whether it sits at a bound.

    `offsets` float64[J], one per judge, were fitted with it where `Free` says so.
    """

    shape: PriorShape | None
    log_marginal: float
    evaluations: int
    at_bound: bool
    latent: Floats
    offsets: Floats


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
    """Return the moments per query with r known positives among n documents; (0, 1, 0, 1) without any."""
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


def prior_arrays(games: Games, shape: PriorShape | None) -> tuple[Floats, Floats]:
    """Prior mean and precision of every document, float64[D] each, in latent units; zero without a prior."""
    documents = len(games.doc_ids)
    if shape is None:
        return np.zeros(documents), np.zeros(documents)
    if shape.mean_factor is None or shape.sd_factor is None:
        return np.zeros(documents), np.full(documents, shape.sigma0**-2)
    moments = top_and_rest(games)
    query = games.query_of_doc
    mean = np.where(games.positive, moments.top_mean[query], moments.rest_mean[query]) * shape.mean_factor
    sd = np.where(games.positive, moments.top_sd[query] * shape.sd_factor, moments.rest_sd[query])
    return mean * shape.sigma0, (sd * shape.sigma0) ** -2


@dataclass(frozen=True)
class Marginal:
    """Log marginal likelihood of all queries, its gradients, and the modes float64[D].

    by_shape: in (log σ0, a, log b) of the prior; by_offset float64[P]: in each game's offset.
    """

    value: float
    by_shape: Floats
    by_offset: Floats
    latent: Floats


def log_marginal(
    games: Games,
    like: Likelihood,
    m: Floats,
    shape: PriorShape | None,
    start: Floats | None = None,
    offset: Floats | None = None,
    threads: int = 1,
) -> Marginal:
    """Σ_q log ∫ likelihood · prior by Laplace's approximation; without a prior the log-likelihood at its maximum.

    log p ≈ ℓ(ê) - Σ τ (ê - μ)²/2 + ½ Σ log τ - ½ log det A, A = information + diag(τ). The gradients are exact for this
    approximation: through ê too, by the likelihood's third derivative.
    """
    mean, precision = prior_arrays(games, shape)
    posterior = Posterior(games, like, m, mean, precision, offset)
    solution = solve(posterior, start=start, threads=threads)
    value = np.zeros(games.queries)
    by_mean = np.empty_like(mean)
    by_log_tau = np.empty_like(mean)
    by_offset = np.empty_like(m)
    flat = posterior.flat
    if shape is None:
        _likelihood_all(like, flat, solution.latent, value, by_offset)
        return Marginal(float(value.sum()), np.zeros(3), by_offset, solution.latent)

    def part(begin: int, stop: int) -> None:
        _marginal_all(like, flat, begin, stop, solution.latent, value, by_mean, by_log_tau, by_offset)

    over_queries(games, threads, part)
    # Every prior mean is proportional to a σ0. Not `@`: BLAS sums in as many parts as it has threads.
    by_log_scale = float(np.sum(by_mean * mean))
    gradient = np.array([by_log_scale - 2.0 * by_log_tau.sum(), 0.0, -2.0 * by_log_tau[games.positive].sum()])
    if shape.mean_factor is not None:
        unit = prior_arrays(games, replace(shape, mean_factor=1.0))[0]
        gradient[1] = np.sum(by_mean * unit)
    return Marginal(float(value.sum()), gradient, by_offset, solution.latent)


def empirical_bayes(
    games: Games,
    like: Likelihood,
    m: Floats,
    start: PriorShape | None,
    free: Free,
    latent: Floats | None = None,
    offsets: Floats | None = None,
    threads: int = 1,
) -> PriorFit:
    """Maximise `log_marginal` over what is `free` (L-BFGS-B), from `start`, `offsets` and, warm, the modes `latent`.

    `offsets` float64[J]: how far each judge leans towards what it is shown first, latent units; None is zero.
    """
    leaning_start = np.zeros(len(games.judges)) if offsets is None else offsets
    origin = np.concatenate([_parameters(start), leaning_start])
    if free.sigma0:
        origin[0] = max(origin[0], math.log(_START))
    moved = np.concatenate([[free.sigma0, free.mean_factor, free.sd_factor], np.full(len(leaning_start), free.offsets)])
    bounds = np.array(
        [np.log(SIGMA0_BOUNDS), MEAN_FACTOR_BOUNDS, np.log(SD_FACTOR_BOUNDS), *[OFFSET_BOUNDS] * len(leaning_start)]
    )[moved]
    modes = latent
    documents = len(games.doc_ids)

    def full(theta: Floats) -> tuple[PriorShape | None, Floats]:
        values = origin.copy()
        values[moved] = theta
        if start is None:
            return None, values[3:]
        if start.mean_factor is None:
            return PriorShape(math.exp(values[0]), None, None), values[3:]
        return PriorShape(math.exp(values[0]), float(values[1]), math.exp(values[2])), values[3:]

    def objective(theta: Floats) -> tuple[float, Floats]:
        nonlocal modes
        shape, leaning = full(theta)
        found = log_marginal(games, like, m, shape, modes, games.offset(leaning), threads)
        modes = found.latent
        gradient = np.concatenate([found.by_shape, games.by_judge(found.by_offset)])
        return -found.value / documents, -gradient[moved] / documents

    found = optimize.minimize(
        objective,
        np.clip(origin[moved], bounds[:, 0], bounds[:, 1]),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"gtol": _GRADIENT_TOLERANCE, "ftol": 1e-12, "maxiter": 100},
    )
    at_bound = bool(np.any((found.x <= bounds[:, 0]) | (found.x >= bounds[:, 1])))
    if modes is None:
        raise AssertionError("the optimiser evaluated nothing")
    shape, leaning = full(found.x)
    return PriorFit(shape, -float(found.fun) * documents, int(found.nfev), at_bound, modes, leaning)


def _parameters(shape: PriorShape | None) -> Floats:
    """(log σ0, a, log b), as the optimiser moves them."""
    if shape is None:
        return np.zeros(3)
    return np.array([math.log(shape.sigma0), shape.mean_factor or 0.0, math.log(shape.sd_factor or 1.0)])


@compiled
def _likelihood_all(like, flat, latent, value, by_offset):
    """Log-likelihood per query, and its derivative in each game's offset (at a maximum the ratings' answer is nil)."""
    for q in range(len(flat.doc_start) - 1):
        query = one_query(flat, q)
        e = latent[flat.doc_start[q] : flat.doc_start[q + 1]]
        for p in range(len(query.first)):
            x = e[query.first[p]] - e[query.second[p]] + query.offset[p]
            value[q] += query.m[p] * game_log_likelihood(like, x, query.w[p])
            by_offset[flat.game_start[q] + p] = query.m[p] * game_terms(like, x, query.w[p])[0]


@compiled
def _marginal_all(like, flat, begin, stop, latent, value, by_mean, by_log_tau, by_offset):
    documents, games = largest(flat, begin, stop)
    work = workspace(documents, games)
    root = np.empty(documents**2)
    inverse = np.empty(documents**2)
    for q in range(begin, stop):
        docs = slice(flat.doc_start[q], flat.doc_start[q + 1])
        played = slice(flat.game_start[q], flat.game_start[q + 1])
        query = one_query(flat, q)
        out = (by_mean[docs], by_log_tau[docs], by_offset[played])
        value[q] = _marginal(like, query, latent[docs], work, root, inverse, *out)


@compiled
def _marginal(like, query, e, work, root, inverse, by_mean, by_log_tau, by_offset):
    """Log marginal likelihood of one query at its mode e.

    Also its derivatives in each prior mean and log precision [n] and in each game's offset [p].
    """
    n = len(e)
    games = len(query.first)
    gap = work.x[:games]
    slope = work.push[:games]
    curve = work.curve[:games]
    for p in range(games):
        gap[p] = e[query.first[p]] - e[query.second[p]] + query.offset[p]
    terms(like, gap, query.w, query.m, slope, curve, work.scratch[:games], work.bits[:games])
    x, log_det = covariance_root(query, curve, np.zeros(n, np.int32), root, inverse)
    columns = np.ascontiguousarray(x.T)
    gap_variances(columns, query.first, query.second, by_offset)
    # force = ∂(-½ log det A)/∂e
    value = -0.5 * log_det
    force = np.zeros(n)
    for p in range(games):
        i = query.first[p]
        j = query.second[p]
        value += query.m[p] * game_log_likelihood(like, gap[p], query.w[p])
        push = -0.5 * query.m[p] * game_skew(like, gap[p], query.w[p]) * by_offset[p]
        by_offset[p] = push
        force[i] += push
        force[j] -= push
    shift = np.empty(n)  # Σ force: how the mode's motion feels the force
    times_covariance(x, force, shift)
    for p in range(games):
        by_offset[p] += slope[p] - curve[p] * (shift[query.first[p]] - shift[query.second[p]])
    for i in range(n):
        off = e[i] - query.mean[i]
        tau = query.precision[i]
        value += 0.5 * math.log(tau) - 0.5 * tau * off * off
        by_mean[i] = tau * (off + shift[i])
        variance = dot(columns[i, i:], columns[i, i:])
        by_log_tau[i] = 0.5 - tau * (0.5 * (off * off + variance) + shift[i] * off)
    return value
