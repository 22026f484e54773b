"""Fuse reranked scores with the first stage's, by weights chosen on dev, and keep the weights next to a served model.

Scores are normalised per query over the reranked documents; the others follow in the hybrid's order. The reranker's
partners are the retrievers behind the hybrid, or the hybrid itself, and other rerankers. Weights of 0 for all
rerankers are the control: the fusion without training.
The file fusion.json of an exported folder has the weights by system, the reranker's first.
Segments: N rows sorted by (query, hybrid rank), one segment a query.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray
from pydantic import TypeAdapter

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import rng
from anmi_ray.core.records import RUN
from anmi_ray.evaluation import measures
from anmi_ray.evaluation.relevance import ANEW, read_exported

FUSED = "reranked+hybrid"
FILE = "fusion.json"
_RESAMPLES = 1000
_FOLDS = 5
Weights = tuple[float, ...]  # of the reranker, then of each partner; they sum to 1


@dataclass(frozen=True)
class WeightSweep:
    """Weights tried on dev queries, and the chosen ones.

    parts: systems, the reranker first.
    weights, values: all weights, and the measure's mean at them.
    chosen, value: the chosen weights, and the measure at them.
    control: weights chosen without any reranker.
    cross, control_cross: cross-validated means of both choices, on queries that took no part in them.
    """

    measure: str
    queries: int
    normalisation: str
    parts: tuple[str, ...]
    weights: tuple[Weights, ...]
    values: tuple[float, ...]
    chosen: Weights
    value: float
    control: Weights
    cross: float
    control_cross: float

    def curve(self) -> list[tuple[float, float]]:
        """(weight of the reranker, the best value at it), by weight."""
        best: dict[float, float] = {}
        for weights, value in zip(self.weights, self.values, strict=True):
            best[weights[0]] = max(best.get(weights[0], value), value)
        return sorted(best.items())


def from_json(content: Mapping[str, Any]) -> WeightSweep:
    """Read a sweep from JSON, where tuples are lists."""
    return TypeAdapter(WeightSweep).validate_python(content)


@dataclass(frozen=True)
class _Joined:
    """The hybrid's rows in order with all scores; `pool` marks the reranked rows."""

    query_id: pa.ChunkedArray
    doc_id: pa.ChunkedArray
    starts: NDArray[np.int64]  # first row of each query
    segment: NDArray[np.int64]  # row -> query
    hybrid_rank: NDArray[np.float64]
    reranked_rank: NDArray[np.float64]
    scores: NDArray[np.float64]  # [parts, N], normalised, 0 outside the pool
    pool: NDArray[np.bool_]


def simplex(parts: int, steps: int) -> Iterator[Weights]:
    """All weights of `parts` systems that are multiples of 1/`steps` and sum to 1.

    >>> list(simplex(2, 2))
    [(0.0, 1.0), (0.5, 0.5), (1.0, 0.0)]
    """
    every = product(range(steps + 1), repeat=parts)
    return (tuple(count / steps for count in counts) for counts in every if sum(counts) == steps)


def fuse(
    reranked: pa.Table,
    hybrid: pa.Table,
    weights: Sequence[float],
    depth: int,
    system: str = FUSED,
    partners: Sequence[pa.Table] = (),
) -> pa.Table:
    """Run of `system`: the weighted sum of all scores over the hybrid's top `depth`, the rest unchanged below.

    Linear fusion of scores normalised per query (Bruch, Gai and Ingber 2023, "An analysis of fusion functions for
    hybrid retrieval"). `weights` are the reranker's and each partner's, at least 0, with sum 1. `partners` are runs
    of one system each, by default the hybrid alone; a document missing in one gets that run's lowest score of the
    query. With the hybrid as only partner, weights (0, 1) give the hybrid's order and (1, 0) the reranked one,
    exactly: ties go by the weighted ranks of the two. A constant score is 0 for all. Documents of the top `depth`
    without a reranked score keep the hybrid's order below the others.
    Raises DataError if `reranked` has documents missing in `hybrid`.
    """
    return _weighted(_join(reranked, hybrid, partners or (hybrid,), depth), weights, system)


