"""borderline: gaps -> the second round's comparisons: borderline documents to judge directly against their anchor.

Pairs that were compared already are not asked again: they are in the part `known`, and their judgments count.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.mine import MineConfig
from anmi_ray.core.records import CANDIDATE, COMPARISON, GAP, RATING
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.mine import CONFIRMING, confirmed
from anmi_ray.store import Artifact, Flow

# Share of candidates that are borderline (80 to 150 points) and not yet compared with their anchor, rounded up:
# .6 % by the quickstart's panel, .5 % by SciFact's, 1.3 % by the similarity judge on a small collection.
_SHARE = 0.015
_WANTED = "to ask about"


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: MineConfig, context: Context) -> dict[str, Any]:
    """Run one task per bucket."""
    return {"flows": run_buckets(context, artifact, ("comparisons", COMPARISON), _bucket, inputs, config)}


def _bucket(artifact: Artifact, bucket: int, inputs: Mapping[str, Artifact], config: MineConfig) -> list[Flow]:
    from anmi_ray import mining

    rate = inputs["rate"]
    gaps = rate.read_part("gaps", bucket, GAP)
    if "ingest" in inputs:  # dev queries, which are rated to choose by, have no example
        gaps = of_queries(gaps, queries_of(inputs["ingest"], bucket, "train"))
    found = mining.borderline(
        rate.read_part("ratings", bucket, RATING),
        gaps,
        inputs["retrieve"].read_part("candidates", bucket, CANDIDATE),
        inputs["compare"].read_part("comparisons", bucket, COMPARISON),
        config,
        confirmed(inputs, bucket),
    )
    wanted, known = found.wanted.num_rows, found.known.num_rows
    counts = {"borderline documents": wanted + known, "compared before": known, _WANTED: wanted}
    flows = [Flow(unit, count, count) for unit, count in counts.items()]
    parts = {"comparisons": (COMPARISON, found.wanted), "known": (COMPARISON, found.known)}
    artifact.commit_bucket(bucket, parts, flows, None)
    return flows


def _of(stage: Stage, experiment: Experiment) -> Stage:
    """Read the confirmed anchors if they are used, and queries if dev is rated."""
    asked = ("ingest",) if experiment.rates_dev else ()
    return replace(stage, inputs=(*stage.inputs, *asked, *CONFIRMING[experiment.mine.anchors]))


def _cost(load: Workload) -> StageCost:
    """Count what it found, else a share of the candidates."""
    pairs = load.found(_WANTED, round(_SHARE * load.candidates))
    return StageCost(f"about {pairs:,} borderline documents to ask about", pairs)


STAGE = Stage(
    name="borderline",
    version=1,
    inputs=("rate", "compare", "retrieve"),
    does="find borderline documents that were not compared with their anchor",
    run=run,
    cost=_cost,
    settings="mine",
    config=lambda experiment: experiment.mine.asking,
    of=_of,
)
