"""A query's candidates before and after its corpus changed, and ways to rate them again.

Ways ask about pairs and fit their answers by the functions of the stages compare and rate; each says its calls, which
are of pairs that were not asked about before. Judges are simulated, as in both_orders.py.
Letters: Q queries, D documents, old and new, of all queries, P pairs.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray import comparisons, rating
from anmi_ray.comparisons.adaptive import Beliefs, next_pairs
from anmi_ray.comparisons.compare import rows
from anmi_ray.comparisons.rounds import CYCLE, among
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.identity import doc_id, id_column, query_id, rng
from anmi_ray.core.records import by_query, find_rows
from anmi_ray.core.scale import to_elo, to_latent
from anmi_ray.rating.gaussian import propagate
from anmi_ray.rating.online import Elo
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.solver import solve
from anmi_ray.rating.uncertainty import GapAnchors, errors
from jobs.studies.both_orders import World, candidates
from jobs.studies.designs import Design, asked, believed

LEANINGS = (0.1, 0.3, -0.2)
DEGREE, HALF = 8, 4
BETTER, RETRIEVER = 0.5, 0.5  # mean of new documents, probits; correlation of the retriever's score with the truth
ROUNDS = 4
ELO_K, ELO_HALVED = 32.0, 80.0
_CONFIG = RateConfig(judge_offsets=True)
_CERTAIN = 1e6  # precision of a rating that stands, per probit squared
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Change:
    """Candidates before and after, bool[D] over those of `every`, whose rows are a query's old ones, then its new ones.

    query int64[D] numbers the queries. documents, arrived: old and new ones of a query.
    """

    every: World
    before: Bools
    after: Bools
    query: Ints
    documents: int
    arrived: int

    @property
    def fresh(self) -> Bools:
        """The new documents."""
        return self.after & ~self.before

    def world(self, which: Bools) -> World:
        """The same with some of the candidates only."""
        return World(self.every.candidates.filter(pa.array(which)), self.every.truth[which], self.every.seed)

    @cached_property
    def asked(self) -> pa.Table:
        """The pairs that were asked about before."""
        config = CompareConfig(degree=DEGREE)
        return comparisons.compare(self.world(self.before).candidates, config, self.every.seed)[0]

    def graph(self, degree: int, again: int) -> pa.Table:
        """Pairs of a graph over the candidates of now; `again` 0 has the seed of before."""
        config = CompareConfig(degree=degree)
        return comparisons.compare(self.world(self.after).candidates, config, self.every.seed + again)[0]

    def new_pairs(self, degree: int) -> pa.Table:
        """Those of a new graph's pairs that hold a new document."""
        pairs = self.graph(degree, 1)
        return pairs.filter(pa.array(self.fresh[self.ends(pairs)].any(axis=0)))

    @property
    def kept(self) -> pa.Table:
        """The pairs asked about before whose documents both stay."""
        return self.asked.filter(pa.array(self.after[self.ends(self.asked)].all(axis=0)))

    def ends(self, pairs: pa.Table) -> Ints:
        """Rows of `every`'s candidates of both documents, int64[2, P]."""
        return np.stack([self.every.row(pairs, name) for name in ("doc_a", "doc_b")])

    def calls(self, pairs: pa.Table) -> Reals:
        """Pairs of every query that were not asked about before, float64[Q]."""
        old = pc.is_in(pairs["comparison_id"], value_set=self.asked["comparison_id"].combine_chunks())
        new = self.ends(pairs.filter(pc.invert(old)))[0]
        return np.bincount(self.query[new], minlength=int(self.query[-1]) + 1).astype(np.float64)

    def answers(self, pairs: pa.Table) -> pa.Table:
        """What the judges say of pairs."""
        return self.every.judgments(pairs, LEANINGS, "one")


