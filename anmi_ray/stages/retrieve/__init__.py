"""retrieve: documents and queries -> runs (dev, test), candidates (train), and the texts they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.retrieve import HnswIndex, IvfPqIndex, RatedDevConfig, RetrieveConfig, Retriever
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, caught
from anmi_ray.models import loading
from anmi_ray.retrieval import jvm
from anmi_ray.runtime.costs import RUN_BYTES, TEXT_BYTES, StageCost, Workload
from anmi_ray.runtime.needs import Need, of_embedding, of_scoring
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact

_EMBED_DOCUMENT_S = 0.015
_SEARCH_S = 4.5e-8  # of a document for a query: BM25 and exact cosines of 384 dimensions
_EMBED_QUERY_S = 3.5e-3  # of 32 tokens
_LATE_PAIR_S = 6e-5  # MaxSim of 32 and 128 vectors of 384 dimensions
_CANDIDATE_BYTES = 45
_HIT_BYTES = 23
# Of a document of 1,500 characters, and of a shard with its manifest: counts of words, Lucene's index, 384 numbers.
_INDEX_BYTES: dict[Retriever, int] = {"bm25": 210, "lucene": 195, "dense": 4 * 384}
_INDEX_FILES: dict[Retriever, int] = {"bm25": 3, "lucene": 5, "dense": 2}
_PARTS = 3  # of a bucket


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: RetrieveConfig, context: Context) -> dict[str, Any]:
    """Search every shard, merge every bucket, collect the texts; returns flows for the manifest."""
    from anmi_ray.stages.retrieve import search

    return search.run(artifact, inputs, config, context)


def _also(config: RetrieveConfig, *_: Any) -> dict[str, str]:
    models = {"model": config.dense.model}
    if "late" in config.retrievers:
        models["model of late"] = config.late.model
    dev = {"dev": "rated"} if config.rates_dev else {}
    return {name: loading.resolve(model).revision or "unpinned" for name, model in models.items()} | dev


def _config(experiment: Experiment) -> RetrieveConfig:
    return RatedDevConfig.of(experiment.retrieve) if experiment.rates_dev else experiment.retrieve


def _needs(_: Stage, experiment: Experiment) -> Iterable[Need]:
    execution = experiment.execution
    if "dense" in experiment.retrieve.retrievers and execution.embed.gpus:
        yield of_embedding(execution)
    if "late" in experiment.retrieve.retrievers:
        yield from of_scoring(execution)


def _check(_: Stage, experiment: Experiment) -> Iterator[AnmiError]:
    """Packages of the retrievers; on a cluster those of the nodes count."""
    if experiment.execution.address is not None:
        return
    if "lucene" in experiment.retrieve.retrievers:
        yield from caught(jvm.check)
    remedy = environment.install(None, "faiss-cpu")
    yield from caught(environment.need, "faiss", "stage retrieve", f"{remedy} --force-reinstall --no-deps")


def _cost(load: Workload) -> StageCost:
    """Every shard leaves its best of each query for the merge, which grows with the shards; what survives, its text."""
    config: RetrieveConfig = load.config
    documents = load.documents
    queries = load.queries
    shards = load.shards
    hits = queries * min(config.depth, documents // shards) * shards * len(config.searchers)
    texts = load.candidates + load.train * config.random_negatives + load.held_out * config.depth
    searches = f"{queries:,} searches of {shards:,} shards"
    work = f"embed {documents + queries:,} texts, {searches}, {load.candidates:,} candidates"
    seconds = (documents + queries) * _EMBED_DOCUMENT_S + queries * documents * _SEARCH_S
    # of hits and texts that are exchanged nothing is kept, but while it runs they are there
    exchanged = hits * _HIT_BYTES + texts * TEXT_BYTES
    runs = load.held_out * config.depth * (len(config.retrievers) + 1) * RUN_BYTES
    indexes, files = _indexes(config, documents, shards)
    files += 2 * shards + load.buckets
    if "late" in config.retrievers:
        pooled = min(config.depth * len(config.searchers), documents)  # of a query, at most
        pairs = queries * pooled
        work += f", {pairs:,} pairs scored by late interaction"
        # a shard encodes the queries that have a document in it
        seconds += min(documents, pairs) * _EMBED_DOCUMENT_S
        seconds += queries * min(shards, pooled) * _EMBED_QUERY_S + pairs * _LATE_PAIR_S
        exchanged += 2 * pairs * _HIT_BYTES
        files += shards + load.buckets
    kept = indexes + runs + load.candidates * _CANDIDATE_BYTES + texts * TEXT_BYTES
    return StageCost(work, seconds, kept + exchanged, files=files + _PARTS * load.buckets)


def _indexes(config: RetrieveConfig, documents: int, shards: int) -> tuple[int, int]:
    """Bytes and files of what is kept of shards: counts of words, vectors, Lucene's and approximate indexes."""
    size = 0
    files = 0
    for name in config.searchers:
        size += documents * _INDEX_BYTES[name]
        files += shards * _INDEX_FILES[name]
    if "dense" in config.searchers:
        index = config.dense.index
        size -= documents * _INDEX_BYTES["dense"] // 2 if config.dense.stored == "float16" else 0
        if isinstance(index, IvfPqIndex):
            size += documents * (index.code_bytes + 8)
        elif isinstance(index, HnswIndex):
            size += documents * (_INDEX_BYTES["dense"] + 8 * index.links + 8)
        files += 2 * shards if index.kind != "flat" else 0
    return size, files


STAGE = Stage(
    name="retrieve",
    version=5,
    inputs=("ingest",),
    does="runs of held-out queries, each retriever and their fusion, candidates of train queries, texts",
    run=run,
    cost=_cost,
    config=_config,
    also=_also,
    needs=_needs,
    check=_check,
)
