"""compare: candidates -> which pairs of documents to ask about, a sparse graph per train query."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from anmi_ray import comparisons
from anmi_ray.config.compare import CompareConfig
from anmi_ray.records import CANDIDATE, COMPARISON
from anmi_ray.stages.runtime import Context, run_buckets
from anmi_ray.store import Artifact, Flow


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: CompareConfig, context: Context) -> dict[str, Any]:
    """One task per bucket; returns flows for the manifest."""
    seal = ("comparisons", COMPARISON)
    return {"flows": run_buckets(context, artifact, seal, _bucket, inputs["retrieve"], config, context.seed)}


def _bucket(artifact: Artifact, bucket: int, retrieve: Artifact, config: CompareConfig, seed: int) -> list[Flow]:
    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    pairs, rejects = comparisons.compare(candidates, config, seed)
    queries = len(set(candidates["query_id"].to_pylist()))
    flows = [Flow("train queries", queries, queries - rejects.num_rows, rejects.num_rows)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, rejects)
    return flows
