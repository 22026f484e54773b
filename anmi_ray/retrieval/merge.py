"""Merge the hits of all shards for one bucket of queries into runs, candidates, and the documents needed of each shard.

Nothing depends on the order of shards or rows. Runs are for the evaluated splits, candidates for train queries.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core import identity
from anmi_ray.core.records import REJECT
from anmi_ray.retrieval.candidates import MergedHits, candidates, smallest_draws
from anmi_ray.retrieval.fusion import ranks, rrf, weighted_scores
from anmi_ray.retrieval.hits import HITS, System, to_run

HYBRID = "hybrid"
STUDENT = "student"  # a trained model that searches all documents; not part of runs
WANTED = pa.schema([pa.field("doc_id", identity.ID, nullable=False)])
SHARD = pa.field("shard", pa.int32(), nullable=False)
_MANY = 1 << 17  # hits held before those that can no longer matter are dropped


@dataclass(frozen=True)
class Merged:
    """A bucket's Run, Candidate and Reject tables.

    wanted: for each shard, its documents in the runs and candidates, a column doc_id.
    answered: by retriever, the number of queries for which it found a document.
    """

    runs: pa.Table
    candidates: pa.Table
    wanted: list[pa.Table]
    rejects: pa.Table
    answered: Mapping[str, int]


@dataclass(frozen=True)
class Places:
    """Every hit's ranks and scores by retriever; rank 0: not within the depth; `query`: its index in the bucket."""

    query: NDArray[np.int64]
    doc_id: NDArray[np.uint8]
    rank: dict[str, NDArray[np.int64]]
    score: dict[str, NDArray[np.float64]]


def merge_bucket(
    shards: Iterable[pa.Table],
    queries: pa.Table,
    qrels: pa.Table,
    config: RetrieveConfig,
    seed: int,
    run_splits: Sequence[str] = ("dev", "test"),
    rates_dev: bool = False,
) -> Merged:
    """Merge the hits (HITS) of every shard for `queries` (the Query table of a bucket).

    The systems of the Run are the retrievers and hybrid, their fusion, each at most `config.depth` deep, for queries of
    `run_splits`. Train queries have candidates, with `rates_dev` also dev queries without a known positive. Such a
    query without a retrieved document, and its known positives that no shard has, are rejects.
    """
    queries = queries.sort_by("query_id")
    hits, count = gather(shards, queries, config, seed)
    hits = hits.sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
    shard_H = hits["shard"]
    hits = HITS.check(hits.drop_columns("shard"), "hits of all shards")
    ranked, scores = rank_hits(hits, queries, config)
    split_N = pc.take(queries["split"].combine_chunks(), pa.array(ranked.query))
    evaluated = pc.is_in(split_N, value_set=pa.array(list(run_splits), pa.string())).to_numpy(zero_copy_only=False)
    places = {**ranked.rank, HYBRID: ranked.hybrid}
    systems: dict[str, System] = {name: (np.where(evaluated, place, 0), scores[name]) for name, place in places.items()}
    runs = to_run(ranked.query_id, ranked.doc_id, systems)
    compared_Q = compared(queries, qrels, rates_dev)
    chosen = candidates(ranked, compared_Q, config, seed)
    needed = pc.unique(pa.chunked_array([*runs["doc_id"].chunks, *chosen["doc_id"].chunks], type=identity.ID))
    doc_ids = _wanted(hits["doc_id"], shard_H, count, needed)
    answered = {name: len(np.unique(ranked.query[rank_N > 0])) for name, rank_N in ranked.rank.items()}
    return Merged(runs, chosen, doc_ids, _rejects(hits, queries, qrels, compared_Q, chosen), answered)


def compared(queries: pa.Table, qrels: pa.Table, rates_dev: bool) -> NDArray[np.bool_]:
    """Return which of `queries` get candidates."""
    train = pc.equal(queries["split"], "train")
    if not rates_dev:
        return train.to_numpy(zero_copy_only=False)
    labelled = qrels.filter(pc.greater_equal(qrels["grade"], 1))["query_id"].combine_chunks()
    free = pc.invert(pc.is_in(queries["query_id"], value_set=labelled))
    dev = pc.and_(pc.equal(queries["split"], "dev"), free)
    return pc.or_(train, dev).to_numpy(zero_copy_only=False)


def gather(shards: Iterable[pa.Table], queries: pa.Table, config: RetrieveConfig, seed: int) -> tuple[pa.Table, int]:
    """Return the hits of all shards that can matter, as HITS with the shard's number, and the number of shards.

    Memory is bounded by twice the surviving hits of a bucket, regardless of the number of shards.
    """
    kept = [pa.schema([*HITS.schema, SHARD]).empty_table()]
    limit = _MANY
    count = 0
    for number, hits in enumerate(shards):
        kept.append(hits.append_column(SHARD, pa.array(np.full(hits.num_rows, number, dtype=np.int32))))
        if sum(table.num_rows for table in kept) > limit:
            kept = [surviving(pa.concat_tables(kept), queries, config, seed)]
            limit = max(_MANY, 2 * kept[0].num_rows)
        count = number + 1
    return pa.concat_tables(kept), count


def surviving(hits: pa.Table, queries: pa.Table, config: RetrieveConfig, seed: int) -> pa.Table:
    """Return those hits of some shards that can matter after merging with any others.

    These are the hits within the depth of a retriever, known positives, and of the rest the `config.random_negatives`
    of smallest draw: what is not among the best of some shards is not among the best of more shards.
    """
    places = rank_retrievers(hits, queries, config.retrievers, config.depth)
    kept = np.logical_or.reduce([rank > 0 for rank in places.rank.values()]) | hits["is_positive"].to_numpy()
    free = hits["is_random"].to_numpy() & ~kept
    query_id = identity.id_matrix(hits["query_id"])
    kept |= smallest_draws(free, query_id, places.doc_id, places.query, config.random_negatives, seed)
    return hits.filter(pa.array(kept))


