"""The reranked scores fused with the hybrid's: what the first stage knew still counts, by a weight chosen on dev.

Both scores are brought to one scale per query, over the documents that were reranked; the others follow in the
hybrid's order. The partner of the reranker is the hybrid itself, or one retriever whose scores say more than the
hybrid's, which (after reciprocal rank fusion) are only ranks.
Segments: N rows sorted by (query, hybrid rank), one segment a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.errors import ConfigError, DataError
from anmi_ray.evaluation import measures
from anmi_ray.records import RUN

Normalisation = Literal["minmax", "zscore"]


@dataclass(frozen=True)
class WeightSweep:
    """The measure's mean over the dev queries at each weight tried, and the weight chosen."""

    measure: str
    queries: int
    normalisation: str
    weights: tuple[float, ...]
    values: tuple[float, ...]
    chosen: float
    partner: str = "hybrid"


@dataclass(frozen=True)
class _Joined:
    """The hybrid's rows in order, with what the reranker said; `pool` marks the rows that were reranked."""

    query_id: pa.ChunkedArray
    doc_id: pa.ChunkedArray
    starts: NDArray[np.int64]  # first row of each query
    segment: NDArray[np.int64]  # row -> query
    hybrid_rank: NDArray[np.float64]
    reranked_rank: NDArray[np.float64]
    partner: NDArray[np.float64]  # normalised scores, 0 outside the pool
    reranked: NDArray[np.float64]
    pool: NDArray[np.bool_]


def fuse(
    reranked: pa.Table,
    hybrid: pa.Table,
    weight: float,
    depth: int,
    normalisation: Normalisation = "zscore",
    system: str = "reranked+hybrid",
    partner: pa.Table | None = None,
) -> pa.Table:
    """Run of `system`: weight·reranked + (1 − weight)·partner over the hybrid's top `depth`, the rest below as it was.

    Linear fusion of scores normalised per query (Bruch, Gai and Ingber 2023). `partner` is the run whose scores are
    fused, by default the hybrid's own; a document that it has not gets its lowest score of the query. Weight 0 is the
    hybrid's order (without another partner) and 1 the reranked one, exactly: equal fused scores go by the equally
    weighted ranks. A constant score says nothing and is 0 for all. Documents of the top `depth` without a reranked
    score keep the hybrid's order below the others.
    Raises DataError if a table holds several systems, or `reranked` documents that `hybrid` has not.
    """
    if not 0.0 <= weight <= 1.0:
        raise ConfigError(f"weight {weight} is not in [0, 1]", "fusion", "0 is the hybrid, 1 the reranker alone")
    return _weighted(_join(reranked, hybrid, partner, depth, normalisation), weight, system)


def choose_weight(
    reranked: pa.Table,
    hybrid: pa.Table,
    qrels: pa.Table,
    grid: Sequence[float],
    depth: int,
    normalisation: Normalisation = "zscore",
    measure: str = "nDCG@10",
    partner: pa.Table | None = None,
) -> tuple[float, WeightSweep]:
    """The weight of `grid` with the largest mean `measure` on the dev queries, and the whole sweep.

    All tables are of dev queries only; `partner` as in `fuse`. Among equals (to 1e-12) the one nearest to ½ is taken,
    then the smaller.
    """
    if not grid:
        raise ConfigError("no weights to choose from", "fusion", "give evaluate.weights at least one value")
    joined = _join(reranked, hybrid, partner, depth, normalisation)
    tables = [measures.evaluate(_weighted(joined, weight, "fused"), qrels, (measure,), ("fused",)) for weight in grid]
    values = [measures.mean(table, "fused", measure) for table in tables]
    best = [weight for weight, value in zip(grid, values, strict=True) if value >= max(values) - 1e-12]
    chosen = min(best, key=lambda weight: (abs(weight - 0.5), weight))
    sweep = WeightSweep(
        measure, tables[0].num_rows, normalisation, tuple(grid), tuple(values), chosen, _name(partner, hybrid)
    )
    return chosen, sweep


def _name(partner: pa.Table | None, hybrid: pa.Table) -> str:
    run = hybrid if partner is None else partner
    return run["system"][0].as_py() if run.num_rows else "hybrid"


