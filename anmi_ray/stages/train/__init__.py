"""train: examples -> a reranker, the weights that are best on dev, as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.models import loading
from anmi_ray.runtime.costs import MODEL_BYTES, TRAIN_TOKEN_S, StageCost, Workload
from anmi_ray.runtime.needs import Need, of_training
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.anchor import read_of_dev
from anmi_ray.stages.rerank.start import gone_on_with
from anmi_ray.store import Artifact
from anmi_ray.training import tracking


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: TrainConfig, context: Context) -> dict[str, Any]:
    """Train on all mined examples, keep the model that is best on dev; returns flows and what became of it."""
    from anmi_ray.stages.train import reranker

    return reranker.run(artifact, inputs, config, context)


def needs(_: Stage, experiment: Experiment) -> Iterable[Need]:
    """Room for the workers."""
    yield of_training(experiment.execution.training)


def check(experiment: Experiment) -> None:
    """As `check_settings`, of the reranker's training."""
    check_settings(experiment.train, experiment.execution.train)


def check_settings(config: LearnConfig, execution: TrainExecution) -> None:
    """Raise ConfigError before the first stage, not only after hours of judging.

    Where a tracker is not installed, and where the workers cannot share a step evenly.
    """
    tracking.check(execution.trackers)
    config.check_workers(execution.num_workers)


def _also(config: TrainConfig, experiment: Experiment, content: str) -> dict[str, str]:
    """The model that it starts from: the settings', or another run's."""
    return gone_on_with(experiment, content) or {"model": loading.resolve(config.model).revision or "unpinned"}


def _cost(load: Workload) -> StageCost:
    """On the cluster's cores; on GPUs where they are asked for, and the model's size and their speed are known."""
    from anmi_ray.judging.spend import planned_hours

    train = load.experiment.train
    execution = load.experiment.execution.train
    lists = train.max_steps * train.lists_per_step if train.max_steps else train.epochs * load.train
    pairs = int(lists * min(load.listed, 1 + (train.negatives or load.listed)))
    tokens = pairs * train.max_tokens
    cost = StageCost(f"{pairs:,} pairs forward and back", tokens * TRAIN_TOKEN_S, MODEL_BYTES)
    hours = planned_hours(load.experiment.plan, train.model, 3.0 * tokens)
    if not execution.use_gpu or not hours:
        return cost
    return replace(cost, seconds=0.0, gpu_hours=hours, limited=hours * 3600 / execution.num_workers)


STAGE = Stage(
    name="train",
    version=2,
    inputs=("mine", "retrieve", "ingest"),
    does="train the reranker with the hybrid loss, keep the best on dev",
    run=run,
    cost=_cost,
    of=read_of_dev,
    also=_also,
    needs=needs,
    check=check,
)
