"""The solver: Newton on the posterior information, inner systems by preconditioned conjugate gradient.

All queries of a bucket are fitted by compiled calls over flat arrays (`Games`), without the GIL and without a Python
object per query, on as many threads as are given; queries are independent, so threads change nothing. The posterior
of a query is a log-likelihood plus a Gaussian prior per document, Σ -τ_i (e_i - μ_i)²/2. A comparison graph is an
expander, so conjugate gradient needs a handful of steps.

What makes it fast: games are evaluated by a vectorised loop (`likelihood.terms`); every other loop runs over the games
without a loop inside, since the ends of short ones of uneven length are what a processor cannot predict; a fit starts
where every game is linear, which saves two of five evaluations, and ends without another one where Newton's own error
is known to be small enough; conjugate gradient is preconditioned by Gauss-Seidel at no more than a product's cost.
Letters: Q queries, D documents, P games; n and p are one query's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.scale import Floats
from anmi_ray.rating.conjugate_gradient import conjugate_gradient, dot
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import THURSTONE, Likelihood, compiled, game_terms, steepest, terms

TOLERANCE = 1e-8  # largest gradient per game of a document at which a fit has converged
MAX_ITERATIONS = 100  # Newton steps of a query, after which its fit has not converged
_OVERSHOOT = 0.5  # a step is cut where the slope along it has turned to less than -0.5 of its start
_FORCING = 0.1  # relative residual at which conjugate gradient stops, tightened as Newton converges
_LAST_FORCING = 0.5  # of the tolerance: what a residual need not fall below
_FAR = 8.0  # latent units: a step that changes a gap by more is shortened before it is tried
# the gap that a clear win suggests, where games are linear for the start
_LIKELY_PROBITS = 1.0
_LIKELY_LOGITS = 1.6


@dataclass(frozen=True)
class Posterior:
    """What is being fitted: a likelihood with strengths m float64[P] and a Gaussian prior (mean, precision float64[D]).

    `offset` float64[P] is added to a game's gap (a judge's leaning towards what it is shown first). A precision of zero
    everywhere is plain maximum likelihood; ratings are then free up to a shift per component.
    """

    games: Games
    likelihood: Likelihood
    m: Floats
    prior_mean: Floats
    prior_precision: Floats
    offset: Floats | None = None

    @cached_property
    def flat(self) -> AllQueries:
        """The same as the compiled functions read it."""
        games = self.games
        none = np.zeros(len(games.w)) if self.offset is None else self.offset
        first = games.first.view(np.uint32)
        second = games.second.view(np.uint32)
        every = OneQuery(first, second, games.w, self.m, none, self.prior_mean, self.prior_precision)
        return AllQueries(games.doc_start, games.game_start, every)

    @cached_property
    def upward(self) -> AllQueries:
        """`flat` with every game told from its lower document, and sorted by it: what `conjugate_gradient` takes.

        Games as the rate stage reads them are in this order, and this is `flat` itself.
        """
        flat = self.flat
        every = self.flat.every
        order = self.upward_order
        if isinstance(order, slice):
            return flat
        turned = every.first > every.second
        games = every._replace(
            first=np.minimum(every.first, every.second)[order],
            second=np.maximum(every.first, every.second)[order],
            w=np.where(turned, 1.0 - every.w, every.w)[order],
            m=every.m[order],
            offset=np.where(turned, -every.offset, every.offset)[order],
        )
        return flat._replace(every=games)

    @cached_property
    def upward_order(self) -> NDArray[np.int64] | slice:
        """Index of the games in `upward`: int64[P], or a slice of all if they are in this order."""
        first = self.games.first
        second = self.games.second
        if (first < second).all():
            return slice(None)
        return np.lexsort((np.minimum(first, second), self.games.query_of_game))


class OneQuery(NamedTuple):
    """Games, offsets and priors: of all queries, or one query's part. Documents are unsigned, which indexes faster."""

    first: NDArray[np.uint32]
    second: NDArray[np.uint32]
    w: Floats
    m: Floats
    offset: Floats
    mean: Floats
    precision: Floats


class AllQueries(NamedTuple):
    """Games, offsets and priors of all queries, with each query's ranges."""

    doc_start: NDArray[np.int64]
    game_start: NDArray[np.int64]
    every: OneQuery


@dataclass(frozen=True)
class Solution:
    """Modes of all queries: latent float64[D] (not centred), and per query how they were obtained."""

    latent: Floats
    iterations: NDArray[np.int32]
    gradient_norm: Floats
    converged: NDArray[np.bool_]


