"""refine: a run that starts from another run's pairs, ratings and model (`refines`).

    score -> compare -> (sample -> label -> distill) -> judge -> rate -> ... -> train -> ... -> evaluate

The other run's model scores the candidates of train queries; compare keeps that run's pairs and adds those on which the
model contradicts the ratings. Earlier answers are in the answer log and are not bought again. A distilled judge is
trained again, with the ensemble's answers about some of the added pairs, and judges all pairs. Training starts from the
other run's model, which evaluate measures as the start, so a gain is this round's own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.distill import SampleConfig
from anmi_ray.config.evaluate import Scoring
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.needs import of_scoring
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import CANDIDATE, COMPARISON, RATING, RUN
from anmi_ray.runtime.costs import BEGUN, StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context, over_buckets, run_buckets
from anmi_ray.stages import compare, judge, sample
from anmi_ray.stages.ingest import TRAIN_QUERIES
from anmi_ray.stages.rerank import GONE_ON_WITH, gone_on_with, scoring_hours
from anmi_ray.store import Artifact, Flow, runs
from anmi_ray.store.folders import local_folder

if TYPE_CHECKING:
    from anmi_ray.comparisons import Salt, ScoreLine
    from anmi_ray.stages.rerank.scoring import Asked, Load

CALIBRATION = "calibration.json"
NEW = "pairs not asked before"  # the unit of a flow
_FITTED = ("refit", "rate")  # the first of them that a run has holds its ratings
_COMPARED = (compare.STAGE.name, "borderline")  # both hold pairs that a run has asked about
ASKED = (*_COMPARED, sample.STAGE.name)  # so does its ensemble's
# by the stage that asks: the first of these stages that a run has holds the first pairs
_FIRST = {
    judge.STAGE.name: (f"{compare.STAGE.name}-1", compare.STAGE.name),
    judge.LABEL.name: (sample.STAGE.name,),
}


def score(artifact: Artifact, inputs: Inputs, config: Scoring, context: Context) -> dict[str, Any]:
    """Score the candidates of train queries, a task per bucket, with one thread each."""
    from anmi_ray.models.kinds import reads_apart
    from anmi_ray.stages.rerank import held_out, scoring

    model = inputs[GONE_ON_WITH]
    asked = scoring.Asked(inputs["retrieve"], inputs["ingest"], 0, (TRAIN_QUERIES.name,), candidates=True)
    load = partial(held_out.trained, model, config, context.execution.score.device)
    apart = reads_apart(str(local_folder(model, "model")))
    return {"flows": scoring.run(context, artifact, asked, load, apart, _score)}


def _score(artifact: Artifact, bucket: int, asked: Asked, load: Load, slices: int | None) -> list[Flow]:
    from anmi_ray.stages.rerank import scoring
    from anmi_ray.stages.rerank.ranking import SYSTEM

    queries, _, top, texts = asked.of_bucket(bucket)
    scored = scoring.scored(artifact, bucket, (top, queries, texts), load, slices, SYSTEM)
    found = pc.count_distinct(scored["query_id"]).as_py()
    flows = [Flow("train queries with candidates", found, found)]
    artifact.commit_bucket(bucket, {"runs": (RUN, scored)}, flows, None)
    return flows


def of_campaign(stage: Stage, role: str = BEGUN, asking: str = judge.STAGE.name) -> Stage:
    """Judges that share the budget of the run that was refined first; `role` gets that run's comparisons."""

    def also(config: Any, experiment: Experiment, content: str) -> dict[str, str]:
        stages = _made(experiment)
        earlier = {role: name for role, name in stages[asking]["inputs"].items() if role.startswith(runs.BEFORE)}
        begun = next(name for name in _FIRST[asking] if name in stages)
        before = earlier or {f"{runs.BEFORE}{begun}": stages[begun]["fingerprint"]}
        return {**stage.also(config, experiment, content), **before}

    def run(artifact: Artifact, inputs: Inputs, config: Any, context: Context) -> dict[str, Any]:
        [first] = (made for name, made in inputs.items() if name.startswith(runs.BEFORE))
        return stage.run(artifact, {**inputs, role: first}, config, context)

    return replace(stage, run=run, also=also)


