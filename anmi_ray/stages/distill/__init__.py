"""distill: an ensemble's judgments of sampled pairs -> a small judge, calibrated and measured on held-out pairs."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import AnmiError
from anmi_ray.models import loading
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import train
from anmi_ray.store import Artifact


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: DistillConfig, context: Context) -> dict[str, Any]:
    """Train, calibrate and measure the judge; returns flows and what became of it.

    Raises DataError where pairs are of too few queries to split, fewer than labels, or all ties.
    """
    from anmi_ray.stages.distill import learn

    return learn.run(artifact, inputs, config, context)


def check(_: Stage, experiment: Experiment) -> Iterator[AnmiError]:
    """As that of `train`, of the judge's training."""
    yield from train.check_settings(experiment.distill, experiment.execution)


def _also(config: DistillConfig, *_: Any) -> dict[str, str]:
    return {"model": loading.resolve(config.model).revision or "unpinned"}


STAGE = Stage(
    name="distill",
    version=2,
    inputs=("sample", "label", "retrieve", "ingest"),
    does="train a small judge on what the ensemble said",
    run=run,
    left_out=frozenset({"judge", "sample"}),
    also=_also,
    needs=train.needs,
    check=check,
)