def solve(
    posterior: Posterior,
    tolerance: float = TOLERANCE,
    max_iterations: int = MAX_ITERATIONS,
    start: Floats | None = None,
    threads: int = 1,
) -> Solution:
    """Maximise every query's posterior, from `start` (float64[D]) where given.

    Converged: |gradient_i| ≤ tolerance · (games of document i), for every document. `gradient_norm` is the largest
    such ratio, or what it is at most after a last step that needed no evaluation. A query that does not get there is
    flagged, not raised.
    """
    games = posterior.games
    latent = np.zeros(len(games.doc_ids)) if start is None else start.copy()
    iterations = np.zeros(games.queries, dtype=np.int32)
    gradient_norm = np.zeros(games.queries)
    flat = posterior.upward

    def part(begin: int, stop: int) -> None:
        how = (start is None, tolerance, max_iterations)
        _solve_all(posterior.likelihood, flat, begin, stop, *how, latent, iterations, gradient_norm)

    over_queries(games, threads, part)
    return Solution(latent, iterations, gradient_norm, gradient_norm <= tolerance)


def over_queries(games: Games, threads: int, call: Callable[[int, int], object]) -> None:
    """Call `call(begin, stop)` on ranges of queries that cover them all, of about as many games each, one a thread."""
    if threads == 1 or games.queries < 2:
        call(0, games.queries)
        return
    shares = np.linspace(0, len(games.w), 4 * threads + 1)  # more ranges than threads: the last one to end decides
    bounds = np.unique(np.append(np.searchsorted(games.game_start[:-1], shares[:-1]), games.queries))
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(call, bounds[:-1].tolist(), bounds[1:].tolist()))


@compiled
def one_query(flat, q):
    """Query q's part of `flat`."""
    d0 = flat.doc_start[q]
    d1 = flat.doc_start[q + 1]
    g0 = flat.game_start[q]
    g1 = flat.game_start[q + 1]
    return OneQuery(
        flat.every.first[g0:g1],
        flat.every.second[g0:g1],
        flat.every.w[g0:g1],
        flat.every.m[g0:g1],
        flat.every.offset[g0:g1],
        flat.every.mean[d0:d1],
        flat.every.precision[d0:d1],
    )


class Workspace(NamedTuple):
    """Memory that queries of one call share, for the documents and games of the largest; `rows` [12, documents]."""

    x: Floats
    scratch: Floats
    bits: NDArray[np.int64]
    push: Floats
    curve: Floats
    weight: Floats
    rows: Floats


@compiled
def workspace(documents, games):
    """Work memory for queries of up to the given numbers of documents and games."""
    scratch = np.empty(games)
    return Workspace(
        np.empty(games),
        scratch,
        scratch.view(np.int64),
        np.empty(games),
        np.empty(games),
        np.empty(games),
        np.empty((12, documents)),
    )


@compiled
def largest(flat, begin, stop):
    """(documents, games) of the largest of the queries begin to stop."""
    documents = 0
    games = 0
    for q in range(begin, stop):
        documents = max(documents, flat.doc_start[q + 1] - flat.doc_start[q])
        games = max(games, flat.game_start[q + 1] - flat.game_start[q])
    return documents, games


@compiled
def _solve_all(like, flat, begin, stop, cold, tolerance, max_iterations, latent, iterations, norm):
    documents, games = largest(flat, begin, stop)
    work = workspace(documents, games)
    for q in range(begin, stop):
        e = latent[flat.doc_start[q] : flat.doc_start[q + 1]]
        iterations[q], norm[q] = newton(like, one_query(flat, q), cold, tolerance, max_iterations, e, work)


@compiled
def newton(like, query, cold, tolerance, max_iterations, e, work):
    """Fit one query in place in `e`, from `e` unless `cold`; returns (iterations, gradient norm)."""
    n = len(e)
    games = work.rows[0, :n]
    grad = work.rows[1, :n]
    grad_new = work.rows[2, :n]
    step = work.rows[3, :n]
    trial = work.rows[4, :n]
    diagonal = work.rows[5, :n]
    begin(like, query, cold, games, grad, diagonal, e, work)
    evaluate(like, query, e, grad, diagonal, work)
    norm = _relative_norm(grad, games)
    start_norm = norm
    for iteration in range(max_iterations):
        if norm <= tolerance:
            return iteration, norm
        # the residual shrinks as fast as Newton's own error, and never below what is asked
        forcing = max(_FORCING * min(1.0, norm / start_norm), _LAST_FORCING * tolerance / norm)
        conjugate_gradient(query, grad, diagonal, forcing, step, work)
        reach = _range(step)
        norm = _norm_after(like, query, reach, games, tolerance, grad_new, work)
        if norm <= tolerance:
            for i in range(n):
                e[i] += step[i]
            return iteration + 1, norm
        slope = dot(grad, step)
        length = 1.0 if reach < _FAR else _cautious(query, step)
        for _ in range(30):
            for i in range(n):
                trial[i] = e[i] + length * step[i]
            evaluate(like, query, trial, grad_new, diagonal, work)
            slope_new = dot(grad_new, step)
            if slope_new >= -_OVERSHOOT * slope:
                break
            length *= slope / (slope - slope_new)  # secant to the maximum along the step
        for i in range(n):
            e[i] = trial[i]
            grad[i] = grad_new[i]
        norm = _relative_norm(grad, games)
    return max_iterations, norm