def _before(_: CompareConfig, experiment: Experiment, content: str) -> dict[str, str]:
    """Return pairs and ratings of the refined run, by role. Raises ConfigError if it has no model."""
    assert experiment.refines is not None
    if experiment.refines == experiment.name:
        remedy = f"name={experiment.name}-refine-1"
        raise ConfigError(f"expected another run, got {experiment.refines}, this run itself", "refines", remedy)
    runs.trained(experiment.refines, experiment.execution.root, content)
    stages = _made(experiment)
    fitted = next(name for name in _FITTED if name in stages)
    names = (*(name for name in _COMPARED if name in stages), fitted)
    return {f"{runs.BEFORE}{name}": stages[name]["fingerprint"] for name in names}


def _made(experiment: Experiment) -> dict[str, Any]:
    """The recorded stages of the refined run."""
    assert experiment.refines is not None
    return runs.find_run(experiment.refines, experiment.execution.root)[1]["stages"]


@dataclass(frozen=True)
class Before:
    """State before a round, by bucket: pairs and ratings of the previous run, and its model's scores."""

    compared: tuple[Artifact, ...]
    fitted: Artifact
    retrieve: Artifact
    score: Artifact

    @classmethod
    def of(cls, inputs: Inputs) -> Before:
        """Take the inputs of compare by role."""
        before = {name.removeprefix(runs.BEFORE): made for name, made in inputs.items() if name.startswith(runs.BEFORE)}
        compared = tuple(before[name] for name in _COMPARED if name in before)
        fitted = next(before[name] for name in _FITTED if name in before)
        return cls(compared, fitted, inputs["retrieve"], inputs["score"])

    def pairs(self, bucket: int) -> pa.Table:
        """Return the comparisons that were asked about."""
        return pa.concat_tables([artifact.read_part("comparisons", bucket, COMPARISON) for artifact in self.compared])

    def tables(self, bucket: int) -> tuple[pa.Table, pa.Table, pa.Table]:
        """Return the ratings, the model's Run and the Candidates of a bucket."""
        ratings, run = self.fitted.read_part("ratings", bucket, RATING), self.score.read_part("runs", bucket, RUN)
        return ratings, run, self.retrieve.read_part("candidates", bucket, CANDIDATE)


def choose(artifact: Artifact, inputs: Inputs, config: CompareConfig, context: Context) -> dict[str, Any]:
    """Calibrate the scores on all queries, then choose pairs in a task per bucket.

    Raises ConfigError if the refined run asked about other candidates.
    """
    from anmi_ray import comparisons

    refined = Before.of(inputs)
    if (refined.compared[0].manifest() or {})["inputs"]["retrieve"] != refined.retrieve.fingerprint:
        raise ConfigError(
            "the candidates are not those of the run that is refined: its pairs are of other documents",
            "stage compare",
            "keep its settings of corpus and retrieve, or run that one again first",
        )
    worth = artifact.read_json(CALIBRATION)
    if worth is None:
        facts = over_buckets(context, list(range(context.buckets)), _facts, refined)
        fitted = comparisons.calibrated(np.sum([moments for moments, _ in facts], axis=0))
        worth = {**fitted._asdict(), "round": 1 + max(number for _, number in facts)}
        artifact.publish_json(CALIBRATION, worth)
    fitted = comparisons.ScoreLine(worth["slope"], worth["error"])
    flows = run_buckets(context, artifact, ("comparisons", COMPARISON), _bucket, refined, fitted, worth["round"])
    return {"flows": flows, "calibration": worth}


def _facts(bucket: int, refined: Before) -> tuple[np.ndarray, int]:
    """Return the sums for the calibration, and the last round that was asked."""
    from anmi_ray import comparisons

    number = pc.max(refined.pairs(bucket)["round"]).as_py()
    return comparisons.moments(comparisons.scored(*refined.tables(bucket))), number or 0


def _bucket(artifact: Artifact, bucket: int, refined: Before, worth: ScoreLine, number: int) -> list[Flow]:
    from anmi_ray import comparisons

    before = refined.pairs(bucket)
    pairs = comparisons.refined(before, *refined.tables(bucket), worth, number)
    new = pairs.num_rows - before.num_rows
    queries = pc.count_distinct(pairs["query_id"]).as_py()
    flows = [Flow("queries", queries, queries), Flow(NEW, new, new)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, pairs)}, flows, None)
    return flows


def teach(artifact: Artifact, inputs: Inputs, config: SampleConfig, context: Context) -> dict[str, Any]:
    """Add some of the round's pairs to those that the distilled judge learned from, in a task per bucket."""
    from anmi_ray import comparisons

    [before] = (made for name, made in inputs.items() if name.startswith(runs.BEFORE))
    chosen = inputs[compare.STAGE.name]
    made = chosen.manifest() or {}
    number = made["calibration"]["round"]
    queries = sum(flow["rows_out"] for flow in made["flows"] if flow["unit"] == "queries")
    salt = comparisons.salt_of(context.seed, config.seed)
    # per query as many as in the first sample on average, so a round asks the ensemble no more than that did
    share = config.pairs / max(queries, 1)
    part = ("comparisons", COMPARISON)
    return {"flows": run_buckets(context, artifact, part, _lesson, before, chosen, number, share, salt)}


