"""report: all artifacts of a run -> a page and its numbers, copied to `reports/<run>/` with a TREC run per system.

Its artifact depends on all others and on the run's name. Each run copies the files again, so they are current.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.core import environment
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context, run_task
from anmi_ray.stages.evaluate import baseline_of
from anmi_ray.store import Artifact, Store

PAGE = "report.html"
_FILES = (PAGE, "report.json")


def run(artifact: Artifact, inputs: Inputs, config: Experiment, context: Context) -> dict[str, Any]:
    """Run one task that reads what the page shows."""
    from anmi_ray.stages.report import gather

    return {"flows": run_task(context, gather.write, artifact, inputs, config, environment.describe())}


def publish(artifact: Artifact, inputs: Inputs, run: str) -> None:
    """Copy this report and the run files of its systems to `reports/<run>/`."""
    store, evaluate = artifact.store, inputs["evaluate"]
    for name in _FILES:
        store.publish(f"reports/{run}/{name}", store.read(f"{artifact.path}/{name}"))
    for system in (evaluate.manifest() or {})["systems"]:
        store.publish(f"reports/{run}/{system}.trec", store.read(f"{evaluate.path}/trec/{system}.trec"))


@dataclass(frozen=True)
class Result:
    """The command line's output for a finished run."""

    path: str
    comparisons: list[dict[str, Any]]
    measures: list[str]
    baseline: str
    simulated: bool


def result(experiment: Experiment, record: Mapping[str, Any]) -> Result:
    """Return the outcome of a run whose report is written."""
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
    version=11,
    inputs=(),  # all stages of the run: pipeline/stages.py
    does="write the page, its numbers and a run file of every system",
    run=run,
    config=lambda experiment: experiment,
    left_out=frozenset(Experiment.model_fields) - {"name"},
    publish=publish,
)