def by_shard(table: pa.Table, count: int) -> list[pa.Table]:
    """Split a table that is sorted by its column `shard` into the rows of `count` shards."""
    bounds = np.searchsorted(table["shard"].to_numpy(), np.arange(count + 1)).tolist()
    return [table.slice(begin, end - begin) for begin, end in itertools.pairwise(bounds)]


def rank_hits(
    hits: pa.Table, queries: pa.Table, config: RetrieveConfig
) -> tuple[MergedHits, dict[str, NDArray[np.float64]]]:
    """Return the ranks of every retriever over all shards and of their fusion, and each system's scores."""
    found = rank_retrievers(hits, queries, config.retrievers, config.depth)
    row_N = found.query
    doc_N16 = found.doc_id
    rank_N = found.rank
    scores = dict(found.score)
    rank_RN = np.stack([rank_N[name] for name in config.retrievers])
    fused = fuse(row_N, rank_RN, np.stack([scores[name] for name in config.retrievers]), config)
    hybrid = np.zeros(len(fused), dtype=np.int64)
    inside = (rank_RN > 0).any(axis=0)
    hybrid[inside] = ranks(row_N[inside], fused[inside], doc_N16[inside])
    hybrid = np.where(hybrid <= config.depth, hybrid, 0)
    scores[HYBRID] = fused
    ranked = MergedHits(
        query_id=identity.id_matrix(hits["query_id"]),
        doc_id=doc_N16,
        query=row_N,
        rank=rank_N,
        hybrid=hybrid,
        fused=fused,
        similarity=hits["similarity"].to_numpy(),
        is_positive=hits["is_positive"].to_numpy(),
        is_random=hits["is_random"].to_numpy(),
    )
    return ranked, scores


def rank_retrievers(hits: pa.Table, queries: pa.Table, retrievers: Sequence[str], depth: int) -> Places:
    """Rank the hits (HITS, in any order) of all shards for `queries` by each of `retrievers`."""
    query_N = pc.index_in(hits["query_id"], value_set=queries["query_id"].combine_chunks())
    if query_N.null_count:
        raise AssertionError("hits of queries that are not in this bucket")
    row_N = query_N.to_numpy().astype(np.int64)
    doc_N16 = identity.id_matrix(hits["doc_id"])
    rank_N = {}
    scores = {}
    for name in retrievers:
        column = hits[f"{name}_score"]
        has_score = pc.is_valid(column).to_numpy(zero_copy_only=False)
        scores[name] = pc.fill_null(column, 0.0).to_numpy()
        rank = np.zeros(len(has_score), dtype=np.int64)
        rank[has_score] = ranks(row_N[has_score], scores[name][has_score], doc_N16[has_score])
        rank_N[name] = np.where(rank <= depth, rank, 0)
    return Places(row_N, doc_N16, rank_N, scores)


def fuse(
    query_N: NDArray[np.int64], rank_RN: NDArray[np.int64], score_RN: NDArray[np.float64], config: RetrieveConfig
) -> NDArray[np.float64]:
    """Return the hybrid's scores by `config.fusion`, given those of `config.retrievers` in order."""
    rule = config.fusion
    weight_R = np.array([rule.weights.get(name, 1.0) for name in config.retrievers])
    if rule.rule == "rrf":
        return rrf(rank_RN, weight_R=weight_R)
    return weighted_scores(query_N, rank_RN, score_RN, weight_R)


def _wanted(doc_id: pa.ChunkedArray, shard: pa.ChunkedArray, count: int, needed: pa.Array) -> list[pa.Table]:
    """Return the needed documents of each of `count` shards, without repetition, in order."""
    rows = pa.table({"shard": shard, "doc_id": doc_id}).filter(pc.is_in(doc_id, value_set=needed))
    rows = rows.group_by(["shard", "doc_id"]).aggregate([]).sort_by([("shard", "ascending"), ("doc_id", "ascending")])
    return [ids.select(["doc_id"]).cast(WANTED) for ids in by_shard(rows, count)]


def _rejects(
    hits: pa.Table, queries: pa.Table, qrels: pa.Table, compared_Q: NDArray[np.bool_], chosen: pa.Table
) -> pa.Table:
    """Return Rejects of compared queries without candidates, and of their positives that no shard has."""
    names = queries["external_id"].to_pylist()
    ids = queries["query_id"].combine_chunks()
    with_candidates = pc.is_in(ids, value_set=pc.unique(chosen["query_id"])).to_numpy(zero_copy_only=False)
    rows = [
        (f"queries {names[i]}", names[i], "no candidates", "no document was retrieved")
        for i in np.flatnonzero(compared_Q & ~with_candidates)
    ]
    relevant = qrels.filter(pc.greater_equal(qrels["grade"], 1))
    row = pc.index_in(relevant["query_id"], value_set=ids)
    mine = pc.fill_null(pc.take(pa.array(compared_Q), row), False)
    positives = relevant.filter(mine).select(["query_id", "doc_id"])
    in_hits = hits.filter(hits["is_positive"]).select(["query_id", "doc_id"])
    lost = positives.join(in_hits, ["query_id", "doc_id"], join_type="left anti")
    name_of = dict(zip(ids.to_pylist(), names, strict=True))
    for query, doc in zip(lost["query_id"].to_pylist(), lost["doc_id"].to_pylist(), strict=True):
        rows.append((f"qrels {name_of[query]}", doc.hex(), "positive not in the corpus", ""))
    rows.sort()
    return REJECT.table({name: [row[i] for row in rows] for i, name in enumerate(REJECT.schema.names)})