def _lesson(
    artifact: Artifact, bucket: int, before: Artifact, chosen: Artifact, number: int, share: float, salt: Salt
) -> list[Flow]:
    from anmi_ray import comparisons

    learned = before.read_part("comparisons", bucket, COMPARISON)
    pairs = chosen.read_part("comparisons", bucket, COMPARISON)
    pairs = pairs.filter(pc.equal(pairs["round"], number))
    new = pairs.filter(pc.invert(pc.is_in(pairs["comparison_id"], value_set=learned["comparison_id"].combine_chunks())))
    new = comparisons.some_of_each(new, share, salt)
    table = pa.concat_tables([learned, new]).sort_by([(name, "ascending") for name in ("query_id", "doc_a", "doc_b")])
    flows = [Flow("pairs", table.num_rows, table.num_rows), Flow(NEW, new.num_rows, new.num_rows)]
    artifact.commit_bucket(bucket, {"comparisons": (COMPARISON, table)}, flows, None)
    return flows


def _learned_from(_: SampleConfig, experiment: Experiment, content: str) -> dict[str, str]:
    """Return the training sample of the previous run's judge, by role. Raises ConfigError without such a judge."""
    stages = _made(experiment)
    if sample.STAGE.name not in stages:
        raise ConfigError(
            f"run {experiment.refines} distilled no judge that could learn from its rounds",
            "judge.judges",
            "ask others than {kind: distilled}, or refine a run with such a judge",
        )
    return {f"{runs.BEFORE}{sample.STAGE.name}": stages[sample.STAGE.name]["fingerprint"]}


def _cost_of_score(load: Workload) -> StageCost:
    """Return the GPU hours; a student that reads texts alone computes each document once."""
    train = load.experiment.train
    pairs = load.train * min(load.experiment.retrieve.candidates, load.documents)
    read = pairs if train.student == "cross-encoder" else min(pairs, load.documents)
    hours = scoring_hours(load, (train.model, read * (load.config.max_tokens or train.max_tokens)))
    return StageCost(f"score {pairs:,} pairs", gpu_hours=hours)


def _most(load: Workload) -> int:
    """Return an upper bound on the pairs that a round adds."""
    from anmi_ray import comparisons

    documents = min(load.experiment.retrieve.candidates, load.documents)
    return load.train * min(comparisons.PAIRS, documents * (documents - 1) // 2)


def _cost(load: Workload) -> StageCost:
    """Return an upper bound on the round's new questions; a retrained judge also answers the earlier ones."""
    pairs = _most(load)
    before = load.candidates * load.config.degree // 2
    questions = pairs + (before if load.experiment.judge.distilled else 0)
    return StageCost(f"at most {pairs:,} more pairs", questions)


def _cost_of_lesson(load: Workload) -> StageCost:
    pairs = min(_most(load), load.experiment.distill.sample.pairs)
    return StageCost(f"about {pairs:,} more pairs at most", pairs)


SCORE = Stage(
    name="score",
    version=1,
    inputs=("retrieve", "ingest"),
    does="score the candidates of train queries with the model of the run before",
    run=score,
    cost=_cost_of_score,
    settings="rerank",
    # as the trained model scores held-out queries
    config=lambda experiment: Scoring(max_tokens=experiment.rerank.max_tokens, precision=experiment.rerank.precision),
    also=lambda _, experiment, content: gone_on_with(experiment, content),
    needs=lambda _, experiment: of_scoring(experiment.execution),
    split=TRAIN_QUERIES,
)
COMPARE = replace(
    compare.STAGE,
    inputs=(*compare.STAGE.inputs, SCORE.name),
    does="choose the pairs where the last model contradicts what is known, in addition to those that were asked",
    run=choose,
    cost=_cost,
    also=_before,
)
SAMPLE = replace(
    sample.STAGE,
    version=2,
    inputs=(compare.STAGE.name,),
    does="add some of the round's pairs to those that the judge learned from",
    run=teach,
    cost=_cost_of_lesson,
    also=_learned_from,
)
JUDGE = of_campaign(judge.STAGE)
LABEL = of_campaign(judge.LABEL, asking=judge.LABEL.name)
