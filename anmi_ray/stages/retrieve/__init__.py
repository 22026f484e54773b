"""retrieve: documents and queries -> runs (dev, test), candidates (train), and the texts they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.needs import Need, of_embedding, of_scoring
from anmi_ray.config.retrieve import RatedDevConfig, RetrieveConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, caught
from anmi_ray.models import loading
from anmi_ray.retrieval import jvm
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact
from anmi_ray.tables import formats


def run(artifact: Artifact, inputs: Inputs, config: RetrieveConfig, context: Context) -> dict[str, Any]:
    """Search every shard, merge every bucket, collect the texts."""
    from anmi_ray.stages.retrieve import search

    return search.run(artifact, inputs, config, context)


def _also(config: RetrieveConfig, *_: Any) -> dict[str, str]:
    models = {"model": config.dense.model}
    if "late" in config.retrievers:
        models["model of late"] = config.late.model
    others = {"dev": "rated"} if config.rates_dev else {}
    if config.engine is not None:
        others["rankings of engine"] = formats.content_hash(Path(config.engine))
    return {name: loading.resolve(model).revision or "unpinned" for name, model in models.items()} | others


def _config(experiment: Experiment) -> RetrieveConfig:
    return RatedDevConfig.of(experiment.retrieve) if experiment.rates_dev else experiment.retrieve


def _needs(_: Stage, experiment: Experiment) -> Iterable[Need]:
    execution = experiment.execution
    if "dense" in experiment.retrieve.retrievers and execution.embed.gpus:
        yield of_embedding(execution)
    if "late" in experiment.retrieve.retrievers:
        yield from of_scoring(execution)


def _check(_: Stage, experiment: Experiment) -> Iterator[AnmiError]:
    """Check packages of the retrievers; not on a cluster, where those of the nodes count."""
    if experiment.execution.address is not None:
        return
    if "lucene" in experiment.retrieve.retrievers:
        yield from caught(jvm.check)
    remedy = environment.install(None, "faiss-cpu")
    yield from caught(environment.need, "faiss", "stage retrieve", f"{remedy} --force-reinstall --no-deps")


STAGE = Stage(
    name="retrieve",
    version=5,
    inputs=("ingest",),
    does="runs of held-out queries, each retriever and their fusion, candidates of train queries, texts",
    run=run,
    config=_config,
    also=_also,
    needs=_needs,
    check=_check,
)
