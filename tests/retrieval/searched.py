"""One shard, indexed, searched and thrown away: what tests of hits read."""

from __future__ import annotations

from contextlib import closing

import pyarrow as pa

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.retrieval.shard import DocumentEncoder, ShardIndex, query_vectors
from anmi_ray.store.shelf import scratch


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
    with closing(ShardIndex(documents, config, encoder, threads)) as index, scratch() as shelf:
        return index.search(queries, qrels, query_vectors(queries, config, encoder, shelf), seed)
