"""retrieve: documents and queries -> runs (dev, test), candidates (train), and the texts they need.

Ray Data streams the corpus shards through a pool of searchers; each writes its hits, ids and scores, with a row group
per query bucket. Where late interaction is a retriever, it then scores what they found (stages/late.py). One plain
task per bucket merges its row group of every shard, and writes which documents it wants of which shard. Each shard
then gives their texts, a row group per bucket again, and each bucket takes its own. So a text crosses once, when it is
known to be needed. No later stage opens the corpus.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
import torch

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.models import loading
from anmi_ray.models.cross_encoder import resolve_precision
from anmi_ray.models.encoder import Encoder
from anmi_ray.records import CANDIDATE, DOCUMENT, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.retrieval import merge, shard
from anmi_ray.schema import Record
from anmi_ray.stages import exchange, late
from anmi_ray.stages.runtime import Context, data_settings, our_errors, rows_of, run_buckets
from anmi_ray.store import Artifact, Flow

_RUNS, _TEXTS = ("runs", RUN), ("texts", TEXT_OF)


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: RetrieveConfig, context: Context) -> dict[str, Any]:
    """Search every shard, merge every bucket, collect the texts; returns flows for the manifest."""
    ingest = inputs["ingest"]
    shards = int((ingest.manifest() or {})["shards"])
    late.check(config)
    if not _sealed(artifact, context, _RUNS):
        _search(artifact, ingest, config, context, shards)
        late.rescore(artifact, ingest, config, context, shards)
    flows = run_buckets(context, artifact, _RUNS, _merge_bucket, ingest, config, context.seed, shards)
    if not _sealed(artifact, context, _TEXTS):
        exchange.make(context, artifact, "texts", shards, _give_texts, ingest, context.buckets)
        run_buckets(context, artifact, _TEXTS, _take_texts, shards)
    exchange.forget(artifact)
    return {"flows": flows, "shards": shards}


def _sealed(artifact: Artifact, context: Context, seal: tuple[str, Record]) -> bool:
    return all(artifact.seal(*seal, bucket) is not None for bucket in range(context.buckets))


def _search(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, context: Context, shards: int) -> None:
    """Stream the shards that have no exchange files yet through the searchers."""
    missing = [i for i in range(shards) if exchange.groups_of(artifact, "hits", i) is None]
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
    artifact: Artifact = args[0]
    if artifact not in _held:
        _held.clear()
        _held[artifact] = _Searcher(*args)
    return _held[artifact](batch)


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
            by_bucket = [shard.of_queries(found, queries) for queries in self.queries]
            exchange.publish(self.artifact, "hits", number, by_bucket)
        return batch


_held: dict[Artifact, _Searcher] = {}  # of this process; an artifact's name follows from all that a searcher is made of


def _merge_bucket(
    artifact: Artifact, bucket: int, ingest: Artifact, config: RetrieveConfig, seed: int, shards: int
) -> list[Flow]:
    queries = ingest.read_part("queries", bucket, QUERY)
    hits = late.read_hits(artifact, bucket, config, shards)
    found = merge.merge_bucket(hits, queries, ingest.read_part("qrels", bucket, QREL), config, seed)
    served = set(found.runs["query_id"].to_pylist()) | set(found.candidates["query_id"].to_pylist())
    flows = [Flow("queries", queries.num_rows, len(served), queries.num_rows - len(served))]
    exchange.publish(artifact, "wanted", bucket, found.wanted)
    parts = {"runs": (RUN, found.runs), "candidates": (CANDIDATE, found.candidates)}
    artifact.commit_bucket(bucket, parts, flows, found.rejects)
    return flows


def _give_texts(artifact: Artifact, number: int, ingest: Artifact, buckets: int) -> None:
    wanted = [exchange.read(artifact, "wanted", bucket, number) for bucket in range(buckets)]
    documents = ingest.read_part("documents", number, DOCUMENT)
    texts = shard.texts_of(documents, pc.unique(pa.concat_tables(wanted)["doc_id"]))
    parts = [texts.filter(pc.is_in(texts["doc_id"], value_set=ids["doc_id"].combine_chunks())) for ids in wanted]
    exchange.publish(artifact, "texts", number, parts)


def _take_texts(artifact: Artifact, bucket: int, shards: int) -> list[Flow]:
    parts = [exchange.read(artifact, "texts", number, bucket) for number in range(shards)]
    texts = pa.concat_tables([TEXT_OF.empty(), *parts]).sort_by("doc_id")
    artifact.commit_bucket(bucket, {"texts": (TEXT_OF, texts)}, [], None)
    return []
