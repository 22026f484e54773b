"""train: examples -> a reranker, the weights that are best on dev, as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.needs import Need, of_training
from anmi_ray.config.train import TrainConfig, with_engine
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, caught
from anmi_ray.models import loading
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.anchor import read_of_dev
from anmi_ray.stages.rerank.start import gone_on_with
from anmi_ray.store import Artifact
from anmi_ray.training import tracking


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: TrainConfig, context: Context) -> dict[str, Any]:
    """Train on all mined examples, keep the model that is best on dev; return flows and facts for the manifest."""
    from anmi_ray.stages.train import reranker

    return reranker.run(artifact, inputs, config, context)


def needs(_: Stage, experiment: Experiment) -> Iterable[Need]:
    """Resources of the workers."""
    yield of_training(experiment.execution.training)


def check(_: Stage, experiment: Experiment) -> Iterator[AnmiError]:
    """`check_settings` of the reranker's training."""
    yield from check_settings(experiment.train, experiment.execution)


def check_settings(config: LearnConfig, execution: ExecutionConfig) -> Iterator[AnmiError]:
    """Report packages that are not installed (unless training runs on a cluster), and uneven steps."""
    yield from caught(tracking.check, execution.train.trackers)
    yield from caught(config.check_workers, execution.train.num_workers)
    if execution.address is not None:
        return
    if with_engine(config, execution.train).engine == "deepspeed":
        remedy = f"{environment.install('deepspeed')}, or set {config.group}.engine: ddp"
        yield from caught(environment.need, "deepspeed", f"{config.group}.engine", remedy)
    if config.lora is not None:
        remedy = f"{environment.install('lora')}, or leave lora out"
        yield from caught(environment.need, "peft", f"{config.group}.lora", remedy)


def _also(config: TrainConfig, experiment: Experiment, content: str) -> dict[str, str]:
    """The model to start from: the configured one, or another run's."""
    return gone_on_with(experiment, content) or {"model": loading.resolve(config.model).revision or "unpinned"}


def _cost(load: Workload) -> StageCost:
    """GPU hours, if workers have GPUs and the model's size and the GPU's speed are known."""
    from anmi_ray.judging.spend import planned_hours

    train, mine = load.experiment.train, load.experiment.mine
    listed = 1 + mine.negatives + mine.random_negatives + mine.rated_extra
    lists = train.max_steps * train.lists_per_step if train.max_steps else train.epochs * load.train
    pairs = int(lists * min(listed, 1 + (train.negatives or listed)))
    hours = planned_hours(load.experiment.plan, train.model, 3.0 * pairs * train.max_tokens)
    on_gpus = load.experiment.execution.train.use_gpu
    return StageCost(f"{pairs:,} pairs forward and back", gpu_hours=hours if on_gpus else 0.0)


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
