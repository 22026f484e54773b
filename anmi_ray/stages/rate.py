"""rate: judgments -> ratings with errors, gaps to the anchors, and facts about every fit.

A pool of actors that keep the compiled solver fits the parameters that all queries share (prior, dispersion, judges'
leanings) to a hash sample of queries, then every bucket. The stage refit does the same with the comparisons and
judgments of both rounds.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.records import CANDIDATE, COMPARISON, FIT, GAP, JUDGMENT, RATING, RELEVANCE
from anmi_ray.core.scale import elo_per_latent
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.ingest import of_queries, sample_queries, stacked
from anmi_ray.store import Artifact, Flow

if TYPE_CHECKING:
    from anmi_ray.rating import Globals

_ROUNDS = (("judge", "compare"), ("validate", "borderline"))  # stages whose judgments and comparisons make a round


def run(artifact: Artifact, inputs: Inputs, config: RateConfig, context: Context) -> dict[str, Any]:
    """Fit the shared parameters once, then every bucket."""
    from anmi_ray import rating
    from anmi_ray.runtime.actors import ActorPool

    with ActorPool(context, Rater, sources_of(inputs), config, actors=context.execution.raters) as pool:
        fitted = artifact.read_json("globals.json")
        if fitted is None:
            fitted = pool.run_task(artifact.stage, "fit_globals", context.buckets)
            artifact.publish_json("globals.json", fitted)
        shared = rating.Globals.from_json(json.dumps(fitted))
        flows = pool.run_buckets(artifact, ("ratings", RATING), "rate", shared)
    return {"flows": flows, "globals": fitted}


@dataclass(frozen=True)
class Round:
    """Judgments and their comparisons."""

    judge: Artifact
    compare: Artifact


@dataclass(frozen=True)
class RatingSources:
    """Inputs of a fit: rounds, the first of which covers all queries."""

    rounds: tuple[Round, ...]
    retrieve: Artifact
    anchor: Artifact | None = None

    def confirmed(self, bucket: int) -> pa.Table | None:
        """Return additional anchors of gaps; None if no document was confirmed."""
        if self.anchor is None:
            return None
        relevance = self.anchor.read_part("relevance", bucket, RELEVANCE)
        return relevance.filter(relevance["may_anchor"])

    def answers(self, bucket: int) -> tuple[pa.Table, pa.Table]:
        """Judgments and Comparisons of a bucket, of all rounds."""
        judgments = [round_.judge.read_part("judgments", bucket, JUDGMENT) for round_ in self.rounds]
        comparisons = [round_.compare.read_part("comparisons", bucket, COMPARISON) for round_ in self.rounds]
        return pa.concat_tables(judgments), pa.concat_tables(comparisons)

    def tables(self, bucket: int, config: RateConfig) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Judgments, Comparisons and Candidates of a bucket."""
        from anmi_ray import rating

        candidates = self.retrieve.read_part("candidates", bucket, CANDIDATE)
        return *self.answers(bucket), rating.hide_positives(candidates, config.hide_positives)

    def sample(self, buckets: int, config: RateConfig) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Return the same of at most `rating.SAMPLE_QUERIES` queries, read bucket by bucket, in their order."""
        from anmi_ray import rating

        chosen, buckets = sample_queries(self.rounds[0].compare, "comparisons", buckets, rating.SAMPLE_QUERIES, "rate")
        read = (self.tables(bucket, config) for bucket in range(buckets))
        judgments, comparisons, candidates = stacked([of_queries(table, chosen) for table in tables] for tables in read)
        return judgments, comparisons, candidates


def sources_of(inputs: Inputs) -> RatingSources:
    """The rounds among a stage's inputs."""
    present = [pair for pair in _ROUNDS if set(pair) <= set(inputs)]
    rounds = tuple(Round(inputs[judge], inputs[compare]) for judge, compare in present)
    return RatingSources(rounds, inputs["retrieve"], inputs.get("anchor"))


def settings_of(fit: Artifact) -> RateConfig:
    """Return the settings of a complete fit."""
    settings = (fit.manifest() or {})["settings"]
    return RateConfig.model_validate({name: value for name, value in settings.items() if name != "seed"})


def prior_elo(fit: Artifact) -> float | None:
    """Return the standard deviation of a complete fit's prior, points; None without a prior."""
    shared = fit.read_json("globals.json")
    return None if shared["sigma0"] is None else shared["sigma0"] * elo_per_latent(shared["model"])


def uneven_prior(fit: Artifact) -> float | None:
    """Return `prior_elo` if the design asked about documents unequally, else None."""
    compared = Artifact(fit.store, "compare", (fit.manifest() or {})["inputs"]["compare"])
    return prior_elo(fit) if (compared.manifest() or {})["settings"].get("design") == "adaptive" else None


class Rater:
    """State of an actor: sources, settings, and the compiled solver."""

    def __init__(self, sources: RatingSources, config: RateConfig) -> None:
        from anmi_ray import rating

        self._sources = sources
        self._config = config
        rating.compile_solver(config)

    def fit_globals(self, buckets: int) -> dict[str, Any]:
        """The shared parameters, from a sample of queries."""
        from anmi_ray import rating

        tables = self._sources.sample(buckets, self._config)
        return json.loads(rating.fit_globals(*tables, self._config).to_json())

    def rate(self, artifact: Artifact, bucket: int, shared: Globals) -> list[Flow]:
        """Rate a bucket's queries and commit it."""
        from anmi_ray import rating

        judgments, comparisons, candidates = self._sources.tables(bucket, self._config)
        confirmed = self._sources.confirmed(bucket)
        result = rating.rate(judgments, comparisons, candidates, shared, self._config, confirmed)
        queries = len(set(comparisons["query_id"].to_pylist()))
        flows = [Flow("queries", queries, result.fits.num_rows, queries - result.fits.num_rows)]
        parts = {"ratings": (RATING, result.ratings), "fits": (FIT, result.fits), "gaps": (GAP, result.gaps)}
        artifact.commit_bucket(bucket, parts, flows, result.rejects)
        return flows


STAGE = Stage(
    name="rate",
    version=5,  # 5: defaults where there are too few comparisons to estimate dispersion and prior
    inputs=("judge", "compare", "retrieve"),
    does="fit ratings, their errors, and gaps to the known positives, else to the top-rated documents",
    run=run,
    settings="rate",
)
REFIT = replace(
    STAGE,
    name="refit",
    inputs=(*STAGE.inputs, "validate", "borderline"),
    does="fit ratings and gaps again, to the judgments of both rounds",
    # anchors are those of the first fit: a document that the second rates lower keeps its gaps
    of=lambda stage, experiment: (
        stage if experiment.mine.anchors == "known" else replace(stage, inputs=(*stage.inputs, "anchor"))
    ),
)
