"""The solver: Newton on the posterior information, inner systems by preconditioned conjugate gradient.

All queries of a bucket are fitted by compiled calls over flat arrays (`Games`), without the GIL and without a Python
object per query, on as many threads as are given; queries are independent, so threads change nothing. The posterior
of a query is a log-likelihood plus a Gaussian prior per document, Σ -τ_i (e_i - μ_i)²/2. A comparison graph is an
expander, so conjugate gradient needs a handful of products.

What makes it fast: games are evaluated by a vectorised loop (`likelihood.terms`), games sorted by their first document
and an index of their second one turn scatters into sums over rows, and a fit starts where every game is linearised at
its own likely gap, which saves two of five iterations.
Letters: Q queries, D documents, P games; n and p are one query's.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import Likelihood, terms
from anmi_ray.scale import Floats, compiled

_OVERSHOOT = 0.5  # a step is cut where the slope along it has turned to less than -0.5 of its start
_FORCING = 0.1  # relative residual at which conjugate gradient stops, tightened as Newton converges
_LIKELY_GAP = 1.0  # latent gap that a clear win suggests, where games are linearised for the start


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
    def flat(self) -> Flat:
        """The same as the compiled functions read it."""
        games = self.games
        none = np.zeros(len(games.w)) if self.offset is None else self.offset
        every = One(games.first, games.second, games.w, self.m, none, self.prior_mean, self.prior_precision)
        return Flat(games.doc_start, games.game_start, every)


class One(NamedTuple):
    """Games, offsets and priors: of all queries, or one query's part."""

    first: NDArray[np.int32]
    second: NDArray[np.int32]
    w: Floats
    m: Floats
    offset: Floats
    mean: Floats
    precision: Floats


class Flat(NamedTuple):
    """All queries' games, offsets and priors, and where each query's stand."""

    doc_start: NDArray[np.int64]
    game_start: NDArray[np.int64]
    every: One


@dataclass(frozen=True)
class Solution:
    """Modes of all queries: latent float64[D] (not centred), and per query how they were obtained."""

    latent: Floats
    iterations: NDArray[np.int32]
    gradient_norm: Floats
    converged: NDArray[np.bool_]


def solve(
    posterior: Posterior, tolerance: float, max_iterations: int, start: Floats | None = None, threads: int = 1
) -> Solution:
    """Maximise every query's posterior, from `start` (float64[D]) where given.

    Converged: |gradient_i| ≤ tolerance · (games of document i), for every document. `gradient_norm` is the largest
    such ratio. A query that does not get there is flagged, not raised.
    """
    games = posterior.games
    latent = np.zeros(len(games.doc_ids)) if start is None else start.copy()
    iterations = np.zeros(games.queries, dtype=np.int32)
    gradient_norm = np.zeros(games.queries)
    flat = posterior.flat

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
    d0, d1, g0, g1 = flat.doc_start[q], flat.doc_start[q + 1], flat.game_start[q], flat.game_start[q + 1]
    return One(
        flat.every.first[g0:g1],
        flat.every.second[g0:g1],
        flat.every.w[g0:g1],
        flat.every.m[g0:g1],
        flat.every.offset[g0:g1],
        flat.every.mean[d0:d1],
        flat.every.precision[d0:d1],
    )


class Work(NamedTuple):
    """Memory that queries of one call share: documents n and games p of the largest, and the graph's index.

    The games whose first document is i are own[i] ≤ p < own[i+1]; those whose second it is, entry[k] for
    start[i] ≤ k < start[i+1]. Row i of the information's off-diagonal part is row[i] ≤ k < row[i+1] of `other`, the
    opponents, and `weight`, the curvatures: own games first, then the others.
    """

    own: NDArray[np.int64]
    start: NDArray[np.int64]
    row: NDArray[np.int64]
    other: NDArray[np.uint32]
    entry: NDArray[np.uint32]
    x: Floats
    scratch: Floats
    bits: NDArray[np.int64]
    push: Floats
    curve: Floats
    weight: Floats
    rows: Floats


@compiled
def workspace(documents, games):
    """Memory for queries of at most so many documents and games."""
    scratch = np.empty(games)
    return Work(
        np.empty(documents + 1, np.int64),
        np.empty(documents + 1, np.int64),
        np.empty(documents + 1, np.int64),
        np.empty(2 * games, np.uint32),
        np.empty(games, np.uint32),
        np.empty(games),
        scratch,
        scratch.view(np.int64),
        np.empty(games),
        np.empty(games),
        np.empty(2 * games),
        np.empty((12, documents)),
    )


