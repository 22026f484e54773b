"""Gaussian approximations of a posterior: Laplace's, at its mode, and expectation propagation's, at its mean.

Either is N(mean, A⁻¹) with A = Laplacian(weight) + diag(τ): every game is a Gaussian factor in its own gap d,
exp(pull d - weight d² / 2). Laplace takes the factor that touches the likelihood at the mode. Where games are few and
gaps wide the posterior is skewed: the mode understates wide gaps and its curvature their errors. Expectation
propagation (Minka 2001; for probit and other log-concave factors Kuss and Rasmussen 2005, Seeger 2008) takes the
factors with which every pair's own posterior, its exact likelihood times all other pairs' factors, has the mean and
variance of the whole. All pairs of a query are updated at once, so a pass costs one factorisation.
Letters: Q queries, D documents, P games, K pairs; n, p, k are one query's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.scale import Floats
from anmi_ray.rating.conjugate_gradient import covariance_root, gap_variances, times_covariance
from anmi_ray.rating.games import Longs
from anmi_ray.rating.likelihood import compiled, game_log_likelihood, terms
from anmi_ray.rating.solver import OneQuery, Posterior, largest, one_query, over_queries

DENSE_DOCUMENTS = 3000  # two matrices of this size take 144 MB; no larger query is factorised
_SETTLED = 1e-3  # of a gap's standard error, and of its variance: how far moments may differ in the end
_PASSES = 60
_REACH = 6  # moments by the trapezoid rule on whole standard errors up to this many, exact to 1e-6 for a Gaussian
_LOOSE = 1e-9  # share of a gap's precision that other pairs must give, or its own likelihood is all there is


@dataclass(frozen=True)
class Gaussian:
    """N(mean, A⁻¹) of every query: mean float64[D] (not centred), weight float64[P] ≥ 0.

    `propagated` bool[Q]: these are the posterior's mean and covariance; else its mode and the curvature there.
    """

    posterior: Posterior
    mean: Floats
    weight: Floats
    propagated: NDArray[np.bool_]


def gaps(posterior: Posterior, latent: Floats) -> Floats:
    """The latent gap of every game, e_i - e_j and its offset, float64[P]."""
    first, second = posterior.games.global_ends()
    x = latent[first] - latent[second]
    return x if posterior.offset is None else x + posterior.offset


def linearise(posterior: Posterior, latent: Floats) -> tuple[Floats, Floats, Floats]:
    """(gap with its offset, gradient, curvature) of every game's log-likelihood at `latent`, float64[P] each."""
    x = gaps(posterior, latent)
    gradient = np.empty_like(x)
    curvature = np.empty_like(x)
    scratch = np.empty_like(x)
    terms(posterior.likelihood, x, posterior.games.w, posterior.m, gradient, curvature, scratch, scratch.view(np.int64))
    return x, gradient, curvature


def laplace(posterior: Posterior, mode: Floats) -> Gaussian:
    """The curvature at the mode."""
    return Gaussian(posterior, mode, linearise(posterior, mode)[2], np.zeros(posterior.games.queries, np.bool_))


class GamesByPair(NamedTuple):
    """The pairs of all queries: where each query's start, their two documents, and each pair's games.

    start int64[Q + 1]; low, high uint32[K], positions inside the query; game int64[P], in the order of pairs, each of
    which has those from games[k] to games[k + 1]; sign float64[P], 1 where such a game's first document is `low`.
    """

    start: Longs
    low: NDArray[np.uint32]
    high: NDArray[np.uint32]
    games: Longs
    game: Longs
    sign: Floats


def propagate(posterior: Posterior, mode: Floats, threads: int = 1) -> Gaussian:
    """Means and covariances by expectation propagation from Laplace's approximation at `mode`.

    All games of a pair are one factor, so that what several games say together is what one of all their strength says.
    A query of more than DENSE_DOCUMENTS documents, one without a prior (its posterior need not have a mean), and one
    that does not settle within 60 passes keep Laplace's, and are not `propagated`.
    """
    games = posterior.games
    flat = posterior.flat
    x, slope, curvature = linearise(posterior, mode)
    pair, sign = games.pairs()
    pairs = _pairs(posterior, pair, sign)
    gap = x if posterior.offset is None else x - posterior.offset
    weight = np.bincount(pair, curvature)  # Laplace's factor has the likelihood's slope at the mode
    pull = np.bincount(pair, sign * (slope + curvature * gap))
    mean = mode.copy()
    propagated = np.zeros(games.queries, np.bool_)

    def part(begin: int, stop: int) -> None:
        _propagate_all(posterior.likelihood, flat, pairs, begin, stop, mean, weight, pull, propagated)

    over_queries(games, threads, part)
    propagated &= np.logical_and.reduceat(np.isfinite(mean), games.doc_start[:-1])  # not so for games of 1e12
    mean = np.where(propagated[games.query_of_doc], mean, mode)
    shared = (weight / np.bincount(pair))[pair]
    return Gaussian(posterior, mean, np.where(propagated[games.query_of_game], shared, curvature), propagated)