def changed(queries: int, documents: int, arrived: int, gone: int, seed: int = 0) -> Change:
    """Queries of so many documents, to which some arrive and from which some go."""
    found: list[tuple[bytes, bytes, bool, float, int]] = []
    after: list[Bools] = []
    for q in range(queries):
        generator = rng("study", "changed-corpus", seed, q)
        old = generator.normal(size=documents)
        seen = RETRIEVER * old + math.sqrt(1.0 - RETRIEVER**2) * generator.normal(size=documents)
        true = np.concatenate([old, BETTER + generator.normal(size=arrived)])
        stays = np.ones(len(true), np.bool_)
        stays[np.argsort(seen, kind="stable")[:gone]] = False
        after.append(stays)
        found += [
            (query_id(f"{seed}-{q}"), doc_id(f"{seed}-{q}-{d}"), False, float(value), d + 1)
            for d, value in enumerate(true)
        ]
    before = np.tile(np.arange(documents + arrived) < documents, queries)
    number = np.repeat(np.arange(queries), documents + arrived)
    every = World(candidates(found), np.array([row[3] for row in found]), seed)
    return Change(every, before, np.concatenate(after), number, documents, arrived)


@dataclass(frozen=True)
class NowRated:
    """Ratings and their errors in points, less a query's mean, float64[D], NaN where there is none, and calls [Q]."""

    rating: Reals
    error: Reals
    calls: Reals


def fitted(of: Change, which: Bools, pairs: pa.Table, shown: Bools) -> NowRated:
    """A fit of the candidates `which` to the answers about pairs; ratings are of those `shown`, less their mean."""
    world = of.world(which)
    found, _ = believed(world, pairs, of.answers(pairs), _CONFIG, ranks=False)
    point, error = np.full((2, len(which)), np.nan)
    for one in found:
        at = _rows(of, one.query_id, one.doc_ids)
        seen = shown[at]
        mean, covariance = one.mean[seen], one.covariance[np.ix_(seen, seen)]
        spread = covariance.diagonal() - 2.0 * covariance.mean(axis=0) + covariance.mean()
        point[at[seen]] = to_elo(mean - mean.mean(), "thurstone")
        error[at[seen]] = to_elo(np.sqrt(spread), "thurstone")
    return NowRated(point, error, of.calls(pairs))


def _rows(of: Change, query: bytes, doc_ids: NDArray[np.uint8]) -> Ints:
    ids = pa.array([query] * len(doc_ids), of.every.candidates["query_id"].type)
    return find_rows(of.every.candidates, {"query_id": ids, "doc_id": id_column(doc_ids)})


def anew(of: Change, degree: int = DEGREE) -> NowRated:
    """Another graph over the candidates of now; all of its calls are paid."""
    pairs = of.graph(degree, 1)
    found = fitted(of, of.after, pairs, of.after)
    return replace(found, calls=np.full(len(found.calls), pairs.num_rows / len(found.calls)))


def anew_top(of: Change) -> NowRated:
    """The adaptive design over the candidates of now, all asked."""
    pairs, _ = asked(of.world(of.after), Design("top", HALF, ranks=False), _CONFIG)
    found = fitted(of, of.after, pairs, of.after)
    return replace(found, calls=np.full(len(found.calls), pairs.num_rows / len(found.calls)))


def reused(of: Change) -> NowRated:
    """The graph that a run draws over the new list; what was asked before costs nothing."""
    return fitted(of, of.after, of.graph(DEGREE, 0), of.after)


def joined(of: Change, degree: int = DEGREE) -> NowRated:
    """Old answers about pairs that stay, and new ones about new documents."""
    return fitted(of, of.after, pa.concat_tables([of.kept, of.new_pairs(degree)]), of.after)


def gone_kept(of: Change, degree: int = DEGREE) -> NowRated:
    """All old answers, and new ones about new documents."""
    return fitted(of, of.before | of.after, pa.concat_tables([of.asked, of.new_pairs(degree)]), of.after)


def joined_top(of: Change) -> NowRated:
    """All old answers, two opponents of a new document, and the pairs that the objective `top` wants most."""
    first = of.new_pairs(CYCLE)
    begun, budget = of.calls(first), of.calls(of.new_pairs(HALF))
    pairs = pa.concat_tables([of.asked, first])
    for number in range(1, ROUNDS + 1):
        known, model = believed(of.every, pairs, of.answers(pairs), _CONFIG, ranks=False)
        asked_of = dict(by_query(pairs))
        spent = of.calls(pairs)
        parts = [pairs]
        for one in known:
            at = _rows(of, one.query_id, one.doc_ids)
            q = int(of.query[at[0]])
            here = of.after[at]
            more = int(begun[q] + max(budget[q] - begun[q], 0.0) * number / ROUNDS - spent[q])
            beliefs = Beliefs(one.mean[here], one.covariance[np.ix_(here, here)], np.array([0]), one.strength)
            docs = one.doc_ids[here]
            chosen = next_pairs(beliefs, among(docs, asked_of[one.query_id]), more, "top", model)
            ends = [[row.tobytes() for row in docs[chosen[:, end]]] for end in (0, 1)]
            parts.append(rows([one.query_id] * len(chosen), ends[0], ends[1], "adaptive", number))
        pairs = pa.concat_tables(parts)
    return fitted(of, of.before | of.after, pairs, of.after)