def choose_weights(
    reranked: pa.Table,
    hybrid: pa.Table,
    qrels: pa.Table,
    steps: int,
    depth: int,
    measure: str = "nDCG@10",
    partners: Sequence[pa.Table] = (),
    seed: int = 0,
    rerankers: int = 0,
) -> WeightSweep:
    """Try all weights that are multiples of 1/`steps` on dev, and choose by mean `measure`, bagged over queries.

    On a hundred queries the measure is flat around its maximum, so the maximum itself is mostly chance. The choice is
    the mean of the best weights over bootstrap resamples of the queries (Breiman 1996, "Bagging predictors"); ties go
    to the smallest sum of squares, then to the first in order.
    `partners` as in `fuse`; the control leaves out the last `rerankers` of them. With tenths as steps, 120 queries of
    100 documents take 1.5 s for three parts (66 weights), 4 s for four (286) and 12 s for five (1,001), on one core.
    """
    partners = partners or (hybrid,)
    joined = _join(reranked, hybrid, partners, depth)

    def values(weights: Weights) -> NDArray[np.float64]:
        table = measures.evaluate(_weighted(joined, weights, "fused"), qrels, (measure,), ("fused",))
        return table["value"].to_numpy()  # in order of query_id

    grid = list(simplex(1 + len(partners), steps))
    value_WQ = np.stack([values(weights) for weights in grid])
    first_stage = 1 + len(partners) - rerankers
    without = [i for i, weights in enumerate(grid) if not any((weights[0], *weights[first_stage:]))]
    chosen = _bagged(grid, value_WQ, seed)
    control_grid, control_WQ = [grid[i] for i in without], value_WQ[without]
    return WeightSweep(
        measure,
        value_WQ.shape[1],
        "zscore",
        tuple(run["system"][0].as_py() if run.num_rows else f"part {i}" for i, run in enumerate((reranked, *partners))),
        tuple(grid),
        tuple(value_WQ.mean(1).tolist()),
        chosen,
        float(values(chosen).mean()),
        _bagged(control_grid, control_WQ, seed),
        _cross_validated(grid, value_WQ, values, seed),
        _cross_validated(control_grid, control_WQ, values, seed),
    )


def _bagged(grid: Sequence[Weights], value_WQ: NDArray[np.float64], seed: int) -> Weights:
    """The best weights, averaged over resamples of the queries."""
    even = sorted(range(len(grid)), key=lambda i: (sum(w * w for w in grid[i]), grid[i]))
    queries = value_WQ.shape[1]
    share_RQ = rng("fusion weights", seed).multinomial(queries, np.full(queries, 1.0 / queries), _RESAMPLES) / queries
    mean_WR = np.round(value_WQ[even] @ share_RQ.T, 12)  # so that equal values are equal
    best_R = np.array(even)[mean_WR.argmax(0)]
    return tuple(np.asarray(grid)[best_R].mean(0).tolist())


def _cross_validated(
    grid: Sequence[Weights],
    value_WQ: NDArray[np.float64],
    values: Callable[[Weights], NDArray[np.float64]],
    seed: int,
) -> float:
    """The mean value of queries at the weights that the other folds chose; a single query chooses its own."""
    queries = value_WQ.shape[1]
    folds = min(_FOLDS, queries)
    fold_Q = rng("fusion folds", seed).permutation(queries) % folds
    found_Q = np.zeros(queries)
    for fold in range(folds):
        mine = fold_Q == fold
        others = value_WQ if folds == 1 else value_WQ[:, ~mine]
        found_Q[mine] = values(_bagged(grid, others, seed))[mine]
    return float(found_Q.mean())


def _join(reranked: pa.Table, hybrid: pa.Table, partners: Sequence[pa.Table], depth: int) -> _Joined:
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
    parts = [scored["score"].fill_null(0.0).to_numpy(), *(_scores_of(partner, rows) for partner in partners)]
    return _Joined(
        rows["query_id"],
        rows["doc_id"],
        starts,
        segment,
        hybrid_rank,
        reranked_rank,
        np.stack([_normalised(part, pool, segment, starts) for part in parts]),
        pool,
    )


