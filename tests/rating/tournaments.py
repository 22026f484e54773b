"""Tournaments with known ratings, as the tables that the rate stage reads. Everything follows from the seed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from anmi_ray.core import records
from anmi_ray.core.identity import comparison_id, doc_id, query_id, rng
from anmi_ray.core.scale import Floats, Model
from jobs.studies.simulated_games import votes


@dataclass(frozen=True)
class Tournament:
    """Judgment, Comparison and Candidate tables, and the latent rating of every (query_id, doc_id)."""

    judgments: pa.Table
    comparisons: pa.Table
    candidates: pa.Table
    truth: dict[tuple[bytes, bytes], float]

    @property
    def tables(self) -> tuple[pa.Table, pa.Table, pa.Table]:
        return self.judgments, self.comparisons, self.candidates

    def each(self, change: Callable[[pa.Table], pa.Table]) -> Tournament:
        """The same with every table changed."""
        return Tournament(change(self.judgments), change(self.comparisons), change(self.candidates), self.truth)


def pair_graph(n: int, k: int, generator: np.random.Generator) -> list[tuple[int, int]]:
    """About n k/2 distinct pairs whose union of random cycles is connected."""
    pairs: dict[tuple[int, int], None] = {}
    wanted = min(n * k // 2, n * (n - 1) // 2)
    while len(pairs) < wanted:
        cycle = generator.permutation(n)
        for a, b in zip(cycle.tolist(), np.roll(cycle, 1).tolist(), strict=True):
            if a != b and len(pairs) < wanted:
                pairs[min(a, b), max(a, b)] = None
    return list(pairs)


def tournament(
    queries: int,
    documents: int,
    k: int,
    judges: int = 3,
    sd: float = 1.0,
    model: Model = "thurstone",
    positives: bool = True,
    seed: int = 0,
    graded: bool = False,
) -> Tournament:
    """Every judge says the same in both orders: 0 or 1 by a coin of probability F(gap), or F(gap) itself if graded."""
    rows = []
    judged: dict[str, list] = {name: [] for name in records.JUDGMENT.schema.names}
    compared: dict[str, list] = {name: [] for name in records.COMPARISON.schema.names}
    truth = {}
    for q in range(queries):
        generator = rng("tournament", seed, q)
        qid, ids = query_id(f"q{seed}-{q}"), [doc_id(f"d{seed}-{q}-{i}") for i in range(documents)]
        latent = generator.normal(0.0, sd, documents)
        best = int(latent.argmax())
        rows += [(qid, ids[i], positives and i == best) for i in range(documents)]
        truth |= {(qid, ids[i]): float(latent[i]) for i in range(documents)}
        pairs = [(i, j) if ids[i] < ids[j] else (j, i) for i, j in pair_graph(documents, k, generator)]
        first, second = np.array(pairs).T
        answers_JP = votes(latent[first] - latent[second], judges, model, generator, graded=graded)
        for (a, b), answers in zip(pairs, answers_JP.T.tolist(), strict=True):
            cid = comparison_id(qid, ids[a], ids[b])
            _append(compared, cid, qid, ids[a], ids[b], 0, "test")
            for judge, answer in enumerate(answers):
                for order in ("ab", "ba"):
                    _append(judged, cid, qid, f"judge{judge}", order, answer, None)
    return Tournament(records.JUDGMENT.table(judged), records.COMPARISON.table(compared), candidates(rows), truth)


def candidates(rows: list[tuple[bytes, bytes, bool]]) -> pa.Table:
    """A Candidate table of (query_id, doc_id, is_positive), all retrieved."""
    n = len(rows)
    return records.CANDIDATE.table(
        {
            "query_id": [row[0] for row in rows],
            "doc_id": [row[1] for row in rows],
            "source": ["retrieved"] * n,
            "is_positive": [row[2] for row in rows],
            "rank": list(range(1, n + 1)),
            "fused_score": [0.0] * n,
            "retriever_ranks": [[] for _ in range(n)],
            "similarity": [0.0] * n,
        }
    )


def latent_of(ratings: pa.Table) -> dict[tuple[bytes, bytes], float]:
    """{(query_id, doc_id): latent} of a Rating table."""
    columns = (ratings[name].to_pylist() for name in ("query_id", "doc_id", "latent"))
    return {(q, d): e for q, d, e in zip(*columns, strict=True)}


def truth_of(ratings: pa.Table, truth: dict[tuple[bytes, bytes], float]) -> Floats:
    """True latent ratings in the order of a Rating table."""
    keys = zip(ratings["query_id"].to_pylist(), ratings["doc_id"].to_pylist(), strict=True)
    return np.array([truth[key] for key in keys])


def _append(columns: dict[str, list], *values: object) -> None:
    for name, value in zip(columns, values, strict=True):
        columns[name].append(value)
