"""Late interaction in retrieve: two passes of plain tasks between the search of the shards and their merge.

A task per bucket reads its hits of every shard and writes the pairs to score, a row group per shard (pool). A task per
shard encodes the documents of these pairs, once, and writes the scores, a row group per bucket (rescore). `merging`
reads hits with these scores.
"""

from __future__ import annotations

from functools import lru_cache

import pyarrow as pa
import pyarrow.compute as pc
import torch

from anmi_ray.config.needs import SCORE_ON_CPU
from anmi_ray.config.retrieve import LateConfig, RetrieveConfig
from anmi_ray.core.records import DOCUMENT, QUERY
from anmi_ray.models import encoder as encoders
from anmi_ray.models import loading
from anmi_ray.models.reranker import Device, resolve_device, resolve_precision
from anmi_ray.retrieval import late
from anmi_ray.runtime import exchange
from anmi_ray.runtime.actors import scorers
from anmi_ray.runtime.tasks import Context, model_room
from anmi_ray.store import Artifact


def check(config: RetrieveConfig) -> None:
    """Raise ConfigError, before the search, for settings that do not fit the model of late interaction."""
    if "late" in config.retrievers:
        encoders.check(_source(config.late), config.late)


def rescore(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, context: Context, shards: int) -> None:
    """Score the searchers' hits, if late interaction is a retriever and some scores are missing."""
    if "late" not in config.retrievers:
        return
    buckets = context.buckets
    exchange.make(context, artifact, "pairs", buckets, _pool, ingest, config, shards, what="bucket", does="pooled")
    execution = context.execution
    threads, cores = (1, 1.0) if execution.score.gpus else model_room(execution)
    args = (ingest, config.late, buckets, threads, execution.score.device)
    by = scorers(execution)
    exchange.make(context, artifact, "late", shards, _rescore, *args, does="rescored", cores=cores, by=by)


def _pool(artifact: Artifact, bucket: int, ingest: Artifact, config: RetrieveConfig, shards: int) -> None:
    hits = (exchange.read(artifact, "hits", number, bucket) for number in range(shards))
    queries = ingest.read_part("queries", bucket, QUERY)
    exchange.publish(artifact, "pairs", bucket, late.pool(hits, queries, config))


def _rescore(
    artifact: Artifact, number: int, ingest: Artifact, config: LateConfig, buckets: int, threads: int, device: Device
) -> None:
    def scored(pairs: pa.Table) -> pa.Table:
        if not pairs.num_rows:
            return late.SCORED.empty_table()
        asked = pc.unique(pairs["query_id"])
        asked_of = (ingest.read_part("queries", bucket, QUERY) for bucket in range(buckets))  # one at a time in memory
        queries = pa.concat_tables([part.filter(pc.is_in(part["query_id"], value_set=asked)) for part in asked_of])
        model = encoder(config.model_dump_json(), config.model, threads, device)
        return late.rescore(ingest.read_part("documents", number, DOCUMENT), queries, pairs, model)

    exchange.answer(artifact, "pairs", "late", number, buckets, scored)


@lru_cache(maxsize=1)
def encoder(settings: str, model: str, threads: int, device: Device = "cpu") -> encoders.TokenEncoder:
    """Load the encoder once per worker process.

    settings: as JSON, so that they can be a cache key.
    model: not from the JSON, whose relative paths would be resolved in the worker's folder.
    Raises ConfigError if a GPU is wanted and none is visible.
    """
    device = resolve_device(device, f"set {SCORE_ON_CPU}")
    config = LateConfig.model_validate_json(settings).model_copy(update={"model": model})
    dtype = resolve_precision(config.dtype, torch.device(device))
    return encoders.TokenEncoder(_source(config), config, dtype, threads, device)


def _source(config: LateConfig) -> loading.ModelSource:
    return loading.resolve(config.model, trust_remote_code=config.trust_remote_code)
