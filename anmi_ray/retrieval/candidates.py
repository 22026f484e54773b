"""Choose the documents of a query to compare: the top of the hybrid run, known positives, random documents.

Known positives are added here only: a Run has them only if a retriever found them.
N rows (a query and a document), Q queries of the bucket, R retrievers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE
from anmi_ray.retrieval.fusion import ranks
from anmi_ray.retrieval.hits import pair_hash

SOURCES = ("retrieved", "added", "random")


@dataclass(frozen=True)
class MergedHits:
    """Merged hits, a row per query and document; ranks count from 1, 0 is not within `depth`.

    query: the query's index in the bucket.
    rank: by retriever.
    is_random: whether the document may be drawn as a random negative.
    """

    query_id: NDArray[np.uint8]
    doc_id: NDArray[np.uint8]
    query: NDArray[np.int64]
    rank: Mapping[str, NDArray[np.int64]]
    hybrid: NDArray[np.int64]
    fused: NDArray[np.float64]
    similarity: NDArray[np.float64]
    is_positive: NDArray[np.bool_]
    is_random: NDArray[np.bool_]


def candidates(ranked: MergedHits, compared_Q: NDArray[np.bool_], config: RetrieveConfig, seed: int) -> pa.Table:
    """Return the Candidate table of `compared_Q`, sorted by query_id, source (retrieved, added, random), rank, doc_id.

    A document is `retrieved` in the top `config.candidates` of the hybrid run, `added` if it is a known positive
    (grade 1 or more) below that, `random` if it was drawn; each occurs once. Without a retrieved document,
    a query has no candidates.
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
            "fused_score": pa.array(ranked.fused[order], mask=not_retrieved),
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
    return smallest_draws(free, ranked.query_id, ranked.doc_id, ranked.query, count, seed)


def smallest_draws(
    free_N: NDArray[np.bool_],
    query_N16: NDArray[np.uint8],
    doc_N16: NDArray[np.uint8],
    query_N: NDArray[np.int64],
    count: int,
    seed: int,
) -> NDArray[np.bool_]:
    """Choose for each query (`query_N`: its index) the `count` free rows with the smallest pair hash."""
    drawn = np.zeros(len(free_N), dtype=bool)
    rows = np.flatnonzero(free_N)
    if len(rows) and count:
        place = ranks(query_N[rows], -pair_hash(query_N16[rows], doc_N16[rows], seed), doc_N16[rows])
        drawn[rows[place <= count]] = True
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
