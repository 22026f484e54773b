"""report: all that a run made -> a page and its numbers, and where users look, beside them a TREC run file per system.

Its artifact is made by a task and follows from every other one, and from the run's name. `reports/<run>/` shows what
the name stands for now: it is written again whenever that is another report, also one that was made before.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.core.errors import DamagedError
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context, run_task
from anmi_ray.stages import distill
from anmi_ray.stages.evaluate import baseline_of
from anmi_ray.store import Artifact, Store
from anmi_ray.store.artifact import COPIES, MADE_OF

PAGE = "report.html"
_FILES = (PAGE, "report.json")


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: Experiment, context: Context) -> dict[str, Any]:
    """One task, which reads what the page shows; returns flows for the manifest."""
    from anmi_ray.stages.report import gather

    return {"flows": run_task(context, gather.write, artifact, inputs, config, environment.describe())}


def publish(artifact: Artifact, inputs: Mapping[str, Artifact], run: str) -> None:
    """Have `reports/<run>/` hold this report, the run files of its systems and the page of its distilled judge."""
    store = artifact.store
    folder = f"reports/{run}"
    manifest = artifact.manifest() or {}
    made_of = {"version": manifest["version"], **manifest["inputs"]}
    evaluate = inputs["evaluate"]
    systems: list[str] = (evaluate.manifest() or {})["systems"]
    for name in evaluate.listed():  # what a run ends with is looked at, so that its stage makes again what is damaged
        if name.endswith(".json"):
            evaluate.read_json(name)
    there = store.sizes(folder)
    known = _made_of(store, folder)
    copies = dict[str, dict[str, Any]](known.pop(COPIES, {}))
    if copies and known == made_of and all(there.get(name) == file["bytes"] for name, file in copies.items()):
        return
    files = {name: artifact.read_listed(name) for name in _FILES}
    files |= {f"{system}.trec": evaluate.read_listed(f"trec/{system}.trec") for system in systems}
    for name, data in files.items():
        store.publish(f"{folder}/{name}", data)
        copies[name] = {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}
    if "distill" in inputs:
        distill.publish_pages(inputs["distill"], run)
    store.publish_json(f"{folder}/{MADE_OF}", {**made_of, COPIES: copies})


def _made_of(store: Store, folder: str) -> dict[str, Any]:
    """What a report's folder says that it holds; nothing where that is damaged: it is written again."""
    try:
        return store.read_json(f"{folder}/{MADE_OF}") or {}
    except DamagedError:
        return {}


@dataclass(frozen=True)
class Result:
    """What the command line prints of a finished run."""

    path: str
    comparisons: list[dict[str, Any]]
    measures: list[str]
    baseline: str
    simulated: bool


def result(experiment: Experiment, record: Mapping[str, Any]) -> Result:
    """What there is to say of a run whose report is written."""
    store = Store(experiment.execution.root)
    evaluate = Artifact(store, "evaluate", record["stages"]["evaluate"]["fingerprint"])
    config = experiment.evaluate
    return Result(
        path=store.where(f"reports/{experiment.name}/{PAGE}"),
        comparisons=evaluate.read_json("comparisons.json"),
        measures=list(config.measures),
        baseline=baseline_of(evaluate),
        simulated=experiment.simulated is not None,
    )


STAGE = Stage(
    name="report",
    version=10,
    inputs=(),  # all stages of the run: pipeline/stages.py
    does="write the page, its numbers and a run file of every system",
    run=run,
    config=lambda experiment: experiment,
    left_out=frozenset(Experiment.model_fields) - {"name"},
    publish=publish,
)
