"""One shard, indexed, searched and thrown away: what tests of hits read; texts and vectors likewise."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.config.retrieve import Bm25Config, RetrieveConfig
from anmi_ray.retrieval import bm25, dense
from anmi_ray.retrieval.hits import Hits
from anmi_ray.retrieval.shard import DocumentEncoder, ShardIndex, query_vectors
from anmi_ray.store.index_cache import scratch


def search_shard(
    documents: pa.Table,
    queries: pa.Table,
    qrels: pa.Table,
    config: RetrieveConfig,
    encoder: DocumentEncoder,
    seed: int,
    threads: int = 1,
) -> pa.Table:
    """The hits (HITS) of `queries` (Query table) in one shard (Document table), which is indexed for this once."""
    with closing(ShardIndex(documents.sort_by("doc_id"), config, encoder, threads)) as index, scratch() as shelf:
        return index.search(queries, qrels, query_vectors(queries, config, encoder, shelf), seed)


def search_texts(texts: Sequence[str], queries: Sequence[str], config: Bm25Config, depth: int) -> Hits:
    """Index `texts` and search them once: (index int64[Q, depth], -1 padded; score float64[Q, depth])."""
    return bm25.Bm25Index(bm25.Counts.of(texts, config), config).search(queries, depth)


def search_vectors(query_Qd: NDArray[np.float32], doc_Nd: NDArray[np.float32], depth: int, threads: int = 1) -> Hits:
    """Search vectors once, exactly: as `ExactIndex.search`."""
    return dense.ExactIndex(doc_Nd, threads).search(query_Qd, depth)
