"""borderline: gaps -> the second round's comparisons: borderline documents to judge directly against their anchor.

Pairs that were compared already are not asked again: they stand beside, in the part `known`, and their judgments count.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anmi_ray import mining
from anmi_ray.config.mine import MineConfig
from anmi_ray.core.records import CANDIDATE, COMPARISON, FIT, GAP, RATING
from anmi_ray.runtime.tasks import Context, run_buckets
from anmi_ray.store import Artifact, Flow


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: MineConfig, context: Context) -> dict[str, Any]:
    """One task per bucket; returns flows for the manifest."""
    sources = (inputs["rate"], inputs["compare"], inputs["retrieve"])
    return {"flows": run_buckets(context, artifact, ("comparisons", COMPARISON), _bucket, *sources, config)}


def _bucket(
    artifact: Artifact, bucket: int, rate: Artifact, compare: Artifact, retrieve: Artifact, config: MineConfig
) -> list[Flow]:
    found = mining.borderline(
        rate.read_part("ratings", bucket, RATING),
        rate.read_part("gaps", bucket, GAP),
        retrieve.read_part("candidates", bucket, CANDIDATE),
        compare.read_part("comparisons", bucket, COMPARISON),
        config,
        rate.read_part("fits", bucket, FIT),
    )
    wanted, known = found.wanted.num_rows, found.known.num_rows
    counts = {"borderline documents": wanted + known, "compared before": known, "to ask about": wanted}
    flows = [Flow(unit, count, count) for unit, count in counts.items()]
    parts = {"comparisons": (COMPARISON, found.wanted), "known": (COMPARISON, found.known)}
    artifact.commit_bucket(bucket, parts, flows, None)
    return flows