def _pairs(posterior: Posterior, pair: Longs, sign: Longs) -> GamesByPair:
    games = posterior.games
    order = np.argsort(pair, kind="stable")
    start = np.searchsorted(pair[order], np.arange(pair.max(initial=-1) + 2))
    game = order[start[:-1]]
    low = np.minimum(games.first[game], games.second[game])
    high = np.maximum(games.first[game], games.second[game])
    return GamesByPair(
        np.searchsorted(games.query_of_game[game], np.arange(games.queries + 1)),
        low.view(np.uint32), high.view(np.uint32), start, order, sign[order].astype(np.float64),
    )  # fmt: skip


class Factors(NamedTuple):
    """Every pair's Gaussian factor in its gap, what it would be after an update, and the gap's variance: [k] each."""

    weight: Floats
    pull: Floats
    new_weight: Floats
    new_pull: Floats
    variance: Floats


@compiled
def _propagate_all(like, flat, pairs, begin, stop, mean, weight, pull, propagated):
    documents, games = largest(flat, begin, stop)
    dense = min(documents, DENSE_DOCUMENTS)
    memory = np.empty(dense * dense), np.empty(dense * dense), np.empty(dense), np.zeros(dense, np.int32)
    rows = np.empty((3, games))
    for q in range(begin, stop):
        d0 = flat.doc_start[q]
        d1 = flat.doc_start[q + 1]
        k0 = pairs.start[q]
        k1 = pairs.start[q + 1]
        raw = one_query(flat, q)
        k = k1 - k0
        if d1 - d0 <= DENSE_DOCUMENTS and raw.precision.min() > 0.0:
            query = OneQuery(pairs.low[k0:k1], pairs.high[k0:k1], raw.w, raw.m, raw.offset, raw.mean, raw.precision)
            factors = Factors(weight[k0:k1], pull[k0:k1], rows[0, :k], rows[1, :k], rows[2, :k])
            played = pairs.games[k0 : k1 + 1], pairs.game, pairs.sign, flat.game_start[q]
            propagated[q] = _propagate(like, query, played, mean[d0:d1], factors, memory)


@compiled
def _propagate(like, query, played, e, factors, memory):
    """Turn a query's mode `e` and Laplace's factors into mean and factors in place; whether they settled."""
    root, inverse, right, one_component = memory
    n = len(e)
    step = 1.0
    before = math.inf
    for _ in range(_PASSES):
        x, _ = covariance_root(query, factors.weight, one_component[:n], root, inverse)
        _mean(query, factors.pull, x, right[:n], e)
        gap_variances(np.ascontiguousarray(x.T), query.first, query.second, factors.variance)
        worst = _match(like, query, played, e, factors)
        if worst <= _SETTLED:
            return True
        if worst > before:
            step *= 0.5
        before = worst
        for k in range(len(factors.pull)):
            factors.weight[k] += step * (factors.new_weight[k] - factors.weight[k])
            factors.pull[k] += step * (factors.new_pull[k] - factors.pull[k])
    return False


@compiled
def _mean(query, pull, x, right, e):
    """A⁻¹ (τ μ + Σ pull of first documents - Σ of second ones) into e [n], A⁻¹ = Xᵀ X."""
    for i in range(len(e)):
        right[i] = query.precision[i] * query.mean[i]
    for k in range(len(pull)):
        right[query.first[k]] += pull[k]
        right[query.second[k]] -= pull[k]
    times_covariance(x, right, e)


@compiled
def _match(like, query, played, e, factors):
    """New factors that give every pair's own posterior the moments it has; returns how far the old ones are off.

    With the other pairs' factors as prior of its gap: precision 1/v - weight, pull mean/v - pull.
    """
    worst = 0.0
    levels = np.empty(2 * _REACH + 1)
    for k in range(len(factors.pull)):
        v = factors.variance[k]
        weight = factors.weight[k]
        pull = factors.pull[k]
        factors.new_weight[k] = weight
        factors.new_pull[k] = pull
        if 1.0 - weight * v < _LOOSE:
            continue
        gap = e[query.first[k]] - e[query.second[k]]
        _log_density(like, query, played, k, gap, v, weight, pull, levels)
        shift, ratio = _moments(levels)
        worst = max(worst, abs(shift), abs(ratio - 1.0))
        # no weight is below zero, whatever rounding says
        factors.new_weight[k] = max(0.0, (1.0 / ratio - 1.0) / v + weight)
        factors.new_pull[k] = ((gap + shift * math.sqrt(v)) / ratio - gap) / v + pull
    return worst


@compiled
def _log_density(like, query, played, k, gap, v, weight, pull, levels):
    """log N(gap, v) with pair k's factor replaced by its games' likelihood, at whole standard errors from `gap`."""
    games, game, sign, origin = played
    scale = math.sqrt(v)
    for at in range(len(levels)):
        z = float(at - _REACH)
        levels[at] = (weight * gap - pull) * scale * z - 0.5 * (1.0 - weight * v) * z * z
    for g in range(games[k], games[k + 1]):
        p = game[g] - origin
        for at in range(len(levels)):
            x = sign[g] * (gap + scale * float(at - _REACH)) + query.offset[p]
            levels[at] += query.m[p] * game_log_likelihood(like, x, query.w[p])


@compiled
def _moments(levels):
    """Mean and variance, in standard errors, of the density whose logarithm is given."""
    top = levels.max()
    total = 0.0
    first = 0.0
    second = 0.0
    for at in range(len(levels)):
        z = float(at - _REACH)
        density = math.exp(levels[at] - top)
        total += density
        first += density * z
        second += density * z * z
    shift = first / total
    return shift, second / total - shift * shift
