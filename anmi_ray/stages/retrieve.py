"""retrieve: documents and queries -> runs (every split), candidates (train only), and the texts they need.

Two steps with one exchange between them. Ray Data streams the corpus shards through an actor pool; each shard writes
its hits and their texts with a row group per query bucket. Then one plain task per bucket merges its row group of
every shard. No later stage opens the corpus.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import ray
import ray.data

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.identity import bucket_of
from anmi_ray.models import loading
from anmi_ray.models.encoder import Encoder
from anmi_ray.records import CANDIDATE, DOCUMENT, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.retrieval import merge, shard
from anmi_ray.stages.runtime import Context, our_errors, run_buckets
from anmi_ray.store import Artifact, Flow, Store

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


def _exchange_path(artifact: Artifact, name: str, index: int) -> str:
    return f"{artifact.path}/exchange/{name}-{index:05d}.parquet"


def _search(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, context: Context, shards: int) -> None:
    """Stream the shards that have no exchange files yet through the searchers."""
    missing = [i for i in range(shards) if _offsets(artifact.store, _exchange_path(artifact, "hit_texts", i)) is None]
    context.progress(shards - len(missing), shards, "shards")
    if not missing:
        return
    searchers = min(len(missing), max(1, context.execution.cores // context.execution.model_threads))
    data = ray.data.DataContext.get_current().copy()
    data.enable_progress_bars = False
    data.execution_no_progress_timeout_s = context.execution.no_progress_s
    with ray.data.DataContext.current(data), our_errors("retrieve"):
        found = ray.data.from_items([{"shard": i} for i in missing], override_num_blocks=len(missing)).map_batches(
            _Searcher,
            fn_constructor_args=(artifact, ingest, config, context.seed, context.buckets, context.execution.model_threads),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(size=searchers),
            num_cpus=0.5,
        )
        done = shards - len(missing)
        for _ in found.iter_rows():
            done += 1
            context.progress(done, shards, "shards")


class _Searcher:
    """Holds the encoder and the queries; a call searches one shard and publishes its exchange files."""

    def __init__(
        self, artifact: Artifact, ingest: Artifact, config: RetrieveConfig, seed: int, buckets: int, threads: int
    ) -> None:
        self.artifact, self.ingest, self.config, self.seed, self.buckets = artifact, ingest, config, seed, buckets
        dense = config.dense
        self.encoder = Encoder(loading.resolve(dense.model), dense.max_tokens, dense.dtype, threads)
        self.queries = pa.concat_tables([ingest.read_part("queries", b, QUERY) for b in range(buckets)])
        self.qrels = pa.concat_tables([ingest.read_part("qrels", b, QREL) for b in range(buckets)])
        self.bucket = {
            query: bucket_of(text, buckets)
            for query, text in zip(
                self.queries["query_id"].to_pylist(), self.queries["text_hash"].to_pylist(), strict=True
            )
        }

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        for index in batch["shard"].tolist():
            documents = self.ingest.read_part("documents", index, DOCUMENT)
            found = shard.search_shard(documents, self.queries, self.qrels, self.config, self.encoder, self.seed)
            hit_buckets = pa.array([self.bucket[i] for i in found.hits["query_id"].to_pylist()], type=pa.int64())
            hits = [found.hits.filter(pa.compute.equal(hit_buckets, bucket)) for bucket in range(self.buckets)]
            texts = [shard.texts_of(found.texts, table) for table in hits]
            _publish_exchange(self.artifact, "hits", index, hits)
            _publish_exchange(self.artifact, "hit_texts", index, texts)
        return batch


def _publish_exchange(artifact: Artifact, name: str, index: int, tables: Sequence[pa.Table]) -> None:
    """One Parquet file with a row group per bucket; its footer lists the row group of each bucket (-1: no rows)."""
    groups, written = [], 0
    for table in tables:
        groups.append(written if table.num_rows else -1)
        written += bool(table.num_rows)
    schema = tables[0].schema.with_metadata({b"groups": ",".join(map(str, groups)).encode()})
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="zstd") as writer:
        for table in tables:
            if table.num_rows:
                writer.write_table(table.replace_schema_metadata(schema.metadata), row_group_size=table.num_rows)
    artifact.store.publish(_exchange_path(artifact, name, index), sink.getvalue())


def _offsets(store: Store, path: str) -> list[int] | None:
    """The row group of each bucket in an exchange file, or None when it is absent or cut off."""
    if not store.exists(path):
        return None
    with store.open_input(path) as stream:
        try:
            metadata = pq.read_metadata(stream).metadata or {}
        except pa.ArrowInvalid:
            return None
    return [int(group) for group in metadata[b"groups"].decode().split(",")]


def _read_exchange(artifact: Artifact, name: str, shards: int, bucket: int) -> pa.Table:
    """The rows of one bucket from every shard."""
    tables = []
    for index in range(shards):
        path = _exchange_path(artifact, name, index)
        group = (_offsets(artifact.store, path) or [])[bucket]
        with artifact.store.open_input(path) as stream:
            file = pq.ParquetFile(stream)
            empty = file.schema_arrow.empty_table()
            tables.append((file.read_row_group(group) if group >= 0 else empty).replace_schema_metadata(None))
    return pa.concat_tables(tables)


def _merge_bucket(
    artifact: Artifact, bucket: int, ingest: Artifact, config: RetrieveConfig, seed: int, shards: int
) -> list[Flow]:
    queries = ingest.read_part("queries", bucket, QUERY)
    found = merge.merge_bucket(
        _read_exchange(artifact, "hits", shards, bucket),
        _read_exchange(artifact, "hit_texts", shards, bucket),
        queries,
        ingest.read_part("qrels", bucket, QREL),
        config,
        seed,
    )
    ranked = set(found.runs["query_id"].to_pylist())
    lost = queries.num_rows - len(ranked)
    flows = [Flow("queries", queries.num_rows, len(ranked), lost)]
    parts = {"runs": (RUN, found.runs), "candidates": (CANDIDATE, found.candidates), "texts": (TEXT_OF, found.texts)}
    artifact.commit_bucket(bucket, parts, flows, found.rejects)
    return flows
