"""Resources that stages and judges need of a Ray cluster; `runtime.capacity` checks that it has them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.train import TrainExecution

GPU_TYPE = "accelerator_type:"  # of resources that say which GPU a node has; a node has 1 of it, work asks for a little
_A_LITTLE = 0.001
EMBED_ON_CPU = "execution.embed.gpus: 0"
SCORE_ON_CPU = "execution.score.gpus: 0"


@dataclass(frozen=True)
class Need:
    """Workers that must run at once.

    worker: name of one, for messages.
    count: number of workers.
    each: Ray resources of one worker, all on one node.
    place: the setting to look at first.
    selector: labels of the nodes that they may run on.
    number, size, kind, labels: settings of the count, of a worker's resources, of the GPU's type, and of the selector;
        "" without one.
    gpu: setting and value that need no GPU; "" without one.
    """

    worker: str
    count: int
    each: Mapping[str, float]
    place: str
    selector: Mapping[str, str]
    number: str = ""
    size: str = ""
    gpu: str = ""
    kind: str = ""
    labels: str = ""


def gpu_of_type(name: str | None) -> dict[str, float]:
    """Resources that request a GPU of a type, by Ray's name; empty for any type."""
    return {} if name is None else {f"{GPU_TYPE}{name}": _A_LITTLE}


def needed(execution: TrainExecution) -> dict[str, float]:
    """Ray resources of one worker."""
    resources = dict(execution.resources) | ({"GPU": 1.0} if execution.use_gpu else {})
    resources |= gpu_of_type(execution.accelerator_type)
    return {name: amount for name, amount in resources.items() if amount > 0}


def of_training(execution: TrainExecution) -> Need:
    """The cluster resources that training needs."""
    return Need(
        worker="worker",
        count=execution.num_workers,
        each=needed(execution),
        place="execution.train.num_workers",
        selector=execution.label_selector,
        number="execution.train.num_workers",
        size="execution.train.resources",
        gpu="execution.train.use_gpu: false",
        kind="execution.train.accelerator_type",
        labels="execution.train.label_selector",
    )


def of_embedding(execution: ExecutionConfig) -> Need:
    """The cluster resources for computing vectors on GPUs. A local Ray has one node, without labels."""
    return Need(
        worker="embedding actor",
        count=execution.embed.actors[0],
        each={"GPU": execution.embed.gpus},
        place="execution.embed",
        selector=execution.embed.on if execution.address is not None else {},
        number="execution.embed.actors",
        size="execution.embed.gpus",
        gpu=EMBED_ON_CPU,
        labels="execution.embed.on",
    )


def of_scoring(execution: ExecutionConfig) -> Iterator[Need]:
    """The cluster resources for scoring on GPUs; nothing on the CPU."""
    if execution.score.gpus:
        yield Need(
            worker="scorer",
            count=1,
            each={"GPU": execution.score.gpus},
            place="execution.score",
            selector=execution.scoring.on,
            size="execution.score.gpus",
            gpu=SCORE_ON_CPU,
            labels="execution.score.on",
        )
