"""Judgments of simulated judges, as the rate stage reads them, and how right the gaps are that it fits.

A query's documents have true ratings N(0, 1) in probits, and its best document is its known positive. Three judges see
true differences with noise of sd 1, half of whose variance both orders of a pair have alike (as judges of the realistic
preset) unless told otherwise, and lean towards the document that is shown first. Judgments become games and ratings by
the stage's own functions.
Letters: Q queries, D documents of all queries, P pairs, G gaps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray import rating
from anmi_ray.comparisons import k_regular
from anmi_ray.comparisons.compare import rows
from anmi_ray.config.judge import SimulatedJudgeConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.arrays import Reals
from anmi_ray.core.identity import doc_id, id_column, query_id, rng
from anmi_ray.core.records import CANDIDATE, find_rows
from anmi_ray.core.scale import to_elo
from anmi_ray.judging import protocol
from anmi_ray.judging.kinds.simulated import SimulatedJudge

ORDER_CORRELATION = 0.5  # of the realistic preset
_DEGREE = 8


@dataclass(frozen=True)
class Judged:
    """What the rate stage reads of a bucket, and the true rating of every candidate, points, float64[D]."""

    judgments: pa.Table
    comparisons: pa.Table
    candidates: pa.Table
    truth: Reals


@dataclass(frozen=True)
class GapError:
    """Of gaps to the known positive: true points that a fitted one stands for (regression slope), mean and root mean
    square of fitted less true, in points, and how often the 95 % interval holds the truth, with its half-width over
    queries."""

    slope: float
    bias: float
    rmse: float
    coverage: float
    half_width: float


@dataclass(frozen=True)
class World:
    """Queries with their candidates, the true rating of each in probits, float64[D], and the seed of all chance."""

    candidates: pa.Table
    truth: Reals
    seed: int

    def row(self, table: pa.Table, name: str) -> np.ndarray:
        """The candidates that the documents of a table's column are."""
        return find_rows(self.candidates, {"query_id": table["query_id"], "doc_id": table[name]})

    def rows_of(self, query: bytes, doc_ids: NDArray[np.uint8]) -> np.ndarray:
        """The candidates that a query's documents, uint8[n, 16], are."""
        queries = pa.array([query] * len(doc_ids), self.candidates["query_id"].type)
        return self.row(pa.table({"query_id": queries, "doc_id": id_column(doc_ids)}), "doc_id")

    def judgments(
        self,
        comparisons: pa.Table,
        leanings: Sequence[float],
        orders: Literal["both", "one"] = "both",
        shared: float = ORDER_CORRELATION,
    ) -> pa.Table:
        """Everything that judges of these leanings (probits towards the first shown) say, in the orders asked.

        `shared`: what share of the noise's variance both orders of a pair have alike. What is said of a pair does not
        depend on which others are asked about.
        """
        asked = protocol.questions(comparisons, self.candidates, orders=orders)
        latent = self.truth[self.row(asked.documents.table, "doc_id")]
        difference = latent[asked.a] - latent[asked.b]

        def ask(config: SimulatedJudgeConfig, asked: protocol.Questions, order: protocol.Order) -> protocol.Answers:
            return SimulatedJudge(config).ask(asked, order, difference, self.seed)

        panel = [
            SimulatedJudgeConfig(kind="simulated", name=f"judge{j}", position_bias=leaning, order_correlation=shared)
            for j, leaning in enumerate(leanings)
        ]
        return protocol.answer(asked, [(config.name, partial(ask, config)) for config in panel])


def world(queries: int, documents: int, seed: int = 0, first_stage: float = 0.0) -> World:
    """So many queries of so many documents, ranked by what correlates so much with their true ratings."""
    rows: list[tuple[bytes, bytes, bool, float, int]] = []
    for q in range(queries):
        generator = rng("both orders", seed, q)
        latent = generator.normal(size=documents)
        seen = first_stage * latent + math.sqrt(1.0 - first_stage**2) * generator.normal(size=documents)
        rank = np.argsort(np.argsort(-seen)) + 1
        best = int(latent.argmax())
        rows += [
            (query_id(f"{seed}-{q}"), doc_id(f"{seed}-{q}-{d}"), d == best, float(latent[d]), int(rank[d]))
            for d in range(documents)
        ]
    return World(candidates(rows), np.array([row[3] for row in rows]), seed)