def fixed(of: Change) -> NowRated:
    """Old ratings with their errors as they are; a new document's rating given that they are true."""
    old = fitted(of, of.before, of.asked, of.before)
    before = of.answers(of.asked), of.asked, of.world(of.before).candidates
    shared = rating.fit_globals(*before, _CONFIG)
    pairs = of.new_pairs(DEGREE)
    now = of.world(of.after).candidates
    games, _ = read_games(of.answers(pairs), pairs, now, _CONFIG.inconsistent_strength, _CONFIG.judge_offsets)
    ids = id_column(games.query_ids[games.query_of_doc])
    at = find_rows(of.every.candidates, {"query_id": ids, "doc_id": id_column(games.doc_ids)})
    stands = of.before[at]
    target = shared.posterior(games)
    target = replace(
        target,
        prior_mean=np.where(stands, to_latent(np.nan_to_num(old.rating[at]), "thurstone"), target.prior_mean),
        prior_precision=np.where(stands, _CERTAIN, target.prior_precision),
    )
    found = propagate(target, solve(target).latent)
    first = np.array([int(stands[start:].argmax()) for start in games.doc_start[:-1]])  # a query has such
    to = GapAnchors(np.arange(games.queries + 1), first.astype(np.int32), np.ones(games.queries, np.bool_))
    gaps = errors(found, np.zeros(len(at), np.int32), to)  # to a document whose rating stands: its own error
    point, error = old.rating.copy(), old.error.copy()
    new = of.fresh[at[gaps.gap_doc]]
    point[at[~stands]] = to_elo(found.mean[~stands], "thurstone")
    error[at[gaps.gap_doc[new]]] = to_elo(gaps.gap_se[new], "thurstone")
    point[~of.after] = np.nan
    return NowRated(_centred(of, point), np.where(of.after, error, np.nan), of.calls(pairs))


def online(of: Change) -> NowRated:
    """Elo ratings over the old answers, then, new documents at the mean, over the new ones. They have no errors."""
    pairs = of.new_pairs(DEGREE)
    point = np.full(len(of.after), np.nan)
    old, new = (dict(by_query(of.answers(one))) for one in (of.asked, pairs))
    size = of.documents + of.arrived
    for q, query in enumerate(dict.fromkeys(of.every.candidates["query_id"].to_pylist())):
        elo = Elo.start(of.documents, ELO_K, ELO_HALVED).update(*_played(of, of.asked, old[query], q * size))
        elo = elo.join(of.arrived).update(*_played(of, pairs, new[query], q * size))
        point[q * size : (q + 1) * size] = elo.ratings_elo
    point[~of.after] = np.nan
    return NowRated(_centred(of, point), np.full(len(point), np.nan), of.calls(pairs))


def _played(of: Change, pairs: pa.Table, answers: pa.Table, start: int) -> tuple[Ints, Ints, Reals]:
    at = find_rows(pairs, {name: answers[name] for name in ("query_id", "comparison_id")})
    first, second = of.ends(pairs.take(pa.array(at))) - start
    return first, second, answers["p_a"].to_numpy()


def _centred(of: Change, point: Reals) -> Reals:
    told = ~np.isnan(point)
    mean = np.bincount(of.query[told], point[told]) / np.bincount(of.query[told])
    return point - mean[of.query]


WAYS: dict[str, Callable[[Change], NowRated]] = {
    "anew": anew,
    "anew, 4": lambda of: anew(of, HALF),
    "anew, top": anew_top,
    "reused": reused,
    "joined": joined,
    "joined, 4": lambda of: joined(of, HALF),
    "joined, gone kept": gone_kept,
    "joined, gone kept, 4": lambda of: gone_kept(of, HALF),
    "joined, top": joined_top,
    "fixed": fixed,
    "online": online,
}
