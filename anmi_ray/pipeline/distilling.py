"""`anmi distill`: a small judge, learned from what an ensemble says of a sample of pairs, for this run or any other."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import DistilledJudgeConfig
from anmi_ray.pipeline import run as main
from anmi_ray.pipeline.stages import DISTILL
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Artifact, Store


@dataclass(frozen=True)
class Distilled:
    """A judge that was made: the run that made it, its figures on held-out queries, its folder and form."""

    run: str
    summary: Mapping[str, Any]
    model: str
    form: str

    @property
    def judge(self) -> str:
        """What another run's panel says to ask it."""
        slope = float(self.summary.get("slope", 1.0))
        form = "form: pairwise" if self.form == "pairwise" else f"form: pointwise, slope: {slope!r}"
        return f"{{kind: encoder, name: distilled, model: {self.model}, {form}}}"


def with_judge(experiment: Experiment) -> Experiment:
    """Return the experiment if its panel has a distilled judge, else `<name>-distill` with one added."""
    if experiment.judge.distilled:
        return experiment
    taken, name = {judge.name for judge in experiment.judge.judges}, "distilled"
    while name in taken:
        name += "-2"
    judges = (*experiment.judge.judges, DistilledJudgeConfig(kind="distilled", name=name))
    own = f"{experiment.name}-distill"
    return experiment.model_copy(update={"name": own, "judge": experiment.judge.model_copy(update={"judges": judges})})


def distill(experiment: Experiment, reporter: Reporter | None = None) -> Distilled:
    """Run the missing stages up to distill. Raises AnmiError for user errors."""
    experiment = with_judge(experiment)
    record = main.run(experiment, reporter, last=DISTILL)
    artifact = Artifact(Store(experiment.execution.root), DISTILL, record["stages"][DISTILL]["fingerprint"])
    summary = artifact.read_json("summary.json") or {}
    folder = artifact.store.where(f"{artifact.path}/model")
    return Distilled(experiment.name, summary, folder, experiment.distill.form)