@compiled
def largest(flat, begin, stop):
    """(documents, games) of the largest of the queries begin to stop."""
    documents, games = 0, 0
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
    games, grad, grad_new, step = work.rows[0, :n], work.rows[1, :n], work.rows[2, :n], work.rows[3, :n]
    trial, diagonal = work.rows[4, :n], work.rows[5, :n]
    index(query, n, work)
    _strengths(query, work, games)
    if cold:
        linearise(like, query, grad, diagonal, work)
        conjugate_gradient(grad, diagonal, _FORCING, e, work)
    evaluate(like, query, e, grad, diagonal, work)
    norm = _relative_norm(grad, games)
    start_norm = norm
    for iteration in range(max_iterations):
        if norm <= tolerance:
            return iteration, norm
        # the residual shrinks as fast as Newton's own error, and never below what is asked
        forcing = max(_FORCING * min(1.0, norm / start_norm), 0.3 * tolerance / norm)
        conjugate_gradient(grad, diagonal, forcing, step, work)
        slope = dot(grad, step)
        length = 1.0
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
def index(query, n, work):
    """Fill own, start, row, other and entry of `work` with the graph of a query's n documents."""
    first, second, own, start = query.first, query.second, work.own, work.start
    for i in range(n + 1):
        own[i], start[i] = 0, 0
    for p in range(len(first)):
        own[first[p] + 1] += 1
        start[second[p] + 1] += 1
    for i in range(n):
        own[i + 1] += own[i]
        start[i + 1] += start[i]
    for p in range(len(first)):
        at = start[second[p]]
        work.entry[at] = p
        start[second[p]] = at + 1
    for i in range(n, 0, -1):
        start[i] = start[i - 1]
    start[0] = 0
    at = 0
    for i in range(n):
        work.row[i] = at
        for p in range(own[i], own[i + 1]):
            work.other[at] = second[p]
            at += 1
        for k in range(start[i], start[i + 1]):
            work.other[at] = first[work.entry[k]]
            at += 1
    work.row[n] = at


@compiled
def _strengths(query, work, games):
    """Σ m of every document's games, into `games`."""
    for i in range(len(games)):
        games[i] = 0.0
        for p in range(work.own[i], work.own[i + 1]):
            games[i] += query.m[p]
        for k in range(work.start[i], work.start[i + 1]):
            games[i] += query.m[work.entry[k]]


@compiled
def linearise(like, query, grad, diagonal, work):
    """Gradient at zero, and weights, of the posterior with every game linearised at the gap its outcome suggests."""
    games = len(query.first)
    x = work.x[:games]
    for p in range(games):
        x[p] = _LIKELY_GAP * (2.0 * query.w[p] - 1.0)
    terms(like, x, query.w, query.m, work.push[:games], work.curve[:games], work.scratch[:games], work.bits[:games])
    for p in range(games):
        work.push[p] += work.curve[p] * (x[p] - query.offset[p])
    gather(query.precision, work, grad, diagonal)
    for i in range(len(grad)):
        grad[i] += query.precision[i] * query.mean[i]


@compiled
def evaluate(like, query, e, grad, diagonal, work):
    """Gradient [n] of the log posterior at e, and its information: the diagonal [n], and work.curve per game."""
    games = len(query.first)
    x = work.x[:games]
    for p in range(games):
        x[p] = e[query.first[p]] - e[query.second[p]] + query.offset[p]
    terms(like, x, query.w, query.m, work.push[:games], work.curve[:games], work.scratch[:games], work.bits[:games])
    gather(query.precision, work, grad, diagonal)
    for i in range(len(e)):
        grad[i] -= query.precision[i] * (e[i] - query.mean[i])


@compiled
def gather(precision, work, grad, diagonal):
    """Sums over every document's games of what `terms` wrote per game; `diagonal` holds `precision` too."""
    push, curve = work.push, work.curve
    for i in range(len(grad)):
        total, weights, at = 0.0, precision[i], work.row[i]
        for p in range(work.own[i], work.own[i + 1]):
            total += push[p]
            weights += curve[p]
            work.weight[at] = curve[p]
            at += 1
        for k in range(work.start[i], work.start[i + 1]):
            p = work.entry[k]
            total -= push[p]
            weights += curve[p]
            work.weight[at] = curve[p]
            at += 1
        grad[i], diagonal[i] = total, weights


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"}, no_cfunc_wrapper=True)
def dot(x, y):
    """Σ x_i y_i; the reordering that vectorises it is fixed at compile time, so runs agree."""
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@compiled
def _relative_norm(grad, games):
    worst = 0.0
    for i in range(len(grad)):  # a document whose every game has strength zero has only its prior
        worst = max(worst, abs(grad[i]) / (games[i] if games[i] > 0.0 else 1.0))
    return worst


@compiled
def product(diagonal, d, out, work):
    """(Laplacian(weight) + diag(precision)) d into `out`, by the graph's index."""
    for i in range(len(d)):
        total = diagonal[i] * d[i]
        for k in range(work.row[i], work.row[i + 1]):
            total -= work.weight[k] * d[work.other[k]]
        out[i] = total


@compiled
def conjugate_gradient(rhs, diagonal, forcing, x, work):
    """Solve (Laplacian(weight) + diag(precision)) x = rhs from zero, Jacobi-preconditioned, to a relative residual.

    Without a prior the system is singular but consistent (rhs sums to zero per component), which the method bears.
    """
    n = len(rhs)
    r, z, d, image, inverse = work.rows[7, :n], work.rows[8, :n], work.rows[9, :n], work.rows[10, :n], work.rows[11, :n]
    for i in range(n):
        inverse[i] = 1.0 / diagonal[i]
        x[i] = 0.0
        r[i] = rhs[i]
        z[i] = r[i] * inverse[i]
        d[i] = z[i]
    rz = dot(r, z)
    goal = forcing * forcing * rz
    for _ in range(4 * n):
        if rz <= goal or rz <= 0.0:
            break
        product(diagonal, d, image, work)
        scale = rz / dot(d, image)
        for i in range(n):
            x[i] += scale * d[i]
            r[i] -= scale * image[i]
            z[i] = r[i] * inverse[i]
        rz_new = dot(r, z)
        ratio = rz_new / rz
        for i in range(n):
            d[i] = z[i] + ratio * d[i]
        rz = rz_new
