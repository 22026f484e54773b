"""The bodies of rerank: the trained model, the start and peers score the same documents of held-out queries.

The start is a peer. A peer's scores are a separate artifact, identified by the peer, the first stage's runs and the
depth, so that other trainings reuse them. The start and peers whose scores are fused score dev queries too. An
endpoint's scores are stored bucket by bucket, without failed queries, so a killed run buys at most one bucket again.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.base import result_settings
from anmi_ray.config.evaluate import HeldOutConfig, PeerConfig, Scoring
from anmi_ray.config.needs import SCORE_ON_CPU
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DamagedError, JudgeError
from anmi_ray.core.records import REJECT, RUN, rejects
from anmi_ray.judging.http import connections
from anmi_ray.judging.http.client import Failed
from anmi_ray.judging.http.reranking import RerankClient, Scores
from anmi_ray.models import loading
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.kinds import load_reranker, loader, reads_apart
from anmi_ray.models.reranker import Device, Precision, Reranker, resolve_device
from anmi_ray.runtime.stage import Inputs
from anmi_ray.runtime.tasks import Context, windowed
from anmi_ray.stages.rerank import scoring
from anmi_ray.stages.rerank.ranking import SYSTEM, pairs_of, ranked, with_tail
from anmi_ray.stages.rerank.scoring import Asked
from anmi_ray.store import Artifact, Flow, fingerprint
from anmi_ray.store.folders import local_folder
from anmi_ray.store.runs import TRAINED

VERSION = 1
HELD_OUT = ("dev", "test")
_PEER = "peer"  # system in a peer's artifact, which has no name, so that a renamed peer is reused
_BOUGHT = "bought"
# Share of a bucket's queries (at least one) that may lack scores for transient reasons. With more the run stops, since
# the peer's mean would be over other queries than ours.
_MAX_FAILURES = 0.1


def run(
    artifact: Artifact, inputs: Inputs, config: HeldOutConfig, start: PeerConfig | None, context: Context
) -> dict[str, Any]:
    """Score by the start and peers, then by the trained model; the latter is timed."""
    retrieve, ingest = inputs["retrieve"], inputs["ingest"]
    others: dict[str, Artifact] = {}
    for peer in (*((start,) if start else ()), *config.peers):
        model = inputs.get(f"{TRAINED}{peer.name}")
        others[peer.name] = score_peer(peer, retrieve, ingest, config.depth, context, model)
    whole = not artifact.store.tree(artifact.path)  # a resumed run would time only a part
    began = time.monotonic()
    asked = Asked(retrieve, ingest, config.depth, HELD_OUT)
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
    return _trained(str(local_folder(train, "model")), config.max_tokens, config.precision, device)


@lru_cache(maxsize=1)
def _trained(folder: str, max_tokens: int | None, precision: Precision, device: Device) -> Reranker:
    device = resolve_device(device, f"set {SCORE_ON_CPU}")
    return load_reranker(folder, max_tokens=max_tokens, dtype=precision, threads=1, device=device)


def _bucket(
    artifact: Artifact, bucket: int, asked: Asked, load: scoring.Load, slices: int | None, others: Inputs
) -> list[Flow]:
    queries, hybrid, top, texts = asked.of_bucket(bucket)
    reranked = scoring.scored(artifact, bucket, (top, queries, texts), load, slices, SYSTEM)
    if reranked.num_rows:
        reranked = with_tail(reranked, hybrid)
    found = set(reranked["query_id"].to_pylist())
    lost = [query for query in queries["query_id"].to_pylist() if query not in found]
    flows = [Flow("held-out queries", queries.num_rows, len(found), len(lost))]
    runs, why = [reranked], [rejects("rerank", _without_candidates(lost))]
    for name, other in others.items():
        runs.append(with_tail(of_bucket(other, name, bucket), hybrid))
        flow, unscored = refused(other, name, bucket)
        flows.append(flow)
        why.append(unscored)
    artifact.commit_bucket(bucket, {"runs": (RUN, pa.concat_tables(runs))}, flows, pa.concat_tables(why))
    return flows


def _without_candidates(query_ids: list[bytes]) -> list[tuple[str, str, str]]:
    return [(query.hex(), "no candidate", "the hybrid run holds nothing to rerank") for query in query_ids]


def artifact_of(
    peer: PeerConfig, retrieve: Artifact, ingest: Artifact, depth: int, train: Artifact | None = None
) -> Artifact:
    """Return the artifact of a peer's scores, complete or not. Raises ConfigError without a model.

    train: the other run's model, if the peer is one.
    """
    settings, inputs = _made_of(peer, retrieve, ingest, train)
    return Artifact(ingest.store, "peer", fingerprint("peer", VERSION, {"depth": depth, **settings}, inputs))


def _made_of(
    peer: PeerConfig, retrieve: Artifact, ingest: Artifact, train: Artifact | None
) -> tuple[dict[str, Any], list[str]]:
    settings = {name: value for name, value in result_settings(peer).items() if name != "name"}
    inputs = [f"retrieve={retrieve.fingerprint}", f"ingest={ingest.fingerprint}"]
    if peer.model is not None:
        inputs.append(f"model={loading.resolve(peer.model, peer.trust_remote_code).revision}")
    if train is not None:
        inputs.append(f"train={train.fingerprint}")
    return settings, inputs


def score_peer(
    peer: PeerConfig,
    retrieve: Artifact,
    ingest: Artifact,
    depth: int,
    context: Context,
    train: Artifact | None = None,
) -> Artifact:
    """Score what is missing of a peer's artifact, a Run of every bucket's queries, and return it.

    Raises ConfigError if a model cannot be loaded or has no scoring head; JudgeError if a server cannot be asked, or
    too many queries failed for transient reasons.
    """
    artifact = artifact_of(peer, retrieve, ingest, depth, train)
    if artifact.manifest() is not None:
        artifact.check_files()
        return artifact
    if peer.endpoint is not None:
        connections.read_key(peer.endpoint)
        # one bucket at a time: limits of requests hold within a process
        context = replace(context, execution=context.execution.model_copy(update={"window": 1}))
    asked = Asked(retrieve, ingest, depth, HELD_OUT if peer.dev else HELD_OUT[1:])
    load = partial(_load, peer, train, context.execution.score.device)
    by = windowed if peer.endpoint is not None else None
    flows = scoring.run(context, artifact, asked, load, _apart(peer, train), _peer_bucket, peer, by=by)
    settings, inputs = _made_of(peer, retrieve, ingest, train)
    artifact.list_files()
    artifact.complete(flows, version=VERSION, inputs=inputs, settings=settings)
    return artifact


def of_bucket(artifact: Artifact, name: str, bucket: int) -> pa.Table:
    """Return the Run of a bucket's queries, under the peer's name."""
    run = artifact.read_part("runs", bucket, RUN)
    names = pa.array([name] * len(run), type=pa.string())  # of an empty list the type would be null
    return run.set_column(run.schema.get_field_index("system"), RUN.schema.field("system"), [names])


def refused(artifact: Artifact, name: str, bucket: int) -> tuple[Flow, pa.Table]:
    """Return a peer's flow of a bucket's queries, and the rejects of those without scores."""
    flows = artifact.seal("runs", RUN, bucket)
    assert flows is not None, "a complete artifact has every bucket"
    flow = replace(flows[0], unit=f"{flows[0].unit} of {name}")
    why = artifact.read_part("rejects", bucket, REJECT).to_pylist() if flow.rejected else []
    return flow, rejects(f"rerank {name}", [(row["key"], row["reason"], row["detail"]) for row in why])


def _peer_bucket(
    artifact: Artifact, bucket: int, asked: Asked, load: scoring.Load, slices: int | None, peer: PeerConfig
) -> list[Flow]:
    queries, _, top, texts = asked.of_bucket(bucket)
    why: list[tuple[str, str, str]] = []
    if top.num_rows and peer.endpoint is not None:
        found, failed = _bought(artifact, bucket, top, queries, texts, peer)
        why = [(query.hex(), one.reason, one.detail) for query, one in failed.items()]
    else:
        found = scoring.scored(artifact, bucket, (top, queries, texts), load, slices, _PEER)
    there, scored_ = set(top["query_id"].to_pylist()), pc.count_distinct(found["query_id"]).as_py()
    ids = queries["query_id"].to_pylist()
    why += _without_candidates([query for query in ids if query not in there])
    unit = "held-out queries" if peer.dev else "test queries"
    flows = [Flow(unit, len(ids), scored_, len(why))]
    artifact.commit_bucket(bucket, {"runs": (RUN, found)}, flows, rejects("peer", why))
    return flows


def _apart(peer: PeerConfig, train: Artifact | None) -> bool:
    """Whether the peer is a model that reads each text alone."""
    if peer.start is not None:
        return peer.start.student != "cross-encoder"
    if train is not None:
        return reads_apart(str(local_folder(train, "model")))
    return peer.model is not None and reads_apart(loading.resolve(peer.model, peer.trust_remote_code))


def _load(peer: PeerConfig, train: Artifact | None, device: Device) -> Reranker:
    return _model(peer.model_dump_json(), peer.model, device) if train is None else trained(train, peer, device)


@lru_cache(maxsize=1)
def _model(settings: str, model: str | None, device: Device) -> Reranker:
    """Load a peer's model once per worker process.

    settings: of the peer, as JSON, so that they can be a cache key.
    model: not from the JSON, whose relative paths would be resolved in the worker's folder.
    Raises ConfigError if its head would be random, or a GPU is wanted and none is visible.
    """
    device = resolve_device(device, f"set {SCORE_ON_CPU}")
    peer = PeerConfig.model_validate_json(settings).model_copy(update={"model": model})
    how: dict[str, Any] = {"max_tokens": peer.max_tokens, "dtype": peer.precision, "threads": 1, "device": device}
    assert peer.model is not None
    source, start = loading.resolve(peer.model, peer.trust_remote_code), peer.start
    if start is not None:
        load = loader(start.student, start.pooling, start.prompt)
        return load(source, seed=start.seed, **how)
    found = load_reranker(source, **how)
    if isinstance(found, CrossEncoder) and found.drawn_head:
        raise ConfigError(
            f"model {peer.model} has no scoring head: a random one would be measured",
            f"peer {peer.name}",
            "give a cross-encoder, or untrained: true for the model that training starts from",
        )
    return found


def _bought(
    artifact: Artifact, bucket: int, top: pa.Table, queries: pa.Table, texts: pa.Table, peer: PeerConfig
) -> tuple[pa.Table, dict[bytes, Failed]]:
    """Return an endpoint's Run from earlier and new answers, and the queries that failed."""
    known = artifact.seal(_BOUGHT, RUN, bucket) is not None
    path = artifact.part_path(_BOUGHT, bucket)
    if not known and artifact.store.exists(path):
        raise DamagedError("expected scores", artifact.store.where(path), artifact.store.rebuild(path))
    before = artifact.read_part(_BOUGHT, bucket, RUN) if known else RUN.empty()
    missing = top.filter(pc.invert(pc.is_in(top["query_id"], value_set=pc.unique(before["query_id"]))))
    results: dict[bytes, Scores | Failed] = {}
    try:
        if missing.num_rows:
            asyncio.run(_ask(peer, missing, queries, texts, results))
    finally:  # paid for, whatever stopped the others
        good = {query: one for query, one in results.items() if isinstance(one, Scores)}
        found = pa.concat_tables([before, _run_of(missing, good)])
        if good:
            artifact.publish_part(_BOUGHT, bucket, found, RUN)
    failed = {query: one for query, one in results.items() if isinstance(one, Failed)}
    transient = [one for one in failed.values() if one.transient]
    if len(transient) > max(1, int(_MAX_FAILURES * queries.num_rows)):
        assert peer.endpoint is not None
        counts = Counter(one.reason for one in transient)
        reasons = ", ".join(f"{reason} ({count})" for reason, count in counts.most_common())
        raise JudgeError(
            f"{len(transient)} of {queries.num_rows} queries have no scores, for reasons that may go away: {reasons}",
            connections.place(peer.endpoint),
            "run again, which asks only those; or take the peer out",
        )
    return found, failed


async def _ask(
    peer: PeerConfig, top: pa.Table, queries: pa.Table, texts: pa.Table, results: dict[bytes, Scores | Failed]
) -> None:
    """Fill `results` by query as they arrive."""
    assert peer.endpoint is not None
    asked, documents = pairs_of(top, queries, texts)
    rows: dict[bytes, list[int]] = {}
    for row, query in enumerate(top["query_id"].to_pylist()):
        rows.setdefault(query, []).append(row)

    async def one(client: RerankClient, query: bytes, of: Sequence[int]) -> None:
        results[query] = await client.score(asked[of[0]], [documents[row] for row in of], query)

    async with RerankClient(peer.endpoint) as client:
        tasks = [asyncio.create_task(one(client, query, of)) for query, of in rows.items()]
        try:
            await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _run_of(top: pa.Table, scores: dict[bytes, Scores]) -> pa.Table:
    ids = pa.array(sorted(scores), type=top.schema.field("query_id").type)
    rows = top.filter(pc.is_in(top["query_id"], value_set=ids))
    left = {query: iter(one.values) for query, one in scores.items()}
    values = np.array([next(left[query]) for query in rows["query_id"].to_pylist()])
    return ranked(rows, values, _PEER) if rows.num_rows else RUN.empty()
