"""The body of rerank: a task per bucket, with the runs of other rerankers (`peers`) beside the trained model's.

A cross-encoder scores a bucket's pairs in its task; of a model that reads texts alone, scores are made before, by
document (`by_document`).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.evaluate import RerankConfig
from anmi_ray.core import environment
from anmi_ray.core.records import RUN, TEXT_OF, rejects
from anmi_ray.models.kinds import load_reranker, reads_apart
from anmi_ray.models.reranker import Precision, Reranker
from anmi_ray.runtime import exchange
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank import by_document, peers
from anmi_ray.stages.rerank.ranking import ranked, rerank, with_tail
from anmi_ray.store import Artifact, Flow
from anmi_ray.store.folders import local_folder
from anmi_ray.store.runs import TRAINED

HELD_OUT = ("dev", "test")


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: RerankConfig, context: Context) -> dict[str, Any]:
    """One task per bucket, as many at once as there are cores, one thread each; returns flows for the manifest."""
    retrieve, ingest = inputs["retrieve"], inputs["ingest"]
    others: dict[str, Artifact] = {}
    for peer in config.peers:
        trained = inputs.get(f"{TRAINED}{peer.name}")
        others[peer.name] = peers.scored(peer, retrieve, ingest, config.depth, context, trained)
    whole = not artifact.store.tree(artifact.path)  # a run that goes on where another was killed times a part alone
    start = time.monotonic()
    train, buckets = inputs["train"], context.buckets
    folder = local_folder(train, "model")
    apart = reads_apart(str(folder))
    if apart and any(artifact.seal("runs", RUN, bucket) is None for bucket in range(buckets)):
        make = partial(exchange.make, context, artifact)
        make("asked", buckets, _ask, retrieve, ingest, config.depth, buckets, what="bucket", does="asked for")
        make("scored", buckets, _score, train, config, buckets, what="slice", does="scored")
    args = (train, retrieve, ingest, config, others, buckets if apart else None)
    flows = run_buckets(context, artifact, ("runs", RUN), _bucket, *args)
    exchange.forget(artifact)
    took = {"seconds": time.monotonic() - start if whole else None, **environment.hardware()}
    if context.execution.address is not None:
        took["cores"] = None  # of a cluster's nodes nobody counts how many worked
    artifact.store.publish_json(timing_of(artifact), took)
    return {"flows": flows, "depth": config.depth, **({"peers": list(others)} if others else {})}


def timing_of(artifact: Artifact) -> str:
    """Where it stands how long the trained model alone took to score; the stage's own time has the peers' in it."""
    return f"timings/reranked-{artifact.fingerprint}.json"


@lru_cache(maxsize=1)
def _model(folder: str, max_tokens: int | None, precision: Precision) -> Reranker:
    """The model, loaded once per worker process."""
    return load_reranker(folder, max_tokens=max_tokens, dtype=precision, threads=1)


def _top(
    retrieve: Artifact, ingest: Artifact, bucket: int, depth: int
) -> tuple[pa.Table, pa.Table, pa.Table, pa.Table]:
    """A bucket's held-out queries, the hybrid's Run of them, its top `depth`, and the texts of these documents."""
    queries = queries_of(ingest, bucket, *HELD_OUT)
    runs = of_queries(retrieve.read_part("runs", bucket, RUN), queries)
    hybrid = runs.filter(pc.equal(runs["system"], "hybrid"))
    top = hybrid.filter(pc.less_equal(hybrid["rank"], depth))
    return queries, hybrid, top, retrieve.read_part("texts", bucket, TEXT_OF)


def _ask(artifact: Artifact, bucket: int, retrieve: Artifact, ingest: Artifact, depth: int, slices: int) -> None:
    queries, _, top, texts = _top(retrieve, ingest, bucket, depth)
    by_document.ask(artifact, bucket, slices, top, queries, texts)


def _score(artifact: Artifact, number: int, train: Artifact, config: RerankConfig, buckets: int) -> None:
    folder = str(local_folder(train, "model"))
    by_document.score(artifact, number, buckets, partial(_model, folder, config.max_tokens, config.precision))


def _bucket(
    artifact: Artifact,
    bucket: int,
    train: Artifact,
    retrieve: Artifact,
    ingest: Artifact,
    config: RerankConfig,
    others: Mapping[str, Artifact],
    slices: int | None,
) -> list[Flow]:
    queries, hybrid, top, texts = _top(retrieve, ingest, bucket, config.depth)
    reranked = RUN.empty()
    if top.num_rows:
        if slices is None:
            model = _model(str(local_folder(train, "model")), config.max_tokens, config.precision)
            reranked = rerank(top, queries, texts, model)
        else:
            reranked = ranked(top, by_document.scores_of(artifact, bucket, slices, top))
        reranked = with_tail(reranked, hybrid)
    found = set(reranked["query_id"].to_pylist())
    lost = [query for query in queries["query_id"].to_pylist() if query not in found]
    flows = [Flow("held-out queries", queries.num_rows, len(found), len(lost))]
    why = rejects("rerank", [(query.hex(), "no candidate", "the hybrid run holds nothing to rerank") for query in lost])
    runs = [reranked]
    whys = [why]
    for name, other in others.items():
        runs.append(with_tail(peers.of_bucket(other, name, bucket), hybrid))
        flow, refused = peers.refused(other, name, bucket)
        flows.append(flow)
        whys.append(refused)
    artifact.commit_bucket(bucket, {"runs": (RUN, pa.concat_tables(runs))}, flows, pa.concat_tables(whys))
    return flows
