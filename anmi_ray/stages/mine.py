"""mine: gaps -> weighted training examples, one per anchor."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from anmi_ray import mining
from anmi_ray.config.mine import MineConfig
from anmi_ray.records import CANDIDATE, EXAMPLE, FIT, GAP, RATING
from anmi_ray.stages.ingest import of_queries, sample_queries
from anmi_ray.stages.runtime import Context, run_buckets, run_task
from anmi_ray.store import Artifact, Flow

_SUMMARY_QUERIES = 5000


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: MineConfig, context: Context) -> dict[str, Any]:
    """One task per bucket; returns flows for the manifest."""
    sources = (inputs["rate"], inputs["retrieve"])
    flows = run_buckets(context, artifact, ("examples", EXAMPLE), _bucket, *sources, config, context.seed)
    if artifact.read_json("summary.json") is None:
        artifact.publish_json(
            "summary.json", run_task(context, _summary, artifact, inputs["rate"], config, context.buckets)
        )
    return {"flows": flows}


def _summary(mine: Artifact, rate: Artifact, config: MineConfig, buckets: int) -> dict[str, object]:
    """Counts, weights and the estimated share of false negatives, over a hash sample of queries."""
    sample = sample_queries(mine, "examples", buckets, _SUMMARY_QUERIES, "mine")
    examples = [of_queries(mine.read_part("examples", bucket, EXAMPLE), sample) for bucket in range(buckets)]
    gaps = [of_queries(rate.read_part("gaps", bucket, GAP), sample) for bucket in range(buckets)]
    return mining.summary(pa.concat_tables(examples), pa.concat_tables(gaps), config)


def _bucket(
    artifact: Artifact, bucket: int, rate: Artifact, retrieve: Artifact, config: MineConfig, seed: int
) -> list[Flow]:
    fits = rate.read_part("fits", bucket, FIT)
    examples, rejects = mining.mine(
        rate.read_part("ratings", bucket, RATING),
        rate.read_part("gaps", bucket, GAP),
        retrieve.read_part("candidates", bucket, CANDIDATE),
        config,
        seed,
        fits=fits,
    )
    out = _queries(examples)
    flows = [Flow("train queries", fits.num_rows, out, fits.num_rows - out)]
    artifact.commit_bucket(bucket, {"examples": (EXAMPLE, examples)}, flows, rejects)
    return flows


def _queries(table: pa.Table) -> int:
    return len(set(table["query_id"].to_pylist()))
