"""The body of retrieve.

With several shards, word statistics are those of the whole collection, so that a word weighs the same in each of them:
one task lists the words of queries, a task per shard counts the documents with them (and builds the shard's index,
which the search reuses), one task sums. A process holds the words of all queries at most.

Ray Data streams the corpus shards through a pool of searchers; each indexes its shard, unless the store has the
indexes, and writes its hits, ids and scores, with a row group per query bucket. Late interaction, if it is a retriever,
then scores these hits (`late`). One plain task per bucket merges its row group of every shard, and writes which
documents it needs of which shard. Each shard then writes their texts, a row group per bucket, and each bucket reads its
own. So only texts that are needed are transferred, once. No later stage opens the corpus.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import ray
import ray.data
import torch
from numpy.typing import NDArray

from anmi_ray.config.needs import EMBED_ON_CPU, of_embedding
from anmi_ray.config.retrieve import DenseConfig, RetrieveConfig
from anmi_ray.core.errors import DataError, gpu_memory_named
from anmi_ray.core.records import DOCUMENT, QREL, QUERY, RUN, TEXT_OF
from anmi_ray.core.schema import Record
from anmi_ray.models import loading
from anmi_ray.models.encoder import Encoder
from anmi_ray.models.reranker import Device, resolve_device, resolve_precision
from anmi_ray.retrieval import lucene, shard, statistics
from anmi_ray.retrieval.hits import BestScores
from anmi_ray.retrieval.statistics import Statistics
from anmi_ray.runtime import exchange
from anmi_ray.runtime.capacity import alive
from anmi_ray.runtime.stage import Inputs
from anmi_ray.runtime.tasks import Context, data_settings, model_room, our_errors, over_buckets, rows_of, run_buckets
from anmi_ray.stages.ingest import own_of
from anmi_ray.stages.retrieve import engine, late, merging
from anmi_ray.store import Artifact, Flow, add_flows, index_cache

_OTHERS = (
    "check that queries and documents are in one language, and that retrieve.bm25.stemmer and .stopwords (or "
    "retrieve.lucene.language) are for it, or choose other retrievers (retrieve.retrievers)"
)
_FULL = "raise it, so that fewer share a GPU, lower retrieve.dense.max_tokens, or end what else holds the GPU"
# Memory of a searcher, measured with 43,000 documents and 384 dimensions: the process and its encoder; vectors, counts
# and ids of a document; copies of the texts, per byte of their compressed file.
_PROCESS_BYTES = 1e9
_DOCUMENT_BYTES = 8_000
_TEXT_BYTES = 8
_RUNS, _TEXTS = ("runs", RUN), ("texts", TEXT_OF)
_ASKED = pa.schema([pa.field("retriever", pa.string(), nullable=False), statistics.WORDS])


def run(artifact: Artifact, inputs: Inputs, config: RetrieveConfig, context: Context) -> dict[str, Any]:
    """Search every shard, merge every bucket, collect the texts."""
    ingest = inputs["ingest"]
    shards = int((ingest.manifest() or {})["shards"])
    late.check(config)
    if not _sealed(artifact, context, _RUNS):
        engine.read(artifact, ingest, config, context, shards)
        _search(artifact, ingest, config, context, shards)
        late.rescore(artifact, ingest, config, context, shards)
    flows = run_buckets(context, artifact, _RUNS, merging.merge_bucket, ingest, config, context.seed, shards)
    flows = list(_checked(add_flows(flows), config, context))
    if not _sealed(artifact, context, _TEXTS):
        exchange.make(
            context, artifact, "texts", shards, merging.give_texts, ingest, context.buckets, does="read for texts"
        )
        run_buckets(context, artifact, _TEXTS, merging.take_texts, shards)
    exchange.forget(artifact)
    return {"flows": flows, "shards": shards, "retrievers": config.retrievers}


def _checked(flows: Sequence[Flow], config: RetrieveConfig, context: Context) -> Iterator[Flow]:
    """Yield the flows to report, those of retrievers only if some queries have no document; notify if most have none.

    Raises DataError if no query has a document.
    """
    by_unit = {flow.unit: flow for flow in flows}
    if not by_unit["queries"].rows_out:
        raise DataError(f"nothing was found for {by_unit['queries'].rows_in:,} queries", "retrieve", _OTHERS)
    for name in config.retrievers:
        flow = by_unit[merging.unit_of(name)]
        if 2 * flow.rejected > flow.rows_in and name != engine.NAME:
            what = f"found nothing for {flow.rejected:,} of {flow.rows_in:,} queries"
            context.notice(f"{name} {what}: {_OTHERS}")
    for flow in flows:
        if flow.unit == "queries" or flow.rejected:
            yield flow


def _sealed(artifact: Artifact, context: Context, seal: tuple[str, Record]) -> bool:
    return None not in artifact.seals(*seal, context.buckets)


def _search(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, context: Context, shards: int) -> None:
    """Stream the shards that have no exchange files yet through the searchers."""
    missing = [i for i in range(shards) if exchange.groups_of(artifact, "hits", i) is None]
    if not missing:
        return
    if "lucene" in config.retrievers:
        lucene.check()  # before workers start
    _gather_words(artifact, ingest, config, context, shards)
    args = (artifact, ingest, config, context.seed, context.buckets, shards, context.execution.model_threads)
    if len(missing) > 1:  # otherwise every searcher would compute them
        cores = model_room(context.execution)[1]
        over_buckets(context, list(range(context.buckets)), _embed_bucket, *args, cores=cores)
    done, unit = shards - len(missing), "shards searched"
    context.progress(done, shards, unit)
    execution, cpus = context.execution, math.inf
    if execution.address is not None:  # of searchers, and of actors that embed
        cpus = context.window(execution.model_threads) * execution.model_threads + execution.embed.actors[1]
    with data_settings(context, cpus=cpus), our_errors("retrieve"):
        found = ray.data.from_items([{"shard": i} for i in missing], override_num_blocks=len(missing))
        found = _embedded(found, context, args) if "dense" in config.retrievers else found
        found = found.map_batches(
            _search_shards,
            fn_args=args,
            batch_size=1,
            batch_format="numpy",
            **_searchers(context, ingest, shards, len(missing)),
        )
        with rows_of(found) as rows:
            for _ in rows:
                done += 1
                context.progress(done, shards, unit)


def _gather_words(artifact: Artifact, ingest: Artifact, config: RetrieveConfig, context: Context, shards: int) -> None:
    """Compute the collection's statistics, if several shards need them."""
    if not _needs_words(config, shards) or exchange.groups_of(artifact, "words", 0) is not None:
        return
    exchange.make(context, artifact, "asked", 1, _list_words, ingest, config, context.buckets, what="word list")
    exchange.make(context, artifact, "counted", shards, _count_words, ingest, config, does="counted")
    exchange.make(context, artifact, "words", 1, _add_words, shards, what="sum")


