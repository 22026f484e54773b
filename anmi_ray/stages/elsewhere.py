"""elsewhere: another run's model, measured on this run's collection (`trained_by`).

    ingest -> retrieve -> rerank -> evaluate

Nothing is judged or trained, and nothing that is measured here changes the run that trained the model.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

from anmi_ray.config.evaluate import START, HeldOutConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import METRIC
from anmi_ray.evaluation import significance
from anmi_ray.evaluation.significance import SystemComparison
from anmi_ray.runtime.stage import Inputs
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import evaluate, rerank, train
from anmi_ray.store import Artifact, Store, runs

FOLDER = "elsewhere"  # of a root: by run that trained the model, the runs that measured it
_OF_START = ("model", "student", "pooling")  # settings that identify the untrained model, which is measured too


def _run(artifact: Artifact, inputs: Inputs, config: HeldOutConfig, context: Context) -> dict[str, Any]:
    """Rerank with the other run's model."""
    [trained] = (artifact_of_role for role, artifact_of_role in inputs.items() if role.startswith(runs.TRAINED))
    return rerank.run(artifact, {**inputs, "train": trained}, config, context)


def _also(config: HeldOutConfig, experiment: Experiment, content: str) -> dict[str, str]:
    """Return the other run's model by role. Raises ConfigError if it has none, or if it started from another model."""
    name = experiment.trained_by
    assert name is not None
    root = experiment.execution.root
    model = runs.trained(name, root, None)
    former = runs.find_run(name, root)[1]["config"]["train"]
    settings = experiment.train.model_dump(mode="json")
    if differ := [key for key in _OF_START if former.get(key, settings[key]) != settings[key]]:
        key = differ[0]
        raise ConfigError(
            f"{settings[key]} is not what run {name} trained with, {former[key]}: the start would be another model",
            f"train.{key}",
            f"set train.{key}: {former[key]}",
        )
    if config.peers:
        raise ConfigError(
            f"trained_by measures the model of run {name} alone", "rerank.peers", "leave the peers out, or train"
        )
    return {f"{runs.TRAINED}{name}": model.fingerprint}


def _publish(artifact: Artifact, inputs: Inputs, run: str) -> None:
    """Register this run with the run that trained the model, which then finds it without reading all runs."""
    store = artifact.store
    read = (inputs[rerank.STAGE.name].manifest() or {})["inputs"]
    [role] = (role for role in read if role.startswith(runs.TRAINED))
    entry = {"collection": runs.collection_of(runs.recorded(store, run) or {}), "train": read[role]}
    entry["evaluate"] = artifact.fingerprint
    store.publish_json(f"{FOLDER}/{role.removeprefix(runs.TRAINED)}/{run}.json", entry)


@dataclass(frozen=True)
class Elsewhere:
    """Measures of a run's model on another collection.

    first_stage: mean of the hybrid, whose top was reranked.
    start: mean of the model before training; None if it was not measured.
    trained: the trained model, compared with the start, else with the hybrid.
    """

    collection: str
    first_stage: float
    start: float | None
    trained: SystemComparison


def measured(store: Store, name: str) -> list[Elsewhere]:
    """Return the measures on other collections of the model that run `name` has now, by the first measure."""
    stages = (runs.recorded(store, name) or {"stages": {}})["stages"]
    trained = stages.get(train.STAGE.name, {}).get("fingerprint")
    figures: list[Elsewhere] = []
    for file in store.names(f"{FOLDER}/{name}"):
        entry = store.read_json(f"{FOLDER}/{name}/{file}") or {}
        artifact = Artifact(store, evaluate.STAGE.name, entry["evaluate"])
        if entry["train"] == trained and artifact.manifest() is not None:
            figures += _figures(entry["collection"], artifact)
    return figures


def _figures(collection: str, artifact: Artifact) -> Iterator[Elsewhere]:
    """Return the figures of an evaluate artifact; none if no test query has a label."""
    rows = [SystemComparison(**row) for row in artifact.read_json("comparisons.json")]
    by_system = {row.system: row for row in rows if row.measure == rows[0].measure}
    if "reranked" in by_system:
        start = by_system.get(START)
        baseline = "hybrid" if start is None else START
        trained = by_system["reranked"]
        if evaluate.baseline_of(artifact) != baseline:  # settings name another, or dev queries chose it
            metrics = artifact.read_part("metrics", 0, METRIC)
            trained = significance.compare(metrics, baseline, ["reranked"], trained.measure)[1]
        yield Elsewhere(collection, by_system["hybrid"].mean, None if start is None else start.mean, trained)


RERANK = replace(rerank.STAGE, inputs=("retrieve", "ingest"), run=_run, also=_also)
EVALUATE = replace(evaluate.STAGE, publish=_publish)
