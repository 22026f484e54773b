"""Statistics of each query's comparison graph: connectivity, documents that never won or lost, cycle rates.

They show how far a fit can be trusted, and are cheap enough for every fit. The graph has one edge per pair of documents
with a game; outcomes are those of games with a strength above zero.
Letters: Q queries, D documents, P games; of one query n documents, a arcs (every edge once from either end).
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import linalg

from anmi_ray.core.scale import Floats
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games, Longs
from anmi_ray.rating.likelihood import compiled
from anmi_ray.rating.solver import over_queries

_TIE = 1e-12  # a margin within this share of the strength is rounding: .7 one way and .7 the other are a tie
_WORK = 5e8  # most documents x (documents + arcs) of an exact diameter, about a second
_DENSE = 2000  # maximum number of documents whose Laplacian is made


class GraphFacts(NamedTuple):
    """One value a query, each array [Q].

    min_degree, max_degree int32: fewest and most distinct opponents of a document.
    diameter int32: steps between the two documents of the largest component that lie furthest apart (of several
        components of that size, the widest); a lower bound where n (n + a) is above 5e8.
    never_won, never_lost int32: documents without a win (w > 1/2) or without a loss; ties are neither.
    triads int64: three documents with three decided pairs. Several games of a pair decide together, by the sign of
        Σ m (2w - 1).
    cycle_rate float64: the share of triads in which each beat one and lost to one; 1/4 if coins had judged (Kendall
        and Babington Smith 1940), 0 if the judgments follow one order. NaN without a triad.
    lambda2 float64: algebraic connectivity, see `lambda2`.
    """

    min_degree: NDArray[np.int32]
    max_degree: NDArray[np.int32]
    diameter: NDArray[np.int32]
    never_won: NDArray[np.int32]
    never_lost: NDArray[np.int32]
    triads: Longs
    cycle_rate: Floats
    lambda2: Floats


def graph_facts(games: Games, m: Floats, threads: int = 1) -> GraphFacts:
    """Return the statistics of a bucket's queries; m float64[P] is the strength of games."""
    arrays = games.doc_start, games.game_start, games.first, games.second, games.w, m
    counts = np.zeros((5, games.queries), dtype=np.int32)
    triads, cyclic = np.zeros((2, games.queries), dtype=np.int64)
    over_queries(games, threads, lambda begin, stop: _facts_all(begin, stop, arrays, counts, triads, cyclic))
    cycle_rate = np.full(games.queries, np.nan)
    np.divide(cyclic, triads, out=cycle_rate, where=triads > 0)
    return GraphFacts._make([*counts, triads, cycle_rate, lambda2(games)])


def lambda2(games: Games) -> Floats:
    """Return the algebraic connectivity per query, float64[Q]: second smallest eigenvalue of the games' Laplacian.

    Ratings are determined along an eigenvector as well as its eigenvalue is large, and this is the smallest: 0 for a
    graph that is not connected, at best about k - 2 √(k - 1) for k opponents each. NaN above 2,000 documents.
    """
    result = np.zeros(games.queries)
    for q in np.flatnonzero((components(games).count == 1) & (np.diff(games.doc_start) > 1)):
        own = slice(games.game_start[q], games.game_start[q + 1])
        size = int(games.doc_start[q + 1] - games.doc_start[q])
        if size > _DENSE:
            result[q] = np.nan
            continue
        pairs = size * games.first[own].astype(np.int64) + games.second[own]
        weight = np.bincount(pairs, minlength=size * size).reshape(size, size)
        laplacian = -(weight + weight.T).astype(np.float64)
        np.fill_diagonal(laplacian, -laplacian.sum(1))
        result[q] = linalg.eigvalsh(laplacian, subset_by_index=[1, 1], check_finite=False, overwrite_a=True)[0]
    return result


