"""Settings of how a run is executed: resources, paths, retries. None of them may change a result."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, field_validator

from anmi_ray.config.base import ExecutionSettings, FewestMost, Gpus, LabelSelector, Placed
from anmi_ray.config.paths import PathOrUri
from anmi_ray.config.train import TrainExecution
from anmi_ray.core import environment

_MOST_BUCKETS = 65_536
Count = Annotated[int, Field(ge=0)]


class DriverExecution(Placed):
    """Resources and nodes of the driver of a submitted job. A share of a CPU keeps it off the head."""

    num_cpus: float = Field(default=0.5, gt=0)
    """CPUs; a head started with --num-cpus=0 has none, so the driver runs elsewhere."""


class ScoreExecution(ExecutionSettings):
    """Resources and nodes for scoring: the trained model, its start, peers that are models, late interaction."""

    gpus: Gpus = 0.0
    """Share of a GPU that each actor takes; 0: the CPU, where vectors are computed as a shard is searched."""
    on: LabelSelector = {}
    """With GPUs: labels that their nodes must have; none: any node."""

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Torch's."""
        return "cuda" if self.gpus else "cpu"


class EmbedExecution(ScoreExecution):
    """Resources and nodes for computing document vectors."""

    actors: FewestMost = (1, 1)
    """With GPUs: the fewest and the most actors."""


class ExecutionConfig(ExecutionSettings):
    """Where a run is executed, and with which resources. The defaults fit a laptop with two cores."""

    root: PathOrUri = "results"
    """Folder or URI (s3://bucket/folder) that holds artifacts and runs."""
    address: str | None = None
    """Address of a running Ray cluster ('auto' inside a job); null starts Ray on this machine."""
    cpus: int = Field(default=0, ge=0)
    """CPUs of the cluster at its largest, without GPU nodes; 0: as its autoscaler reports, else its present CPUs.
    Ignored by a local Ray."""
    logical_cpus: int = Field(default=0, ge=0, le=1024)
    """Logical CPUs of a Ray started here; 0: twice the cores, at least 4."""
    object_store_gb: float = Field(default=0.5, gt=0)
    """Object store of a Ray started here, in GB."""
    buckets: int = Field(default=8, ge=1, le=_MOST_BUCKETS)
    """Query buckets of a new root, a power of two; if not given on a cluster: at least two per CPU."""
    threads: int = Field(default=0, ge=0)
    """Threads of a task that runs a model; 0: all cores, on a cluster one."""
    window: int = Field(default=0, ge=0)
    """Tasks submitted at once; 0: twice the cores, on a cluster `cpus`, or twice its present CPUs if its largest size
    is unknown."""
    askers: Count | FewestMost = 0
    """Actors that ask a judge: a number, or the fewest and the most, such as [1, 16]; 0: the cores, on a cluster from 1
    to its CPUs."""
    raters: int = Field(default=0, ge=0)
    """Actors that rate, a core each; 0: the number of cores, on a cluster that of tasks."""
    gpu_dollars_hour: float | None = Field(default=None, gt=0)
    """Price of a GPU for an hour."""
    chunk: int = Field(default=8192, ge=1)
    """Questions that an actor takes at once, in whole queries."""
    embed: EmbedExecution = EmbedExecution()
    """With what vectors of documents are computed."""
    score: ScoreExecution = ScoreExecution()
    """With what rerankers score."""
    train: TrainExecution = TrainExecution()
    """Resources of training."""
    judge_on: LabelSelector = {}
    """Labels of the nodes that judges which read texts run on, such as {ray-subcluster: annotate}; none: any node."""
    driver: DriverExecution = DriverExecution()
    """The driver of a job that `anmi jobs submit` starts."""
    log_format: Literal["text", "json"] = "text"
    """Output of commands: text, or a JSON line per event; workers' logs are always JSON."""

    @field_validator("buckets")
    @classmethod
    def _power_of_two(cls, value: int) -> int:
        if value & (value - 1):
            raise ValueError("must be a power of two (8, 16, … 4096)")
        return value

    @property
    def asking(self) -> tuple[int, int]:
        """Fewest and most actors that ask a judge."""
        if not self.askers and self.address is not None:
            return 1, self.cpus or self.cores
        if isinstance(self.askers, int):
            return self.askers or self.cores, self.askers or self.cores
        return self.askers

    def buckets_on(self, cpus: int) -> int:
        """Query buckets of a new root on a cluster of `cpus` CPUs: as configured, else at least two per CPU."""
        if "buckets" in self.model_fields_set:
            return self.buckets
        return max(self.buckets, min(_MOST_BUCKETS, 1 << (2 * cpus - 1).bit_length()))

    @property
    def cores(self) -> int:
        """Cores this process may use."""
        return environment.cores()

    @property
    def local_cpus(self) -> int:
        """Logical CPUs for a local Ray."""
        return self.logical_cpus or max(4, 2 * self.cores)

    @property
    def model_threads(self) -> int:
        """Threads of a task that runs a model; a cluster's nodes may have fewer cores than this machine."""
        return self.threads or (self.cores if self.address is None else 1)

    @property
    def judging_on(self) -> dict[str, str]:
        """Labels of the nodes that reading judges run on; a Ray started here has one node, and that none."""
        return self.judge_on if self.address is not None else {}

    @property
    def scoring(self) -> ScoreExecution:
        """Execution of scoring; its labels are a cluster's only."""
        return self.score if self.address is not None else self.score.model_copy(update={"on": {}})

    @property
    def training(self) -> TrainExecution:
        """Execution of training with the threads of a worker filled in; its labels count on a cluster only.

        Unless given, they are `model_threads`; on a cluster the CPUs that a worker asks for, unless `threads` is given.
        """
        update: dict[str, object] = {} if self.address is not None else {"label_selector": {}}
        if "threads" not in self.train.model_fields_set:
            cpus = int(self.train.resources.get("CPU", 1.0)) if self.address is not None else 0
            update["threads"] = self.threads or max(cpus, self.model_threads)
        return self.train.model_copy(update=update)


class PlanConfig(ExecutionSettings):
    """The collection, models and cluster of a run that is only planned; what can be looked at is counted instead."""

    documents: int | None = Field(default=None, ge=1)
    """Documents of a collection that is not here; it is not looked at then, and no model is."""
    train: int = Field(default=0, ge=0)
    """Its train queries."""
    dev: int = Field(default=0, ge=0)
    """Its dev queries."""
    test: int = Field(default=0, ge=0)
    """Its test queries."""
    prompt_tokens: int | None = Field(default=None, ge=1)
    """Mean tokens of a prompt that shows two of its documents."""
    parameters: dict[str, float] = {}
    """Billions of parameters of models that are not here, by their id."""
    gpu: str | None = Field(default=None, min_length=1)
    """GPU that models run on where they name none, such as H100."""

    def _problems(self) -> Iterator[str]:
        if (self.documents is None) != (self.train == 0):
            yield "documents and train are given together, for a collection that is not here"