def _scores_of(partner: pa.Table, rows: pa.Table) -> NDArray[np.float64]:
    """The partner's score of each row; if missing, its lowest of the query, an upper bound."""
    keys = ["query_id", "doc_id"]
    pairs = rows.select([*keys, "_row"])
    joined = pairs.join(partner.select([*keys, "score"]), keys, join_type="left outer", use_threads=False)
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
) -> NDArray[np.float64]:
    """Scores of each query's pool on one scale, mean 0 and sd 1; 0 where constant or outside."""
    if not len(score):
        return score
    count = np.maximum(np.add.reduceat(pool.astype(np.float64), starts), 1.0)
    origin = np.add.reduceat(np.where(pool, score, 0.0), starts) / count
    squares = np.where(pool, score - origin[segment], 0.0) ** 2
    unit = np.sqrt(np.add.reduceat(squares, starts) / count)
    # A spread at the rounding error of the scores counts as constant: dividing by it would turn noise into a ranking.
    largest = np.maximum.reduceat(np.where(pool, np.abs(score), 0.0), starts)
    varies = np.isfinite(unit) & (unit > 1e-12 * largest)
    inside = pool & varies[segment]
    result = np.zeros_like(score)
    result[inside] = (score[inside] - origin[segment[inside]]) / unit[segment[inside]]
    return result


def _weighted(joined: _Joined, weights: Sequence[float], system: str) -> pa.Table:
    pool = joined.pool
    segment = joined.segment
    if not len(pool):
        return RUN.empty()
    weight = weights[0]
    fused = np.asarray(weights) @ joined.scores
    tie = np.where(pool, weight * np.where(pool, joined.reranked_rank, 0.0) + (1.0 - weight) * joined.hybrid_rank, 0.0)
    order = np.lexsort((joined.hybrid_rank, tie, np.where(pool, -fused, 0.0), ~pool, segment))
    position = np.arange(len(order)) - np.repeat(joined.starts, np.diff(np.append(joined.starts, len(order))))
    # Below the pool scores fall by one per place, so that a tool that sorts by score sees the same order.
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


@dataclass(frozen=True)
class ServedFusion:
    """Weights by system, the reranker's first; they sum to 1. `queries`: the dev queries that they were chosen on."""

    weights: dict[str, float]
    measure: str
    queries: int
    normalisation: str = "zscore"

    @property
    def partners(self) -> tuple[str, ...]:
        """The systems whose scores are added to the reranker's."""
        return tuple(self.weights)[1:]

    def check(self, systems: Mapping[str, Any], place: str) -> None:
        """Raise ConfigError unless the systems `given` are the partners."""
        if set(systems) != set(self.partners):
            expected, got = ", ".join(self.partners), ", ".join(sorted(systems)) or "none"
            raise ConfigError(
                f"expected scores of {expected}, got {got}", place, "give the scores of each system under its name"
            )

    def fuse(self, reranked: pa.Table, run: pa.Table, partners: Mapping[str, pa.Table], depth: int) -> pa.Table:
        """`run` ordered by the weighted sum of all scores over its top `depth` (see `fuse`)."""
        tables = [partners[name] for name in self.partners]
        return fuse(reranked, run, list(self.weights.values()), depth, "reranked", tables)

    def write(self, folder: Path) -> None:
        """Write the file."""
        (folder / FILE).write_text(json.dumps(asdict(self), indent=2) + "\n", encoding="utf-8")


def of_sweep(sweep: Mapping[str, Any]) -> ServedFusion:
    """The fusion with the weights chosen on dev queries, from a WeightSweep as JSON."""
    weights = dict(zip(sweep["parts"], sweep["chosen"], strict=True))
    return ServedFusion(weights, sweep["measure"], sweep["queries"], sweep["normalisation"])


def read_served(folder: Path) -> ServedFusion:
    """Read the fusion of an exported folder. Raises ConfigError if absent, DataError if the file is damaged."""
    path = folder / FILE
    fusion = read_exported(path, ServedFusion)
    if fusion is None:
        raise ConfigError(
            "the model has no fusion weights",
            str(path),
            "export it from a run that has chosen them on dev queries, or give no other scores",
        )
    weights = list(fusion.weights.values())
    are_weights = all(weight >= 0.0 for weight in weights) and abs(sum(weights) - 1.0) <= 1e-9  # False with NaN
    if len(weights) < 2 or fusion.normalisation != "zscore" or not are_weights:
        what = f"expected weights of two systems or more with sum 1 for z-scores, got {fusion.weights}"
        raise DataError(f"is damaged: {what}", str(path), ANEW)
    return fusion