def count_triads(query: Longs, first: Longs, second: Longs, w: Floats) -> tuple[Longs, Longs]:
    """Return (triads, cyclic ones), int64[Q] each, as in `GraphFacts`, for games in any order.

    query int64[P] in 0..Q-1; first, second int64[P] number documents over all queries; w [P] is the preference for
    `first`, every game as strong as the next.
    """
    order = np.argsort(query, kind="stable")
    query = query[order]
    both = np.stack([first[order], second[order]])
    documents = int(both.max(initial=-1)) + 1
    keys, end = np.unique(query * documents + both, return_inverse=True)
    bounds = np.arange(int(query.max(initial=-1)) + 2)
    doc_start = np.searchsorted(keys, bounds * documents)
    game_start = np.searchsorted(query, bounds)
    ends = (end.reshape(2, -1) - doc_start[query]).astype(np.int32)
    triads, cyclic = np.zeros((2, len(bounds) - 1), dtype=np.int64)
    _count_triads_all(doc_start, game_start, ends[0].copy(), ends[1].copy(), w[order], triads, cyclic)
    return triads, cyclic


@compiled
def _count_triads_all(doc_start, game_start, first, second, w, triads, cyclic):
    for q in range(len(triads)):
        g0 = game_start[q]
        g1 = game_start[q + 1]
        i = first[g0:g1]
        j = second[g0:g1]
        wins = w[g0:g1]
        start, other, arc = _arcs(doc_start[q + 1] - doc_start[q], i, j)
        triads[q], cyclic[q] = _triads(start, other, _sides(i, j, wins, np.ones(len(wins)), arc, len(other)))


@compiled
def _facts_all(begin, stop, arrays, counts, triads, cyclic):
    """Into counts [5, Q] what `GraphFacts` begins with, in its order."""
    doc_start, game_start, first, second, w, m = arrays
    min_degree, max_degree, diameter, never_won, never_lost = counts
    for q in range(begin, stop):
        g0 = game_start[q]
        g1 = game_start[q + 1]
        i = first[g0:g1]
        j = second[g0:g1]
        wins = w[g0:g1]
        strength = m[g0:g1]
        start, other, arc = _arcs(doc_start[q + 1] - doc_start[q], i, j)
        min_degree[q], max_degree[q] = _degrees(start)
        size = _component_sizes(start, other)
        diameter[q] = _diameter(start, other, size)
        never_won[q], never_lost[q] = _never(len(size), i, j, wins, strength)
        triads[q], cyclic[q] = _triads(start, other, _sides(i, j, wins, strength, arc, len(other)))


@compiled
def _degrees(start):
    least = most = start[1] - start[0]
    for i in range(1, len(start) - 1):
        degree = start[i + 1] - start[i]
        least = min(least, degree)
        most = max(most, degree)
    return least, most


@compiled
def _never(n, first, second, w, m):
    """(documents that won no game, documents that lost none)."""
    won = np.zeros(n, np.bool_)
    lost = np.zeros(n, np.bool_)
    never_won = never_lost = n
    for p in range(len(first)):
        side = _sign(m[p] * w[p], m[p] * (1.0 - w[p]))
        if side == 0:
            continue
        winner, loser = (first[p], second[p]) if side > 0 else (second[p], first[p])
        never_won -= not won[winner]
        never_lost -= not lost[loser]
        won[winner] = lost[loser] = True
    return never_won, never_lost


@compiled
def _sign(won, lost):
    """1, -1 or 0 (a tie, also where nothing was at stake) from the strength won and lost."""
    margin = won - lost
    if abs(margin) <= _TIE * (won + lost):
        return 0
    return 1 if margin > 0.0 else -1


