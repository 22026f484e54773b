"""rate: judgments -> ratings with errors, gaps to the anchors, and facts about every fit.

Two steps: the global numbers (prior, dispersion) from a hash sample of queries, then one task per bucket. The stage
refit is the same over the comparisons and judgments of both rounds.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from anmi_ray import rating
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.records import CANDIDATE, COMPARISON, FIT, GAP, JUDGMENT, RATING
from anmi_ray.rating.shared_parameters import SAMPLE_QUERIES
from anmi_ray.runtime.tasks import Context, run_buckets, run_task
from anmi_ray.stages.ingest import of_queries, sample_queries
from anmi_ray.store import Artifact, Flow

_ROUNDS = (("judge", "compare"), ("validate", "borderline"))  # stages whose judgments and comparisons make a round


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: RateConfig, context: Context) -> dict[str, Any]:
    """Fit the global numbers once, then every bucket; returns flows and the global numbers."""
    sources = sources_of(inputs)
    known = artifact.read_json("globals.json")
    if known is None:
        known = run_task(context, _globals, sources, config, context.buckets)
        artifact.publish_json("globals.json", known)
    flows = run_buckets(context, artifact, ("ratings", RATING), _bucket, sources, config, known)
    return {"flows": flows, "globals": known}


@dataclass(frozen=True)
class Round:
    """Judgments and the comparisons that they are of."""

    judge: Artifact
    compare: Artifact


@dataclass(frozen=True)
class Sources:
    """What a fit is made of: rounds, the first of which asked about every query that any asked about."""

    rounds: tuple[Round, ...]
    retrieve: Artifact

    def answers(self, bucket: int) -> tuple[pa.Table, pa.Table]:
        """Judgments and Comparisons of a bucket, of all rounds."""
        judgments = [one.judge.read_part("judgments", bucket, JUDGMENT) for one in self.rounds]
        comparisons = [one.compare.read_part("comparisons", bucket, COMPARISON) for one in self.rounds]
        return pa.concat_tables(judgments), pa.concat_tables(comparisons)

    def tables(self, bucket: int, config: RateConfig) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Judgments, Comparisons and Candidates of a bucket."""
        candidates = self.retrieve.read_part("candidates", bucket, CANDIDATE)
        return *self.answers(bucket), rating.hide_positives(candidates, config.hide_positives)


def sources_of(inputs: Mapping[str, Artifact]) -> Sources:
    """The rounds among a stage's inputs."""
    there = [pair for pair in _ROUNDS if set(pair) <= set(inputs)]
    return Sources(tuple(Round(inputs[judge], inputs[compare]) for judge, compare in there), inputs["retrieve"])


def settings_of(fit: Artifact) -> RateConfig:
    """The settings that a complete fit was made with."""
    settings = (fit.manifest() or {})["settings"]
    return RateConfig.model_validate({name: value for name, value in settings.items() if name != "seed"})


def _globals(sources: Sources, config: RateConfig, buckets: int) -> dict[str, Any]:
    """The global numbers from at most SAMPLE_QUERIES queries, read bucket by bucket, in bucket order."""
    sample = sample_queries(sources.rounds[0].compare, "comparisons", buckets, SAMPLE_QUERIES, "rate")
    kept: list[list[pa.Table]] = [[], [], []]
    for bucket in range(buckets):
        for tables, table in zip(kept, sources.tables(bucket, config), strict=True):
            tables.append(of_queries(table, sample))
    judgments, comparisons, candidates = (pa.concat_tables(tables) for tables in kept)
    return json.loads(rating.fit_globals(judgments, comparisons, candidates, config).to_json())


def _bucket(
    artifact: Artifact, bucket: int, sources: Sources, config: RateConfig, globals_: dict[str, Any]
) -> list[Flow]:
    judgments, comparisons, candidates = sources.tables(bucket, config)
    result = rating.rate(judgments, comparisons, candidates, rating.Globals.from_json(json.dumps(globals_)), config)
    queries = len(set(comparisons["query_id"].to_pylist()))
    flows = [
        Flow("train queries", queries, result.fits.num_rows, queries - result.fits.num_rows),
    ]
    parts = {"ratings": (RATING, result.ratings), "fits": (FIT, result.fits), "gaps": (GAP, result.gaps)}
    artifact.commit_bucket(bucket, parts, flows, result.rejects)
    return flows
