"""The body of rerank: a task per bucket, for the trained model, the start and peers."""

from __future__ import annotations

import time
from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import pyarrow as pa

from anmi_ray.config.evaluate import HeldOutConfig, Scoring
from anmi_ray.config.needs import SCORE_ON_CPU
from anmi_ray.core import environment
from anmi_ray.core.records import RUN, rejects
from anmi_ray.models.kinds import load_reranker, reads_apart
from anmi_ray.models.reranker import Device, Precision, Reranker, resolve_device
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.rerank import peers, scoring
from anmi_ray.stages.rerank.ranking import SYSTEM, with_tail
from anmi_ray.stages.rerank.scoring import Asked
from anmi_ray.stages.rerank.start import start_of
from anmi_ray.store import Artifact, Flow
from anmi_ray.store.folders import local_folder
from anmi_ray.store.runs import TRAINED


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: HeldOutConfig, context: Context) -> dict[str, Any]:
    """Score by the start and peers, then by the trained model; the latter is timed."""
    retrieve, ingest = inputs["retrieve"], inputs["ingest"]
    others: dict[str, Artifact] = {}
    start = start_of(config)
    for peer in (*((start,) if start else ()), *config.peers):
        model = inputs.get(f"{TRAINED}{peer.name}")
        others[peer.name] = peers.scored(peer, retrieve, ingest, config.depth, context, model)
    whole = not artifact.store.tree(artifact.path)  # a resumed run would time only a part
    began = time.monotonic()
    asked = Asked(retrieve, ingest, config.depth, peers.HELD_OUT)
    load = partial(trained, inputs["train"], config, context.execution.score.device)
    apart = reads_apart(str(local_folder(inputs["train"], "model")))
    flows = scoring.run(context, artifact, asked, load, apart, _bucket, others)
    took = {"seconds": time.monotonic() - began if whole else None, **environment.hardware()}
    if context.execution.address is not None or context.execution.score.gpus:
        took["cores"] = None  # unknown
    artifact.store.publish_json(timing_of(artifact), took)
    names = [peer.name for peer in config.peers]
    return {"flows": flows, "depth": config.depth, **({"peers": names} if names else {})}


def timing_of(artifact: Artifact) -> str:
    """Return the path of the trained model's scoring time; the stage's time includes the others."""
    return f"timings/reranked-{artifact.fingerprint}.json"


def trained(train: Artifact, config: Scoring, device: Device) -> Reranker:
    """The model of a train artifact, loaded once per worker process. Raises ConfigError where it sees no GPU."""
    return _model(str(local_folder(train, "model")), config.max_tokens, config.precision, device)


@lru_cache(maxsize=1)
def _model(folder: str, max_tokens: int | None, precision: Precision, device: Device) -> Reranker:
    """The model, loaded once per worker process."""
    device = resolve_device(device, f"set {SCORE_ON_CPU}")
    return load_reranker(folder, max_tokens=max_tokens, dtype=precision, threads=1, device=device)


def _bucket(
    artifact: Artifact,
    bucket: int,
    asked: Asked,
    load: scoring.Load,
    slices: int | None,
    others: Mapping[str, Artifact],
) -> list[Flow]:
    queries, hybrid, top, texts = asked.of_bucket(bucket)
    reranked = scoring.scored(artifact, bucket, (top, queries, texts), load, slices, SYSTEM)
    if reranked.num_rows:
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
