"""mine: gaps -> weighted training examples, one per anchor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.mine import MineConfig
from anmi_ray.models import loading
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.store import Artifact

# By mine.anchors, the stages that say which documents may anchor beside known positives.
CONFIRMING: dict[str, tuple[str, ...]] = {"known": (), "confirmed": ("anchor",), "rated": ("anchor",)}


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: MineConfig, context: Context) -> dict[str, Any]:
    """The mixture where a rule weighs by one, then one task per bucket; returns flows for the manifest."""
    from anmi_ray.stages.mine import examples

    return examples.run(artifact, inputs, config, context)


def _of(stage: Stage, experiment: Experiment) -> Stage:
    """It reads the judgments of both rounds where a rule validates, and queries where one asks a model or dev is rated.

    Where judges confirm anchors, it reads how likely documents are.
    """
    config = experiment.mine
    judged = ("judge", "compare", "validate", "borderline") if config.validation else ()
    asked = ("ingest",) if config.pointwise or experiment.rates_dev else ()
    inputs = (*stage.inputs, *judged, *asked, *CONFIRMING[config.anchors])
    return replace(stage, inputs=inputs, played_by={"rate": "refit"} if config.validation else {})


def _also(config: MineConfig, *_: Any) -> dict[str, str]:
    return {} if config.pointwise is None else {"model": loading.resolve(config.pointwise).revision or "unpinned"}


STAGE = Stage(
    name="mine",
    version=7,
    inputs=("rate", "retrieve"),
    does="choose and weigh negatives by their gap",
    run=run,
    of=_of,
    also=_also,
)
