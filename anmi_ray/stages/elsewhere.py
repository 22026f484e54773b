"""elsewhere: another run's model, measured over a collection of its own (`trained_by`).

    ingest -> retrieve -> rerank -> evaluate

Nothing is judged or trained, and nothing that is measured here goes back into the run whose model it is.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from anmi_ray.config.evaluate import START, HeldOutConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import METRIC
from anmi_ray.evaluation import significance
from anmi_ray.evaluation.significance import SystemComparison
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import evaluate, rerank, train
from anmi_ray.store import Artifact, Store, runs

FOLDER = "elsewhere"  # of a root: by run whose model it is, what measured it
_OF_START = ("model", "student", "pooling")  # by which the untrained model is measured beside the trained one


def _run(artifact: Artifact, inputs: Mapping[str, Artifact], config: HeldOutConfig, context: Context) -> dict[str, Any]:
    """As every rerank, with the other run's model."""
    [trained] = (made for role, made in inputs.items() if role.startswith(runs.TRAINED))
    return rerank.run(artifact, {**inputs, "train": trained}, config, context)


def _also(config: HeldOutConfig, experiment: Experiment, content: str) -> dict[str, str]:
    """The other run's model by its role. ConfigError where it has none, or started from another model than is said."""
    name = experiment.trained_by
    assert name is not None
    root = experiment.execution.root
    made = runs.trained(name, root, None)
    known = runs.find_run(name, root)[1]["config"]["train"]
    given = experiment.train.model_dump(mode="json")
    if differ := [key for key in _OF_START if known.get(key, given[key]) != given[key]]:
        key = differ[0]
        raise ConfigError(
            f"{given[key]} is not what run {name} trained with, {known[key]}: the start would be another model",
            f"train.{key}",
            f"set train.{key}: {known[key]}",
        )
    if config.peers:
        raise ConfigError(
            f"trained_by measures the model of run {name} alone", "rerank.peers", "leave the peers out, or train"
        )
    return {f"{runs.TRAINED}{name}": made.fingerprint}


def _publish(artifact: Artifact, inputs: Mapping[str, Artifact], run: str) -> None:
    """Have the run whose model it is know of this one, without looking at all runs of a root."""
    store = artifact.store
    read = (inputs[rerank.STAGE.name].manifest() or {})["inputs"]
    [role] = (role for role in read if role.startswith(runs.TRAINED))
    told = {"collection": runs.collection_of(runs.recorded(store, run) or {}), "train": read[role]}
    told["evaluate"] = artifact.fingerprint
    store.publish_json(f"{FOLDER}/{role.removeprefix(runs.TRAINED)}/{run}.json", told)


@dataclass(frozen=True)
class Elsewhere:
    """What a run's model achieves on another collection, beside the first stage and the model that it started from.

    first_stage: the mean of the hybrid, whose top was ranked. start: the mean of the model before training, None where
    that was not measured. trained: the model's own ranking, compared with the start, or with the hybrid where there is
    none.
    """

    collection: str
    first_stage: float
    start: float | None
    trained: SystemComparison


def measured(store: Store, name: str) -> list[Elsewhere]:
    """What the model that run `name` has now was measured to achieve on other collections, by the first measure."""
    stages = (runs.recorded(store, name) or {"stages": {}})["stages"]
    trained = stages.get(train.STAGE.name, {}).get("fingerprint")
    found: list[Elsewhere] = []
    for file in store.names(f"{FOLDER}/{name}"):
        told = store.read_json(f"{FOLDER}/{name}/{file}") or {}
        made = Artifact(store, evaluate.STAGE.name, told["evaluate"])
        if told["train"] == trained and made.manifest() is not None:
            found += _told(told["collection"], made)
    return found


def _told(collection: str, made: Artifact) -> Iterator[Elsewhere]:
    """Return the figures of an evaluate artifact; none if no test query has a label."""
    rows = [SystemComparison(**row) for row in made.read_json("comparisons.json")]
    by_system = {row.system: row for row in rows if row.measure == rows[0].measure}
    if "reranked" in by_system:
        start = by_system.get(START)
        baseline = "hybrid" if start is None else START
        trained = by_system["reranked"]
        if evaluate.baseline_of(made) != baseline:  # a file of settings names another, or has dev queries that chose it
            metrics = made.read_part("metrics", 0, METRIC)
            trained = significance.compare(metrics, baseline, ["reranked"], trained.measure)[1]
        yield Elsewhere(collection, by_system["hybrid"].mean, None if start is None else start.mean, trained)


RERANK = replace(rerank.STAGE, inputs=("retrieve", "ingest"), run=_run, also=_also)
EVALUATE = replace(evaluate.STAGE, publish=_publish)