@compiled
def begin(like, query, cold, games, grad, diagonal, e, work):
    """Every document's strength of games, Σ m, into `games`; if `cold`, the start into `e`.

    The start is the posterior's mode with every game linear: pushed as a clear win at a likely gap is, times 2w - 1,
    and as curved as it is there.
    """
    gap = _LIKELY_PROBITS if like.kind == THURSTONE else _LIKELY_LOGITS
    gradient, curvature = game_terms(like, gap, 1.0)
    at_zero = gradient + curvature * gap
    for p in range(len(query.m)):
        work.push[p] = query.m[p] * (at_zero * (2.0 * query.w[p] - 1.0) - curvature * query.offset[p])
        work.curve[p] = query.m[p]
    gather(query, work, grad, games)
    if not cold:
        return
    for p in range(len(query.m)):
        work.curve[p] *= curvature
    for i in range(len(e)):
        grad[i] += query.precision[i] * query.mean[i]
        diagonal[i] = curvature * games[i] + query.precision[i]
    conjugate_gradient(query, grad, diagonal, _FORCING, e, work)


@compiled
def evaluate(like, query, e, grad, diagonal, work):
    """Gradient [n] of the log posterior at e, and its information: the diagonal [n], and work.curve per game."""
    games = len(query.first)
    x = work.x[:games]
    for p in range(games):
        x[p] = e[query.first[p]] - e[query.second[p]] + query.offset[p]
    terms(like, x, query.w, query.m, work.push[:games], work.curve[:games], work.scratch[:games], work.bits[:games])
    gather(query, work, grad, diagonal)
    for i in range(len(e)):
        grad[i] -= query.precision[i] * (e[i] - query.mean[i])
        diagonal[i] += query.precision[i]


@compiled
def gather(query, work, pushes, curves):
    """Sums over every document's games [n]: work.push, negative where it is the second document, and work.curve."""
    for i in range(len(pushes)):
        pushes[i] = 0.0
        curves[i] = 0.0
    for p in range(len(query.first)):
        i = query.first[p]
        j = query.second[p]
        push = work.push[p]
        curve = work.curve[p]
        pushes[i] += push
        curves[i] += curve
        pushes[j] -= push
        curves[j] += curve


@compiled
def _relative_norm(grad, games):
    """Largest |gradient_i| per game of i; infinite where one is not a number, which a comparison would pass over."""
    worst = 0.0
    for i in range(len(grad)):  # a document whose every game has strength zero has only its prior
        worst = max(worst, abs(grad[i]) / (games[i] if games[i] > 0.0 else 1.0))
    return worst if dot(grad, grad) < np.inf else np.inf


@compiled
def _range(step):
    low = step[0]
    high = step[0]
    for i in range(len(step)):
        low = min(low, step[i])
        high = max(high, step[i])
    return high - low


@compiled
def _cautious(query, step):
    """The length to try of a step that changes gaps by far more than the information at its start speaks of.

    Over a gap of x a logistic curvature changes by e^x at most, which makes ln(1 + x)/x the length that is sure to
    climb (Sun and Tran-Dinh 2019, Math. Program. 178). The slope along the step alone would not tell: it turns little
    where the link is flat on the other side.
    """
    widest = 0.0
    for p in range(len(query.first)):
        widest = max(widest, abs(step[query.first[p]] - step[query.second[p]]))
    return 1.0 if widest < _FAR else np.log1p(widest) / widest


@compiled
def _norm_after(like, query, reach, games, tolerance, residual, work):
    """At most what the relative gradient norm is after a Newton step just solved for; infinite where that is too much.

    The new gradient is the residual of the step and what the curvature changed on the way: at most half its steepest
    slope times the square of the change of a game's gap, and no gap changes by more than the step's range, `reach`.
    """
    bound = 0.5 * steepest(like) * reach * reach
    if not bound <= tolerance:
        return np.inf
    _residual(query, residual, work)
    return bound + _relative_norm(residual, games)


@compiled
def _residual(query, residual, work):
    """Return the residual of the last `conjugate_gradient`, (D + L) D⁻¹ ρ."""
    rho = work.rows[6]
    for i in range(len(residual)):
        residual[i] = rho[i]
    for p in range(len(query.first)):
        residual[query.second[p]] -= work.weight[p] * rho[query.first[p]]