def _needs_words(config: RetrieveConfig, shards: int) -> bool:
    return shards > 1 and not shard.COUNT_WORDS.isdisjoint(config.retrievers)


def _list_words(artifact: Artifact, index: int, ingest: Artifact, config: RetrieveConfig, buckets: int) -> None:
    words: dict[str, set[str]] = {}
    for bucket in range(buckets):
        for name, found in shard.asked_words(ingest.read_part("queries", bucket, QUERY), config).items():
            words.setdefault(name, set()).update(found)
    rows = {"retriever": list(words), "words": [sorted(found) for found in words.values()]}
    exchange.publish(artifact, "asked", index, [pa.table(rows, schema=_ASKED)])


def _count_words(artifact: Artifact, number: int, ingest: Artifact, config: RetrieveConfig) -> None:
    words, documents = _asked_words(artifact), ingest.read_part("documents", number, DOCUMENT)
    with index_cache.shelf_of(artifact.store, index_cache.content_of_documents(documents)) as shelf:
        found = shard.statistics(documents, config, {name: set(of_name) for name, of_name in words.items()}, shelf)
    exchange.publish(artifact, "counted", number, [statistics.counted(found, words)])


def _add_words(artifact: Artifact, index: int, shards: int) -> None:
    parts = (exchange.read(artifact, "counted", number, 0) for number in range(shards))
    exchange.publish(artifact, "words", index, [statistics.summed(parts, _asked_words(artifact))])


def _asked_words(artifact: Artifact) -> Mapping[str, list[str]]:
    table = exchange.read(artifact, "asked", 0, 0)
    return dict(zip(table["retriever"].to_pylist(), table["words"].to_pylist(), strict=True))


