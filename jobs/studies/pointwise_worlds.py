"""Simulated judges that grade single documents and compare two, with noises that are told: what pointwise.py tries.

A query's documents have relevance θ ~ N(0, 1). A reading of one document sees θ + shift + σ (√a A + √(1 - a) ε): A is
what every judge gets wrong about the document, ε is new in every reading, the shift is the judge's own threshold on
the query. A grade is that, cut in four by the same cuts for all. An answer about two documents sees
θ - θ' + r σ (√a (A - A') + √(2 (1 - a)) ε): with r = 1 as much noise as two readings compared. Where comparing does
not help with what all get wrong, A - A' is not multiplied by r.
Letters: Q queries, D documents of all queries, R readings.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
import pyarrow as pa

from anmi_ray import comparisons
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Ints, Reals
from anmi_ray.core.identity import rng, uniforms
from anmi_ray.core.scale import normal_quantile
from anmi_ray.judging import protocol
from jobs.studies.both_orders import World, world
from jobs.studies.designs import Design, asked, scored_by

TOP = 10
ONE_ORDER = RateConfig(judge_offsets=True)
SHORT = 30  # documents of a short list; twice as many where it has not the pairs


@dataclass(frozen=True)
class ReadingNoise:
    """sigma: sd of a grade's error, where relevance has sd 1. alike: the share of its variance that judges share.

    ratio: sd of an answer's error about a pair over that of two grades compared. shift: sd of a judge's threshold.
    helps_all: the ratio is that of common errors too, not of the judges' own alone.
    """

    sigma: float
    alike: float
    ratio: float
    shift: float
    helps_all: bool = True


@dataclass(frozen=True)
class Readers(World):
    """A world whose judges have this noise, and what all of them get wrong about each document, float64[D]."""

    noise: ReadingNoise
    common: Reals

    def judgments(
        self,
        comparisons: pa.Table,
        leanings: Sequence[float] = (0.0,),
        orders: Literal["both", "one"] = "one",
        shared: float = 0.0,
    ) -> pa.Table:
        """One answer about every pair, whoever gives it; nobody leans to a position."""
        asked = protocol.questions(comparisons, self.candidates, orders=orders)
        at = self.row(asked.documents.table, "doc_id")
        of = self.noise
        own = normal_quantile(uniforms(asked.ids, "pointwise", self.seed, "pair"))
        common = of.sigma * math.sqrt(of.alike) * (of.ratio if of.helps_all else 1.0)
        seen = self.truth[at] + common * self.common[at]
        gap = seen[asked.a] - seen[asked.b] + of.ratio * of.sigma * math.sqrt(2.0 * (1.0 - of.alike)) * own

        def prefer(asked: protocol.Questions, order: protocol.Order) -> protocol.Answers:
            del asked, order
            return protocol.Answers((gap > 0).astype(np.float64), np.full(len(gap), -1), ())

        return protocol.answer(asked, [("judge", prefer)])

    @property
    def query(self) -> Ints:
        """int64[D]: the number of every document's query."""
        return self.candidates["query_id"].combine_chunks().dictionary_encode().indices.to_numpy().astype(np.int64)

    def grades(self, readings: int, shares: Sequence[float]) -> Reals:
        """float64[R, D]: grades of so many judges, given as often as `shares` say; one share: no grades, what is seen.

        A judge's shift is one for all documents of a query.
        """
        of = self.noise
        random = rng("pointwise", "grades", self.seed)  # readings 1, 2, ... are the same, however many are wanted
        found = np.empty((readings, len(self.truth)))
        for reading in range(readings):
            new = random.normal(size=len(self.truth))
            shift = of.shift * random.normal(size=self.query.max() + 1)
            error = math.sqrt(of.alike) * self.common + math.sqrt(1.0 - of.alike) * new
            found[reading] = self.truth + shift[self.query] + of.sigma * error
        return found if len(shares) < 2 else graded(found, shares, 1.0 + of.sigma**2)


def graded(seen: Reals, shares: Sequence[float], variance: float) -> Reals:
    """What is seen, of this variance, as grades 0, 1, ... that are given as often as `shares` say."""
    cuts = math.sqrt(variance) * normal_quantile(np.cumsum(shares)[:-1] / np.sum(shares))
    return np.searchsorted(cuts, seen).astype(np.float64)


