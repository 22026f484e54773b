"""retrieve: documents and queries -> runs (dev, test), candidates (train), and the texts they need.

Two steps with one exchange between them. Ray Data streams the corpus shards through a pool of searchers; each writes
its hits and their texts with a row group per query bucket. Then one plain task per bucket merges its row group of
every shard. No later stage opens the corpus.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa
import ray
import ray.data
import torch

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.models import loading
from anmi_ray.models.cross_encoder import resolve_precision
from anmi_ray.models.encoder import Encoder
from anmi_ray.records import CANDIDATE, DOCUMENT, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.retrieval import merge, shard
from anmi_ray.stages import exchange
from anmi_ray.stages.runtime import Context, data_settings, our_errors, rows_of, run_buckets
from anmi_ray.store import Artifact, Flow

_EXCHANGES = ("hits", "hit_texts")


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: RetrieveConfig, context: Context) -> dict[str, Any]:
    """Search every shard, then merge every bucket; returns flows for the manifest."""
    ingest = inputs["ingest"]
    shards = int((ingest.manifest() or {})["shards"])
    if not _merged(artifact, context):
        _search(artifact, ingest, config, context, shards)
    args = (ingest, config, context.seed, shards)
    return {"flows": run_buckets(context, artifact, ("runs", RUN), _merge_bucket, *args), "shards": shards}


def _merged(artifact: Artifact, context: Context) -> bool:
    return all(artifact.seal("runs", RUN, bucket) is not None for bucket in range(context.buckets))


def _search(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, context: Context, shards: int) -> None:
    """Stream the shards that have no exchange files yet through the searchers."""
    missing = [i for i in range(shards) if exchange.groups_of(artifact, "hit_texts", i) is None]
    context.progress(shards - len(missing), shards, "shards")
    if not missing:
        return
    searchers = min(len(missing), max(1, context.execution.cores // context.execution.model_threads))
    with data_settings(context), our_errors("retrieve"):
        found = ray.data.from_items([{"shard": i} for i in missing], override_num_blocks=len(missing)).map_batches(
            _search_shards,
            fn_args=(artifact, ingest, config, context.seed, context.buckets, context.execution.model_threads),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.TaskPoolStrategy(size=searchers),
            num_cpus=0.5,
        )
        done = shards - len(missing)
        with rows_of(found) as rows:
            for _ in rows:
                done += 1
                context.progress(done, shards, "shards")


def _search_shards(batch: Any, *args: Any) -> Any:
    """Search the shards of a batch; the worker process keeps its searcher from batch to batch."""
    return _searcher(*args)(batch)


class _Searcher:
    """Holds the encoder, the queries and their vectors; a call searches shards and publishes their exchange files."""

    def __init__(
        self, artifact: Artifact, ingest: Artifact, config: RetrieveConfig, seed: int, buckets: int, threads: int
    ) -> None:
        self.artifact, self.ingest, self.config, self.seed, self.threads = artifact, ingest, config, seed, threads
        dense = config.dense
        source = loading.resolve(dense.model, trust_remote_code=dense.trust_remote_code)
        dtype = resolve_precision(dense.dtype, torch.device("cpu"))
        self.encoder = Encoder(source, dense.max_tokens, dtype, threads)
        self.queries = [ingest.read_part("queries", bucket, QUERY) for bucket in range(buckets)]
        self.qrels = pa.concat_tables([ingest.read_part("qrels", bucket, QREL) for bucket in range(buckets)])
        self.all_queries = pa.concat_tables(self.queries)
        self.vectors = shard.encode_queries(self.all_queries, config, self.encoder)

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for number in batch["shard"].tolist():
            documents = self.ingest.read_part("documents", number, DOCUMENT)
            index = shard.ShardIndex(documents, self.config, self.encoder, self.threads)
            found = index.search(self.all_queries, self.qrels, self.vectors, self.seed)
            by_bucket = [found.of_queries(queries) for queries in self.queries]
            exchange.publish(self.artifact, "hits", number, [part.hits for part in by_bucket])
            exchange.publish(self.artifact, "hit_texts", number, [part.texts for part in by_bucket])
        return batch


_searcher = lru_cache(maxsize=1)(_Searcher)


def _merge_bucket(
    artifact: Artifact, bucket: int, ingest: Artifact, config: RetrieveConfig, seed: int, shards: int
) -> list[Flow]:
    queries = ingest.read_part("queries", bucket, QUERY)
    hits = [
        shard.ShardHits(*(exchange.read(artifact, name, index, bucket) for name in _EXCHANGES))
        for index in range(shards)
    ]
    found = merge.merge_bucket(hits, queries, ingest.read_part("qrels", bucket, QREL), config, seed)
    served = set(found.runs["query_id"].to_pylist()) | set(found.candidates["query_id"].to_pylist())
    flows = [Flow("queries", queries.num_rows, len(served), queries.num_rows - len(served))]
    parts = {"runs": (RUN, found.runs), "candidates": (CANDIDATE, found.candidates), "texts": (TEXT_OF, found.texts)}
    artifact.commit_bucket(bucket, parts, flows, found.rejects)
    return flows
