"""What each stage of a run has to do: what stages say of themselves, each from what those before it hand on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.judging.spend import CallCost
from anmi_ray.pipeline.stages import stages_of
from anmi_ray.runtime.costs import COMPARED, StageCost, Workload
from anmi_ray.runtime.stage import Stage

Calls = Callable[[Stage, int], Sequence[CallCost]]
Manifest = Callable[[Stage], Mapping[str, Any] | None]


def costs(
    experiment: Experiment,
    counts: Mapping[str, int],
    calls: Calls = lambda *_: (),
    manifest: Manifest = lambda _: None,
) -> dict[str, StageCost]:
    """By stage, its work, in order; counts: documents, and queries by split.

    calls: what asking the language models of a stage's panel about so many pairs costs, where that is known; manifest:
    a stage's, where its artifact is complete.
    """
    found: dict[str, StageCost] = {}
    for stage in stages_of(experiment):
        pairs = {role: found[name].pairs for role, name in stage.reads.items()}
        load = Workload(
            experiment=experiment,
            config=stage.config_of(experiment),
            documents=counts["documents"],
            train=counts["train"],
            dev=counts["dev"],
            test=counts["test"],
            pairs=pairs,
            calls=calls(stage, pairs[COMPARED]) if stage.asks else (),
            manifest=manifest(stage),
        )
        cost = stage.cost(load)
        found[stage.name] = replace(cost, files=cost.files + 1)  # and its manifest
    return found
