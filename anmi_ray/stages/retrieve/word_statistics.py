"""Word statistics in retrieve, before the search of several shards, so that a word weighs the same in each of them.

One task lists the words of queries, a task per shard counts the documents with them (and builds the shard's index,
which the search reuses), one task sums. A process holds the words of all queries at most.
"""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.core.records import DOCUMENT, QUERY
from anmi_ray.retrieval import shard, statistics
from anmi_ray.retrieval.statistics import Statistics
from anmi_ray.runtime import exchange
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact, index_cache

_ASKED = pa.schema([pa.field("retriever", pa.string(), nullable=False), statistics.WORDS])


def gather(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, context: Context, shards: int) -> None:
    """Compute the collection's statistics, if several shards need them."""
    if not _needed(config, shards) or exchange.groups_of(artifact, "words", 0) is not None:
        return
    exchange.make(context, artifact, "asked", 1, _ask, ingest, config, context.buckets, what="word list")
    exchange.make(context, artifact, "counted", shards, _count, ingest, config, does="counted")
    exchange.make(context, artifact, "words", 1, _add_up, shards, what="sum")


def of_collection(artifact: Artifact, config: RetrieveConfig, shards: int) -> dict[str, Statistics]:
    """Read the result of `gather` by retriever; empty if one shard is the whole collection."""
    return statistics.read(exchange.read(artifact, "words", 0, 0)) if _needed(config, shards) else {}


def _needed(config: RetrieveConfig, shards: int) -> bool:
    return shards > 1 and not shard.COUNT_WORDS.isdisjoint(config.retrievers)


def _ask(artifact: Artifact, index: int, ingest: Artifact, config: RetrieveConfig, buckets: int) -> None:
    words: dict[str, set[str]] = {}
    for bucket in range(buckets):
        for name, found in shard.asked_words(ingest.read_part("queries", bucket, QUERY), config).items():
            words.setdefault(name, set()).update(found)
    rows = {"retriever": list(words), "words": [sorted(found) for found in words.values()]}
    exchange.publish(artifact, "asked", index, [pa.table(rows, schema=_ASKED)])


def _count(artifact: Artifact, number: int, ingest: Artifact, config: RetrieveConfig) -> None:
    words, documents = _asked(artifact), ingest.read_part("documents", number, DOCUMENT)
    with index_cache.shelf_of(artifact.store, index_cache.content_of_documents(documents)) as shelf:
        found = shard.statistics(documents, config, {name: set(of_name) for name, of_name in words.items()}, shelf)
    exchange.publish(artifact, "counted", number, [statistics.counted(found, words)])


def _add_up(artifact: Artifact, index: int, shards: int) -> None:
    parts = (exchange.read(artifact, "counted", number, 0) for number in range(shards))
    exchange.publish(artifact, "words", index, [statistics.summed(parts, _asked(artifact))])


def _asked(artifact: Artifact) -> Mapping[str, list[str]]:
    table = exchange.read(artifact, "asked", 0, 0)
    return dict(zip(table["retriever"].to_pylist(), table["words"].to_pylist(), strict=True))