@compiled
def _arcs(n, first, second):
    """The simple graph as lists: start int64[n + 1] into other uint32[a], the distinct opponents of every document.

    arc int64[2, p]: position of each game in them, from its first and from its second document.
    """
    games = len(first)
    start = np.zeros(n + 1, np.int64)
    fill = np.empty(n, np.int64)
    seen = np.empty(n, np.int64)
    for p in range(games):
        start[first[p] + 1] += 1
        start[second[p] + 1] += 1
    for i in range(n):
        start[i + 1] += start[i]
        fill[i] = start[i]
        seen[i] = -1
    entry = np.empty(2 * games, np.int64)
    for p in range(games):
        entry[fill[first[p]]] = p
        fill[first[p]] += 1
        entry[fill[second[p]]] = p + games  # seen from its second document
        fill[second[p]] += 1
    other = np.empty(2 * games, np.uint32)
    arc = np.empty((2, games), np.int64)
    kept = 0
    for i in range(n):
        begin = start[i]
        end = start[i + 1]
        start[i] = kept
        for t in range(begin, end):
            side = 1 if entry[t] >= games else 0
            p = entry[t] - side * games
            j = first[p] if side else second[p]
            if seen[j] < start[i]:  # not among the opponents of i yet
                seen[j] = kept
                other[kept] = j
                kept += 1
            arc[side, p] = seen[j]
    start[n] = kept
    return start, other[:kept], arc


@compiled
def _sides(first, second, w, m, arc, arcs):
    """int8[a]: 1 where the list's owner has the better of this opponent over all their games, -1 the worse, else 0."""
    won = np.zeros(arcs)
    lost = np.zeros(arcs)
    for p in range(len(first)):
        i = arc[0, p]
        j = arc[1, p]
        mine = m[p] * w[p]
        theirs = m[p] * (1.0 - w[p])
        won[i] += mine
        lost[i] += theirs
        won[j] += theirs
        lost[j] += mine
    side = np.empty(arcs, np.int8)
    for a in range(arcs):
        side[a] = _sign(won[a], lost[a])
    return side


@compiled
def _triads(start, other, side):
    """(decided triads, cyclic ones): i < j < k where i beats j, j beats k and k beats i, or all the other way."""
    n = len(start) - 1
    later = np.zeros(n + 1, np.int64)
    above = np.empty(len(other), np.uint32)
    sign = np.empty(len(other), np.int8)
    kept = 0
    for i in range(n):  # decided pairs only, from their lower end
        for a in range(start[i], start[i + 1]):
            above[kept] = other[a]
            sign[kept] = side[a]
            kept += (other[a] > i) & (side[a] != 0)  # branch-free
        later[i + 1] = kept
    judged = 0
    cyclic = 0
    outcome = np.zeros(n, np.int8)  # of i against everybody
    for i in range(n):
        pairs = range(later[i], later[i + 1])
        for a in pairs:
            outcome[above[a]] = sign[a]
        for a in pairs:
            j = above[a]
            for b in range(later[j], later[j + 1]):
                third = outcome[above[b]]
                if third != 0:
                    judged += 1
                    cyclic += sign[b] == sign[a] and third != sign[a]
        for a in pairs:
            outcome[above[a]] = 0
    return judged, cyclic


@compiled
def _sweep(source, start, other, distance, queue):
    """Breadth-first from `source` into distance int32[n] (-1: unseen); the seen are queue[:count], nearest first."""
    distance[source] = 0
    queue[0] = source
    count = 1
    head = 0
    while head < count:
        i = queue[head]
        head += 1
        for a in range(start[i], start[i + 1]):
            if distance[other[a]] < 0:
                distance[other[a]] = distance[i] + 1
                queue[count] = other[a]
                count += 1
    return count


@compiled
def _component_sizes(start, other):
    """Size int32[n] of every document's component."""
    n = len(start) - 1
    distance = np.full(n, -1, np.int32)
    queue = np.empty(n, np.int32)
    size = np.empty(n, np.int32)
    for i in range(n):
        if distance[i] < 0:
            count = _sweep(i, start, other, distance, queue)
            for t in range(count):
                size[queue[t]] = count
    return size


@compiled
def _diameter(start, other, size):
    """Diameter of the largest component, by a breadth-first search from each of its documents."""
    n = len(size)
    distance = np.empty(n, np.int32)
    queue = np.empty(n, np.int32)
    widest = 0
    for i in np.flatnonzero(size == size.max())[: int(_WORK / (n + len(other))) + 1]:
        distance[:] = -1
        widest = max(widest, distance[queue[_sweep(i, start, other, distance, queue) - 1]])
    return widest