def judged(queries: int, documents: int, noise: ReadingNoise, seed: int = 0) -> Readers:
    """So many queries. Relevance and common errors are the same for every noise."""
    of = world(queries, documents, seed)
    unlabelled = of.candidates.set_column(
        of.candidates.column_names.index("is_positive"),
        of.candidates.schema.field("is_positive"),
        pa.array(np.zeros(of.candidates.num_rows, np.bool_)),
    )
    return Readers(unlabelled, of.truth, seed, noise, rng("pointwise", "common", seed).normal(size=len(of.truth)))


def ranked_by(of: Readers, score: Reals) -> Readers:
    """The same world, its documents ranked by a score; equal ones have one rank."""
    rank = np.empty(len(score), np.int64)
    for q in range(int(of.query.max()) + 1):
        at = np.flatnonzero(of.query == q)
        rank[at] = np.unique(-score[at], return_inverse=True)[1] + 1
    return replace(of, candidates=with_ranks(of.candidates, rank))


def with_ranks(candidates: pa.Table, rank: Ints) -> pa.Table:
    """Candidates, ranked otherwise."""
    place = candidates.column_names.index("rank")
    return candidates.set_column(place, candidates.schema.field("rank"), pa.array(rank, pa.int32()))


def by_pairs(of: Readers, design: str, degree: int) -> Reals:
    """float64[D]: ratings by answers alone, from a design of so many opponents a document."""
    return _scores(of, *asked(of, Design(design, degree), ONE_ORDER), 1)


def mixed(of: Readers, grade: Reals, degree: int) -> Reals:
    """float64[D]: grades are the prior's order, `top` asks about all documents."""
    first = ranked_by(of, grade)
    return _scores(first, *asked(first, Design("top", degree), ONE_ORDER), 2)


def short_list(of: Readers, grade: Reals, pairs: int) -> Reals:
    """float64[D]: every query's best by grade are compared, at random, the grades' order their prior; others below."""
    size = SHORT if pairs <= SHORT * (SHORT - 1) // 2 else 2 * SHORT
    first = ranked_by(of, grade)
    luck = rng("pointwise", "ties", of.seed).random(len(grade))
    kept = np.zeros(len(grade), np.bool_)
    for q in range(int(of.query.max()) + 1):
        at = np.flatnonzero(of.query == q)
        kept[at[np.lexsort((luck[at], -grade[at]))[:size]]] = True
    few = replace(
        first,
        candidates=first.candidates.filter(pa.array(kept)),
        truth=of.truth[kept],
        common=of.common[kept],
    )
    chosen, _ = comparisons.compare(few.candidates, CompareConfig(degree=2 * pairs // size), of.seed)
    found = grade - 1e3
    found[kept] = _scores(few, chosen, few.judgments(chosen), 2)
    return found


def _scores(of: Readers, pairs: pa.Table, judgments: pa.Table, system: int) -> Reals:
    """What documents are rated, by `scored_by`'s first stage (0), ratings (1), ratings and ranks (2)."""
    found = np.zeros(len(of.truth))
    for _, at, scores in scored_by(of, pairs, judgments, ONE_ORDER):
        found[at] = scores[system]
    return found


def measured(of: Readers, score: Reals) -> Reals:
    """float64[3, Q]: nDCG@10 with gains of four to the power of relevance, P@10, and the share of pairs put right."""
    discount = 1.0 / np.log2(np.arange(2, TOP + 2))
    rows: list[tuple[float, float, float]] = []
    for q in range(int(of.query.max()) + 1):
        at = np.flatnonzero(of.query == q)
        truth, given = of.truth[at], score[at]
        found, best = (np.argsort(-one, kind="stable")[:TOP] for one in (given, truth))
        gains = 4.0**truth
        first, second = np.triu_indices(len(at), 1)
        side = np.sign(truth[first] - truth[second]) * np.sign(given[first] - given[second])
        ndcg = float(gains[found] @ discount / (gains[best] @ discount))
        rows.append((ndcg, len(np.intersect1d(found, best)) / TOP, 0.5 + 0.5 * float(side.mean())))
    return np.array(rows).T
