"""rerank: the trained model, its start and other rerankers score the hybrid's top documents of held-out queries.

The start is the model that training starts from, as an untrained system, unless its head would be random.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from anmi_ray.config.evaluate import HeldOutConfig, PeerConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.needs import of_scoring
from anmi_ray.core.errors import ConfigError
from anmi_ray.models import loading
from anmi_ray.models.pooling import draws_head
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact, runs


def run(artifact: Artifact, inputs: Inputs, config: HeldOutConfig, context: Context) -> dict[str, Any]:
    """Run one task per bucket, with one thread each."""
    from anmi_ray.stages.rerank import held_out

    return held_out.run(artifact, inputs, config, start_of(config), context)


def config_of(experiment: Experiment) -> HeldOutConfig:
    """Return the settings of rerank."""
    return HeldOutConfig.of(experiment.rerank, experiment.train, experiment.partners)


def start_of(config: HeldOutConfig) -> PeerConfig | None:
    """Return the start as a peer that scores dev queries too; None if it is not wanted, or has no scoring head.

    Raises ConfigError if the model does not exist.
    """
    peer = config.untrained
    if peer is None or peer.start is None or peer.model is None:
        return None
    source = loading.resolve(peer.model, peer.trust_remote_code)
    if draws_head(source, peer.start.student, peer.start.pooling):
        return None
    # nothing is random, so trainings with other seeds share its scores
    return peer.model_copy(update={"start": replace(peer.start, seed=0)})


def _also(config: HeldOutConfig, experiment: Experiment, content: str) -> dict[str, str]:
    """Return the models of peers; those of other runs must be over the same collection."""
    found: dict[str, str] = {}
    for peer in config.peers:
        if peer.run is not None:
            if peer.run == experiment.name:
                what = f"run {peer.run} is this run: its model is measured anyway"
                raise ConfigError(what, "rerank.peers", "name another run under the root")
            made = runs.trained(peer.run, experiment.execution.root, content)
            found[f"{runs.TRAINED}{peer.name}"] = made.fingerprint
        elif peer.model is not None:
            found[f"model of {peer.name}"] = loading.resolve(peer.model, peer.trust_remote_code).revision
    return found


def _cost(load: Workload) -> StageCost:
    """Return the GPU hours of all models and the calls to peers behind servers.

    A student that reads texts alone, and its start, encode each document once.
    """
    config = load.experiment.rerank
    train = load.experiment.train
    pairs = load.held_out * min(config.depth, load.documents)
    tokens = config.max_tokens or train.max_tokens
    of_peers = [(peer.model or train.model, pairs * tokens) for peer in config.peers if peer.endpoint is None]
    read = pairs if train.student == "cross-encoder" else min(pairs, load.documents)
    on_paper = load.experiment.plan.documents is not None  # no model is read: assume a start with a head
    start = load.config.untrained if on_paper else start_of(load.config)
    ours = 1 if start is None else 2
    models = ours + len(of_peers)
    work = f"score {pairs:,} pairs" + (f" with {models} models" if models > 1 else "")
    calls = 0
    for peer in config.peers:
        if peer.endpoint is not None:
            most = load.test * -(-config.depth // peer.endpoint.documents_per_call)
            work += f"; at most {most:,} calls to {peer.endpoint.base_url} for {peer.name}"
            calls += most
    hours = scoring_hours(load, (train.model, ours * read * tokens), *of_peers)
    return StageCost(work, calls=calls, gpu_hours=hours)


def scoring_hours(load: Workload, *tokens: tuple[str, float]) -> float:
    """Return GPU hours of models that read `tokens` each; 0 without GPUs or if a model's size is unknown."""
    from anmi_ray.judging.spend import planned_hours

    hours = [planned_hours(load.experiment.plan, model, count) for model, count in tokens]
    return sum(hours) if load.experiment.execution.score.gpus and all(hours) else 0.0


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
