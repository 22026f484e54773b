"""sample: candidates -> the pairs that an ensemble is asked about and a judge learns from, no document in two."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anmi_ray.config.distill import SampleConfig
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.ingest import TRAIN_QUERIES
from anmi_ray.store import Artifact


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: SampleConfig, context: Context) -> dict[str, Any]:
    """Draw, then one task per bucket; returns flows for the manifest.

    Raises DataError where a single query can be compared, or fewer than ten pairs are found.
    """
    from anmi_ray.stages.sample import draw

    return draw.run(artifact, inputs, config, context)


def _cost(load: Workload) -> StageCost:
    return StageCost(f"{load.config.pairs:,} pairs of {load.train:,} queries", load.config.pairs)


STAGE = Stage(
    name="sample",
    version=1,
    inputs=("retrieve",),
    does="draw pairs of candidates, queries evenly and no document twice",
    run=run,
    cost=_cost,
    settings="distill.sample",
    split=TRAIN_QUERIES,
)