def _join(
    reranked: pa.Table, hybrid: pa.Table, partner: pa.Table | None, depth: int, normalisation: Normalisation
) -> _Joined:
    for name, run in (("reranked", reranked), ("hybrid", hybrid), ("partner", partner)):
        if run is not None and run.num_rows and pc.count_distinct(run["system"]).as_py() != 1:
            raise DataError(f"the {name} run holds several systems", "fusion", "filter it to one")
    rows = hybrid.sort_by([("query_id", "ascending"), ("rank", "ascending")])
    rows = rows.append_column("_row", pa.array(np.arange(rows.num_rows)))
    keys = ["query_id", "doc_id"]
    scored = rows.select([*keys, "_row"]).join(
        reranked.select([*keys, "rank", "score"]), keys, join_type="full outer", use_threads=False
    )
    strangers = scored["_row"].null_count
    if strangers:
        raise DataError(f"{strangers} reranked documents are not in the hybrid run", "fusion", "rerank the hybrid run")
    scored = scored.sort_by("_row")
    hybrid_rank = rows["rank"].to_numpy().astype(np.float64)
    reranked_rank = scored["rank"].cast(pa.float64()).fill_null(np.inf).to_numpy()
    pool = (hybrid_rank <= depth) & np.isfinite(reranked_rank)
    segment = np.unique(np.array(rows["query_id"].to_pylist(), dtype=object), return_inverse=True)[1].astype(np.int64)
    starts = np.flatnonzero(np.diff(segment, prepend=-1))
    first = rows["score"].to_numpy() if partner is None else _scores_of(partner, rows)
    second = scored["score"].fill_null(0.0).to_numpy()
    return _Joined(
        rows["query_id"],
        rows["doc_id"],
        starts,
        segment,
        hybrid_rank,
        reranked_rank,
        _normalised(first, pool, segment, starts, normalisation),
        _normalised(second, pool, segment, starts, normalisation),
        pool,
    )


def _scores_of(partner: pa.Table, rows: pa.Table) -> NDArray[np.float64]:
    """The partner's score of each row; where it has none, its lowest of the query, which bounds it from above."""
    keys = ["query_id", "doc_id"]
    asked = rows.select([*keys, "_row"])
    joined = asked.join(partner.select([*keys, "score"]), keys, join_type="left outer", use_threads=False)
    score = joined.sort_by("_row")["score"].fill_null(np.nan).to_numpy()
    lowest = partner.group_by("query_id").aggregate([("score", "min")])
    floor = rows.select(["query_id", "_row"]).join(lowest, "query_id", join_type="left outer", use_threads=False)
    floor = floor.sort_by("_row")["score_min"].fill_null(0.0).to_numpy()
    return np.where(np.isnan(score), floor, score)


def _normalised(
    score: NDArray[np.float64],
    pool: NDArray[np.bool_],
    segment: NDArray[np.int64],
    starts: NDArray[np.int64],
    normalisation: Normalisation,
) -> NDArray[np.float64]:
    """Scores of each query's pool on one scale: min-max to [0, 1], or mean 0 and sd 1; 0 where constant or outside."""
    if not len(score):
        return score
    if normalisation == "minmax":
        origin = np.minimum.reduceat(np.where(pool, score, np.inf), starts)
        unit = np.maximum.reduceat(np.where(pool, score, -np.inf), starts) - origin
    else:
        count = np.maximum(np.add.reduceat(pool.astype(np.float64), starts), 1.0)
        origin = np.add.reduceat(np.where(pool, score, 0.0), starts) / count
        squares = np.where(pool, score - origin[segment], 0.0) ** 2
        unit = np.sqrt(np.add.reduceat(squares, starts) / count)
    # A spread at the rounding error of the scores is no spread: dividing by it would turn noise into a ranking.
    largest = np.maximum.reduceat(np.where(pool, np.abs(score), 0.0), starts)
    says_something = np.isfinite(unit) & (unit > 1e-12 * largest)
    inside = pool & says_something[segment]
    result = np.zeros_like(score)
    result[inside] = (score[inside] - origin[segment[inside]]) / unit[segment[inside]]
    return result


def _weighted(joined: _Joined, weight: float, system: str) -> pa.Table:
    pool, segment = joined.pool, joined.segment
    if not len(pool):
        return RUN.empty()
    fused = weight * joined.reranked + (1.0 - weight) * joined.partner
    tie = np.where(pool, weight * np.where(pool, joined.reranked_rank, 0.0) + (1.0 - weight) * joined.hybrid_rank, 0.0)
    order = np.lexsort((joined.hybrid_rank, tie, np.where(pool, -fused, 0.0), ~pool, segment))
    position = np.arange(len(order)) - np.repeat(joined.starts, np.diff(np.append(joined.starts, len(order))))
    # Below the pool the scores go on falling by one a place, so that a tool that sorts by score sees the same order.
    lowest = np.minimum.reduceat(np.where(pool, fused, np.inf), joined.starts)
    size = np.add.reduceat(pool.astype(np.int64), joined.starts)
    floor = np.where(size > 0, lowest, 0.0)[segment] - (position - size[segment] + 1)
    score = np.where(pool[order], fused[order], floor)
    return RUN.table(
        {
            "query_id": joined.query_id.take(pa.array(order)),
            "doc_id": joined.doc_id.take(pa.array(order)),
            "system": pa.array([system] * len(order), type=pa.string()),
            "rank": (position + 1).astype(np.int32),
            "score": score,
        }
    )
