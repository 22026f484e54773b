"""score: score the compared documents of train queries with the refined run's model."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import pyarrow.compute as pc

from anmi_ray.config.evaluate import Scoring
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.needs import of_scoring
from anmi_ray.core.records import RUN
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.ingest import TRAIN_QUERIES
from anmi_ray.stages.rerank import scoring_hours
from anmi_ray.stages.rerank.start import GONE_ON_WITH, gone_on_with
from anmi_ray.store import Artifact, Flow
from anmi_ray.store.folders import local_folder

if TYPE_CHECKING:
    from anmi_ray.stages.rerank.scoring import Asked, Load


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: Scoring, context: Context) -> dict[str, Any]:
    """One task per bucket, as many at once as there are cores, one thread each."""
    from anmi_ray.models.kinds import reads_apart
    from anmi_ray.stages.rerank import held_out, scoring

    request = scoring.Asked(inputs["retrieve"], inputs["ingest"], 0, (TRAIN_QUERIES.name,), candidates=True)
    load = partial(held_out.trained, inputs[GONE_ON_WITH], config, context.execution.score.device)
    apart = reads_apart(str(local_folder(inputs[GONE_ON_WITH], "model")))
    return {"flows": scoring.run(context, artifact, request, load, apart, _bucket)}


def _bucket(artifact: Artifact, bucket: int, request: Asked, load: Load, slices: int | None) -> list[Flow]:
    from anmi_ray.stages.rerank import scoring
    from anmi_ray.stages.rerank.ranking import SYSTEM

    queries, _, top, texts = request.of_bucket(bucket)
    scored = scoring.scored(artifact, bucket, (top, queries, texts), load, slices, SYSTEM)
    queries_scored = pc.count_distinct(scored["query_id"]).as_py()
    flows = [Flow("train queries with candidates", queries_scored, queries_scored)]
    artifact.commit_bucket(bucket, {"runs": (RUN, scored)}, flows, None)
    return flows


def _config(experiment: Experiment) -> Scoring:
    """As the trained model scores held-out queries."""
    return Scoring(max_tokens=experiment.rerank.max_tokens, precision=experiment.rerank.precision)


def _cost(load: Workload) -> StageCost:
    """A student that reads texts alone computes each document once."""
    documents = min(load.experiment.retrieve.candidates, load.documents)
    pairs = load.train * documents
    read = pairs if load.experiment.train.student == "cross-encoder" else min(pairs, load.documents)
    tokens = read * (load.config.max_tokens or load.experiment.train.max_tokens)
    return StageCost(f"score {pairs:,} pairs", gpu_hours=scoring_hours(load, (load.experiment.train.model, tokens)))


STAGE = Stage(
    name="score",
    version=1,
    inputs=("retrieve", "ingest"),
    does="score the candidates of train queries with the model of the run before",
    run=run,
    cost=_cost,
    settings="rerank",
    config=_config,
    also=lambda _, experiment, content: gone_on_with(experiment, content),
    needs=lambda _, experiment: of_scoring(experiment.execution),
    split=TRAIN_QUERIES,
)
