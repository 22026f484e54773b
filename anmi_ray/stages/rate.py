"""rate: judgments -> ratings with errors, gaps to the anchors, and facts about every fit.

Two steps: the global numbers (prior, dispersion) from a hash sample of queries, then one task per bucket.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from anmi_ray import rating
from anmi_ray.config.rate import RateConfig
from anmi_ray.records import CANDIDATE, COMPARISON, FIT, GAP, JUDGMENT, RATING
from anmi_ray.stages.ingest import of_queries, sample_queries
from anmi_ray.stages.runtime import Context, run_buckets, run_task
from anmi_ray.store import Artifact, Flow


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: RateConfig, context: Context) -> dict[str, Any]:
    """Fit the global numbers once, then every bucket; returns flows and the global numbers."""
    sources = (inputs["judge"], inputs["compare"], inputs["retrieve"])
    known = artifact.read_json("globals.json")
    if known is None:
        known = run_task(context, _globals, *sources, config, context.buckets)
        artifact.publish_json("globals.json", known)
    flows = run_buckets(context, artifact, ("ratings", RATING), _bucket, *sources, config, known)
    return {"flows": flows, "globals": known}


def _inputs(
    judge: Artifact, compare: Artifact, retrieve: Artifact, config: RateConfig, bucket: int
) -> tuple[pa.Table, pa.Table, pa.Table]:
    return (
        judge.read_part("judgments", bucket, JUDGMENT),
        compare.read_part("comparisons", bucket, COMPARISON),
        rating.hide_positives(retrieve.read_part("candidates", bucket, CANDIDATE), config.hide_positives),
    )


def _globals(
    judge: Artifact, compare: Artifact, retrieve: Artifact, config: RateConfig, buckets: int
) -> dict[str, Any]:
    """The global numbers from at most `config.sample_queries` queries, read bucket by bucket, in bucket order."""
    sample = sample_queries(compare, "comparisons", buckets, config.sample_queries, "rate")
    kept: list[list[pa.Table]] = [[], [], []]
    for bucket in range(buckets):
        for tables, table in zip(kept, _inputs(judge, compare, retrieve, config, bucket), strict=True):
            tables.append(of_queries(table, sample))
    judgments, comparisons, candidates = (pa.concat_tables(tables) for tables in kept)
    return json.loads(rating.fit_globals(judgments, comparisons, candidates, config).to_json())


def _bucket(
    artifact: Artifact,
    bucket: int,
    judge: Artifact,
    compare: Artifact,
    retrieve: Artifact,
    config: RateConfig,
    globals_: dict[str, Any],
) -> list[Flow]:
    judgments, comparisons, candidates = _inputs(judge, compare, retrieve, config, bucket)
    result = rating.rate(judgments, comparisons, candidates, rating.Globals.from_json(json.dumps(globals_)), config)
    queries = len(set(comparisons["query_id"].to_pylist()))
    flows = [
        Flow("train queries", queries, result.fits.num_rows, queries - result.fits.num_rows),
    ]
    parts = {"ratings": (RATING, result.ratings), "fits": (FIT, result.fits), "gaps": (GAP, result.gaps)}
    artifact.commit_bucket(bucket, parts, flows, result.rejects)
    return flows
