"""Merge the hits of all shards for one bucket of queries into runs, candidates, and the documents needed of each shard.

Nothing depends on the order of shards or rows. Runs are for the evaluated splits. Candidates are the documents of a
train query to compare: the top of the hybrid run, known positives, random documents. Known positives are added here
only: a Run has them only if a retriever found them.
N rows (a query and a document), Q queries of the bucket, R retrievers.
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
from anmi_ray.core.records import CANDIDATE, REJECT
from anmi_ray.retrieval.hits import HITS, System, pair_hash, ranks, rrf, to_run, weighted_scores

SOURCES = ("retrieved", "added", "random")
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
    query_id: NDArray[np.uint8]
    doc_id: NDArray[np.uint8]
    rank: dict[str, NDArray[np.int64]]
    score: dict[str, NDArray[np.float64]]


@dataclass(frozen=True)
class MergedHits(Places):
    """Hits with their place in the fusion, whose score is `score[HYBRID]`.

    is_random: whether the document may be drawn as a random negative.
    """

    hybrid: NDArray[np.int64]
    similarity: NDArray[np.float64]
    is_positive: NDArray[np.bool_]
    is_random: NDArray[np.bool_]


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
    ranked = rank_hits(hits, queries, config)
    split_N = pc.take(queries["split"].combine_chunks(), pa.array(ranked.query))
    evaluated = pc.is_in(split_N, value_set=pa.array(list(run_splits), pa.string())).to_numpy(zero_copy_only=False)
    systems: dict[str, System] = {
        name: (np.where(evaluated, place, 0), ranked.score[name])
        for name, place in {**ranked.rank, HYBRID: ranked.hybrid}.items()
    }
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
    kept |= smallest_draws(free, places, config.random_negatives, seed)
    return hits.filter(pa.array(kept))


def by_shard(table: pa.Table, count: int) -> list[pa.Table]:
    """Split a table that is sorted by its column `shard` into the rows of `count` shards."""
    bounds = np.searchsorted(table["shard"].to_numpy(), np.arange(count + 1)).tolist()
    return [table.slice(begin, end - begin) for begin, end in itertools.pairwise(bounds)]


def rank_hits(hits: pa.Table, queries: pa.Table, config: RetrieveConfig) -> MergedHits:
    """Return the ranks of every retriever over all shards and of their fusion, and each system's scores."""
    found = rank_retrievers(hits, queries, config.retrievers, config.depth)
    rank_RN = np.stack([found.rank[name] for name in config.retrievers])
    fused = fuse(found.query, rank_RN, np.stack([found.score[name] for name in config.retrievers]), config)
    hybrid = np.zeros(len(fused), dtype=np.int64)
    inside = (rank_RN > 0).any(axis=0)
    hybrid[inside] = ranks(found.query[inside], fused[inside], found.doc_id[inside])
    marks = {name: hits[name].to_numpy() for name in ("similarity", "is_positive", "is_random")}
    hybrid = np.where(hybrid <= config.depth, hybrid, 0)
    return MergedHits(**{**vars(found), "score": {**found.score, HYBRID: fused}}, hybrid=hybrid, **marks)


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
    return Places(row_N, identity.id_matrix(hits["query_id"]), doc_N16, rank_N, scores)


def fuse(
    query_N: NDArray[np.int64], rank_RN: NDArray[np.int64], score_RN: NDArray[np.float64], config: RetrieveConfig
) -> NDArray[np.float64]:
    """Return the hybrid's scores by `config.fusion`, given those of `config.retrievers` in order."""
    rule = config.fusion
    weight_R = np.array([rule.weights.get(name, 1.0) for name in config.retrievers])
    if rule.rule == "rrf":
        return rrf(rank_RN, weight_R=weight_R)
    return weighted_scores(query_N, rank_RN, score_RN, weight_R)


def candidates(ranked: MergedHits, compared_Q: NDArray[np.bool_], config: RetrieveConfig, seed: int) -> pa.Table:
    """Return the Candidate table of `compared_Q`, sorted by query_id, source (retrieved, added, random), rank, doc_id.

    A document is `retrieved` in the top `config.candidates` of the hybrid run, `added` if it is a known positive
    (grade 1 or more) below that, `random` if it was drawn; each occurs once. Without a retrieved document, a query
    has no candidates.
    """
    retrieved = (ranked.hybrid > 0) & (ranked.hybrid <= config.candidates)
    usable_Q = compared_Q & (np.bincount(ranked.query[retrieved], minlength=len(compared_Q)) > 0)
    usable = usable_Q[ranked.query]
    retrieved &= usable
    added = usable & ranked.is_positive & ~retrieved
    random = _drawn(ranked, usable, config.random_negatives, seed)
    source = np.select([retrieved, added, random], [0, 1, 2], default=3)
    words = np.ascontiguousarray(ranked.doc_id).reshape(-1, identity.ID_BYTES).view(">u8")
    rank = np.where(retrieved, ranked.hybrid, 0)
    order = np.lexsort((words[:, 1], words[:, 0], rank, source, ranked.query))
    order = order[source[order] < len(SOURCES)]
    not_retrieved = ~retrieved[order]
    return CANDIDATE.table(
        {
            "query_id": ranked.query_id[order],
            "doc_id": ranked.doc_id[order],
            "source": pc.take(pa.array(SOURCES), pa.array(source[order])),
            "is_positive": ranked.is_positive[order],
            "rank": pa.array(rank[order].astype(np.int32), mask=not_retrieved),
            "fused_score": pa.array(ranked.score[HYBRID][order], mask=not_retrieved),
            "retriever_ranks": _rank_maps(
                {name: rank_N[order] for name, rank_N in ranked.rank.items()}, ~not_retrieved
            ),
            "similarity": ranked.similarity[order],
        }
    )


def _drawn(ranked: MergedHits, usable: NDArray[np.bool_], count: int, seed: int) -> NDArray[np.bool_]:
    """Return the random negatives of each query, among the documents that no retriever found."""
    free = usable & ranked.is_random & ~ranked.is_positive & (ranked.hybrid == 0)
    for rank_N in ranked.rank.values():
        free &= rank_N == 0
    return smallest_draws(free, ranked, count, seed)


def smallest_draws(free_N: NDArray[np.bool_], hits: Places, count: int, seed: int) -> NDArray[np.bool_]:
    """Choose for each query the `count` free rows with the smallest pair hash."""
    drawn = np.zeros(len(free_N), dtype=bool)
    rows = np.flatnonzero(free_N)
    if len(rows) and count:
        draws = -pair_hash(hits.query_id[rows], hits.doc_id[rows], seed)
        drawn[rows[ranks(hits.query[rows], draws, hits.doc_id[rows]) <= count]] = True
    return drawn


def _rank_maps(rank_N: Mapping[str, NDArray[np.int64]], shown_N: NDArray[np.bool_]) -> pa.MapArray:
    """Return {retriever: rank} of every row, with the retrievers that found it; empty if not shown."""
    names = sorted(rank_N)
    rank_NR = np.stack([rank_N[name] for name in names], axis=1)
    present = (rank_NR > 0) & shown_N[:, None]
    offsets = np.concatenate([[0], np.cumsum(present.sum(axis=1))]).astype(np.int32)
    row, retriever = np.nonzero(present)
    keys = pc.take(pa.array(names), pa.array(retriever))
    return pa.MapArray.from_arrays(pa.array(offsets), keys, pa.array(rank_NR[row, retriever].astype(np.int32)))


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
