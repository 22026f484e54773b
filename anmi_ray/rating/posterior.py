"""What is fitted: likelihood and prior of a bucket's queries, as arrays that the compiled functions of a fit read.

All queries lie in flat arrays (`Games`), so compiled calls go over them without the GIL and without a Python object per
query, on as many threads as are given; queries are independent, so threads change nothing.
Letters: D documents, P games; n is one query's documents.
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

from anmi_ray.core.scale import Floats, compiled
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import Likelihood


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

        Games as the rate stage reads them stand like that, and this is `flat` itself.
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
        """Which game stands where in `upward`: int64[P], or a slice of all where they stand so already."""
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
    """All queries' games, offsets and priors, and where each query's stand."""

    doc_start: NDArray[np.int64]
    game_start: NDArray[np.int64]
    every: OneQuery


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
    """Memory for queries of at most so many documents and games."""
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


@njit(cache=True, nogil=True, error_model="numpy", fastmath={"reassoc", "contract"}, no_cfunc_wrapper=True)
def dot(x, y):
    """Σ x_i y_i; the reordering that vectorises it is fixed at compile time, so runs agree."""
    total = 0.0
    for i in range(len(x)):
        total += x[i] * y[i]
    return total
