"""rerank: the trained model, its start and other rerankers score the hybrid's top documents of held-out queries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from anmi_ray.config.evaluate import HeldOutConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError
from anmi_ray.models import loading
from anmi_ray.runtime.costs import RUN_BYTES, SCORE_TOKEN_S, StageCost, Workload
from anmi_ray.runtime.needs import of_scoring
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.rerank.start import config_of, gone_on_with, start_of
from anmi_ray.store import Artifact, runs


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: HeldOutConfig, context: Context) -> dict[str, Any]:
    """One task per bucket, as many at once as there are cores, one thread each; returns flows for the manifest."""
    from anmi_ray.stages.rerank import held_out

    return held_out.run(artifact, inputs, config, context)


def _also(config: HeldOutConfig, experiment: Experiment, content: str) -> dict[str, str]:
    """The models of peers; those of other runs, which have to be over the same collection."""
    found = gone_on_with(experiment, content)
    for peer in config.peers:
        if peer.run is not None:
            if peer.run == experiment.name:
                raise ConfigError(
                    f"run {peer.run} is this run: its model is measured anyway",
                    "rerank.peers",
                    "name another run under the root",
                )
            made = runs.trained(peer.run, experiment.execution.root, content)
            found[f"{runs.TRAINED}{peer.name}"] = made.fingerprint
        elif peer.model is not None:
            found[f"model of {peer.name}"] = loading.resolve(peer.model, peer.trust_remote_code).revision
    return found


def _cost(load: Workload) -> StageCost:
    """Peers that are models count as much as a cross-encoder, whatever their size; those behind servers by their calls.

    Of a student that reads texts alone, and of its start, each document is computed once.
    """
    config = load.experiment.rerank
    train = load.experiment.train
    pairs = load.held_out * min(config.depth, load.documents)
    tokens = config.max_tokens or train.max_tokens
    of_peers = [(peer.model or train.model, pairs * tokens) for peer in config.peers if peer.endpoint is None]
    read = pairs if train.student == "cross-encoder" else min(pairs, load.documents)
    on_paper = load.experiment.plan.documents is not None  # no model is looked at: a start with a head is counted
    start = load.config.untrained if on_paper else start_of(load.config)
    ours = 1 if start is None else 2
    models = ours + len(of_peers)
    work = f"score {pairs:,} pairs" + (f" with {models} models" if models > 1 else "")
    for peer in config.peers:
        if peer.endpoint is not None:
            calls = load.test * -(-config.depth // peer.endpoint.documents_per_call)
            work += f"; at most {calls:,} calls to {peer.endpoint.base_url} for {peer.name}"
    kept = (ours + len(config.peers)) * pairs * RUN_BYTES
    return scoring_cost(load, work, [(train.model, ours * read * tokens), *of_peers], kept)


def scoring_cost(load: Workload, work: str, tokens: Sequence[tuple[str, float]], kept: float) -> StageCost:
    """Of models that read so many tokens each: on cores; on one GPU where scorers have them and all sizes are known."""
    from anmi_ray.judging.spend import planned_hours

    cost = StageCost(work, sum(count for _, count in tokens) * SCORE_TOKEN_S, kept, files=load.buckets)
    hours = [planned_hours(load.experiment.plan, model, count) for model, count in tokens]
    if not load.experiment.execution.score.gpus or not all(hours):
        return cost
    return replace(cost, seconds=0.0, gpu_hours=sum(hours), limited=sum(hours) * 3600)


STAGE = Stage(
    name="rerank",
    version=2,
    inputs=("train", "retrieve", "ingest"),
    does="score the hybrid's top documents of dev and test queries",
    run=run,
    cost=_cost,
    config=config_of,
    also=_also,
    needs=lambda _, experiment: of_scoring(experiment.execution),
)