def judged(
    leanings: Sequence[float],
    queries: int,
    documents: int,
    seed: int = 0,
    *,
    degree: int = _DEGREE,
    orders: Literal["both", "one"] = "both",
    shared: float = ORDER_CORRELATION,
) -> Judged:
    """A world whose judges are asked about a uniform graph; see `World.judgments`."""
    of = world(queries, documents, seed)
    asked: list[bytes] = []
    ends: list[list[bytes]] = []
    for q in range(queries):
        generator = rng("both orders", seed, q)
        generator.normal(size=documents)  # the ratings are drawn before the graph
        ids = [doc_id(f"{seed}-{q}-{d}") for d in range(documents)]
        pairs = [sorted((ids[i], ids[j])) for i, j in k_regular(documents, degree, generator)]
        asked += [query_id(f"{seed}-{q}")] * len(pairs)
        ends += pairs
    first, second = zip(*ends, strict=True)
    comparisons = rows(asked, first, second, "k-regular")
    judgments = of.judgments(comparisons, leanings, orders, shared)
    return Judged(judgments, comparisons, of.candidates, to_elo(of.truth, "thurstone"))


@dataclass(frozen=True)
class RatingError:
    """Of all ratings, each less its query's mean: root mean square of fitted less true, in points, how often the 95 %
    interval holds the truth, with its half-width over queries, and by judge the leaning that was fitted, probits."""

    rmse: float
    coverage: float
    half_width: float
    leanings: dict[str, float]


def rating_error(data: Judged, config: RateConfig) -> RatingError:
    """How right the ratings are that the rate stage fits with these settings."""
    tables = data.judgments, data.comparisons, data.candidates
    shared = rating.fit_globals(*tables, config)
    ratings = rating.rate(*tables, shared, config).ratings
    query = ratings["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    count = np.bincount(query)
    off = ratings["rating_elo"].to_numpy() - data.truth[_rows(data.candidates, ratings, "doc_id")]
    off = off - (np.bincount(query, off) / count)[query]
    by_query = np.bincount(query, np.abs(off) <= 1.96 * ratings["std_err_elo"].to_numpy()) / count
    half_width = 1.96 * float(by_query.std()) / len(by_query) ** 0.5
    return RatingError(float(np.sqrt(np.mean(off * off))), float(by_query.mean()), half_width, dict(shared.offsets))


def gap_error(data: Judged, config: RateConfig) -> GapError:
    """How right the gaps are that the rate stage fits with these settings."""
    tables = data.judgments, data.comparisons, data.candidates
    gaps = rating.rate(*tables, rating.fit_globals(*tables, config), config).gaps
    gaps = gaps.filter(pc.not_equal(gaps["anchor_id"], gaps["doc_id"]))
    anchor, doc = (data.truth[_rows(data.candidates, gaps, name)] for name in ("anchor_id", "doc_id"))
    fitted = gaps["gap_elo"].to_numpy()
    off = fitted - (anchor - doc)
    inside = np.abs(off) <= 1.96 * gaps["gap_se_elo"].to_numpy()
    query = gaps["query_id"].combine_chunks().dictionary_encode().indices.to_numpy()
    by_query = np.bincount(query, inside) / np.bincount(query)
    return GapError(
        slope=float(np.polyfit(fitted, anchor - doc, 1)[0]),
        bias=float(off.mean()),
        rmse=float(np.sqrt(np.mean(off * off))),
        coverage=float(inside.mean()),
        half_width=1.96 * float(by_query.std()) / len(by_query) ** 0.5,
    )


def _rows(candidates: pa.Table, table: pa.Table, name: str) -> np.ndarray:
    return find_rows(candidates, {"query_id": table["query_id"], "doc_id": table[name]})


def candidates(rows: Sequence[tuple[bytes, bytes, bool, float, int]]) -> pa.Table:
    """Retrieved candidates of (query, document, is the positive, true rating, rank)."""
    size = len(rows)
    return CANDIDATE.table(
        {
            "query_id": [row[0] for row in rows],
            "doc_id": [row[1] for row in rows],
            "source": ["retrieved"] * size,
            "is_positive": [row[2] for row in rows],
            "rank": [row[4] for row in rows],
            "fused_score": [0.0] * size,
            "retriever_ranks": [[] for _ in rows],
            "similarity": [0.0] * size,
        }
    )