def _searchers(context: Context, ingest: Artifact, shards: int, missing: int) -> dict[str, Any]:
    """Return the number of searchers for the `missing` of all `shards`, and the resources of each.

    On a cluster as many as other tasks, each with a CPU per thread and the memory for a shard, at most that of the
    largest node, which then searches one shard at a time.
    """
    execution = context.execution
    threads = execution.model_threads
    if execution.address is None:
        searchers = min(missing, max(1, execution.cores // threads))
        return {"compute": ray.data.TaskPoolStrategy(size=searchers), "num_cpus": 0.5}
    documents = next(flow["rows_out"] for flow in (ingest.manifest() or {})["flows"] if flow["unit"] == "documents")
    largest_file = max(ingest.store.sizes(f"{ingest.path}/documents").values())
    memory = _PROCESS_BYTES + documents / shards * _DOCUMENT_BYTES + largest_file * _TEXT_BYTES
    nodes = [node["Resources"] for node in alive() if node["Resources"].get("CPU", 0.0) >= threads]
    there = max((node.get("memory", memory) for node in nodes), default=memory)
    compute = ray.data.TaskPoolStrategy(size=min(missing, context.window(threads)))
    return {"compute": compute, "num_cpus": threads, "memory": int(min(memory, there))}


def _embedded(shards: ray.data.Dataset, context: Context, args: tuple[Any, ...]) -> ray.data.Dataset:
    """Pass on each shard once its vectors are in the store, computed by actors with GPUs.

    Without GPUs, the searchers compute them.
    """
    execution = context.execution.embed
    if not execution.gpus:
        return shards
    need = of_embedding(context.execution)
    return shards.map_batches(
        _Embedder,
        fn_constructor_args=args,
        batch_size=1,
        batch_format="numpy",
        compute=ray.data.ActorPoolStrategy(min_size=execution.actors[0], max_size=execution.actors[1]),
        num_gpus=execution.gpus,
        label_selector=dict(need.selector) or None,
    )


def _search_shards(batch: Any, *args: Any) -> Any:
    """Search the shards of a batch."""
    for number in batch["shard"].tolist():
        _searcher(*args).search(number)
    return batch


def _embed_bucket(bucket: int, *args: Any) -> None:
    _searcher(*args).asked(bucket)


class _Embedder:
    """An actor that computes the vectors of shards."""

    def __init__(self, *args: Any) -> None:
        self._searcher = _Searcher(*args, device="cuda")

    def __call__(self, batch: dict[str, Any]) -> dict[str, Any]:
        with gpu_memory_named("execution.embed.gpus", _FULL):
            for number in batch["shard"].tolist():
                self._searcher.embed(number)
        return batch


class LazyEncoder:
    """An encoder that is loaded at the first use, if vectors are missing."""

    def __init__(self, config: DenseConfig, threads: int, device: Device) -> None:
        self._config, self._threads = config, threads
        self._device: Device = device
        self._source = loading.resolve(config.model, trust_remote_code=config.trust_remote_code)

    @property
    def revision(self) -> str:
        return self._source.revision

    def encode(self, texts: Sequence[str], prompt: str | None = None) -> NDArray[np.float32]:
        return self._loaded.encode(texts, prompt)

    @cached_property
    def _loaded(self) -> Encoder:
        device = resolve_device(self._device, f"set {EMBED_ON_CPU}")
        dtype = resolve_precision(self._config.dtype, torch.device(device))
        return Encoder(self._source, self._config.max_tokens, dtype, self._threads, device)


@dataclass
class _Searcher:
    """Searches shards for all queries, bucket by bucket, and publishes their exchange files.

    best: by bucket, the scores of the shards that it has searched: worse hits of later ones are not published.
    """

    artifact: Artifact
    ingest: Artifact
    config: RetrieveConfig
    seed: int
    buckets: int
    shards: int
    threads: int
    device: Device = "cpu"
    best: dict[int, BestScores] = field(default_factory=dict[int, BestScores])
    _searched: set[int] = field(default_factory=set[int])

    def search(self, number: int) -> None:
        """Search a shard and publish the hits."""
        again = number in self._searched  # a task that Ray repeats: its scores would count twice
        self._searched.add(number)
        documents = self._documents(number)
        with self._shelf(index_cache.content_of_documents(documents)) as shelf:
            index = shard.ShardIndex(documents, self.config, self._encoder, self.threads, shelf, self._known)
            with closing(index):
                found = (self._found(index, bucket, again) for bucket in range(self.buckets))
                exchange.publish(self.artifact, "hits", number, found)

    def embed(self, number: int) -> None:
        """Compute the vectors of a shard into the store."""
        documents = self._documents(number)
        with self._shelf(index_cache.content_of_documents(documents)) as shelf:
            shard.document_vectors(documents, self.config, self._encoder, shelf)

    def asked(self, bucket: int) -> tuple[pa.Table, NDArray[np.float32]]:
        """Return the queries of a bucket and their vectors."""
        queries = self.ingest.read_part("queries", bucket, QUERY)
        with self._shelf(index_cache.content_of_queries(queries)) as shelf:
            return queries, shard.query_vectors(queries, self.config, self._encoder, shelf)

    @cached_property
    def _encoder(self) -> LazyEncoder:
        return LazyEncoder(self.config.dense, self.threads, self.device)

    @cached_property
    def _known(self) -> dict[str, Statistics]:
        if not _needs_words(self.config, self.shards):
            return {}
        return statistics.read(exchange.read(self.artifact, "words", 0, 0))

    def _found(self, index: shard.ShardIndex, bucket: int, again: bool) -> pa.Table:
        queries, vectors = self.asked(bucket)
        best = None if again else self.best.setdefault(bucket, BestScores(queries.num_rows, self.config.depth))
        qrels = self.ingest.read_part("qrels", bucket, QREL)
        rankings = engine.of_bucket(self.artifact, self.config, bucket)
        return index.search(queries, qrels, vectors, self.seed, own_of(self.ingest, bucket), rankings, best)

    def _documents(self, number: int) -> pa.Table:
        return self.ingest.read_part("documents", number, DOCUMENT).sort_by("doc_id")

    def _shelf(self, content: str) -> AbstractContextManager[index_cache.StoreShelf]:
        return index_cache.shelf_of(self.artifact.store, content)


def _searcher(*args: Any) -> _Searcher:
    """Return the searcher of this process, which keeps its encoder from task to task."""
    artifact: Artifact = args[0]
    if artifact not in _held:
        _held.clear()
        _held[artifact] = _Searcher(*args)
    return _held[artifact]


_held: dict[Artifact, _Searcher] = {}  # of this process; an artifact's fingerprint covers all arguments of its searcher
