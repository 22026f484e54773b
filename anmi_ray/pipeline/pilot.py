"""A pilot: the run up to its comparisons, then a sample of them asked, audited and held against the gates.

The sample is asked through the same answer log and the same budget as the run, so the run buys none of it again and a
budget counts it. Where the panel holds a distilled judge, its ensemble is tried, on the pairs that it will be asked
about: there is no distilled judge before.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray import judging
from anmi_ray.comparisons import pairs_in_all
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core import logs
from anmi_ray.core.errors import JudgeError, refuse
from anmi_ray.core.records import CANDIDATE, COMPARISON, JUDGMENT, QREL, QUERY, TEXT_OF
from anmi_ray.judging import kinds
from anmi_ray.judging.audit import pilot
from anmi_ray.judging.audit.pilot import QuestionCosts, Verdict
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.judging.questions import TextQuestions, text_questions
from anmi_ray.pipeline import requirements
from anmi_ray.pipeline import run as main
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.stages import COMPARE, INGEST, JUDGE, RETRIEVE, stages_of
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, over_buckets, ray_session
from anmi_ray.stages import rounds, sample
from anmi_ray.stages.judge import LABEL, dispatch, importing
from anmi_ray.stages.judge.sources import QuestionSources
from anmi_ray.store import Artifact, Store

_LOG = logging.getLogger(__name__)
_OF_ENSEMBLE = {COMPARE: sample.STAGE.name, JUDGE: LABEL.name}  # who plays which role where the ensemble is tried
_AT_ONCE = 64  # buckets whose shares of the sample are held at once


@dataclass(frozen=True)
class Sampled(QuestionSources):
    """Where the questions about some Comparisons come from, by bucket."""

    chosen: Mapping[int, pa.Table] = field(default_factory=dict)

    def questions(self, bucket: int) -> TextQuestions:
        """Return the questions about a bucket's chosen pairs; reads nothing if there are none."""
        if bucket not in self.chosen:
            return text_questions(COMPARISON.empty(), QUERY.empty(), TEXT_OF.empty())
        return text_questions(
            self.chosen[bucket],
            self.ingest.read_part("queries", bucket, QUERY),
            self.retrieve.read_part("texts", bucket, TEXT_OF),
        )


@dataclass(frozen=True)
class Piloted:
    """A pilot of `pairs` of a run's `of` comparisons: what was asked by judge, the audit, the verdicts."""

    pairs: int
    of: int
    asked: Mapping[str, Any]
    figures: Mapping[str, Any]
    verdicts: list[Verdict]

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        counts = {"pairs": self.pairs, "of": self.of, "asked": dict(self.asked)}
        decided = {"decision": pilot.decision(self.verdicts), "judges": [one.to_json() for one in self.verdicts]}
        return {**counts, **decided, "audit": dict(self.figures)}


@dataclass(frozen=True)
class _Judged:
    """A bucket's part: Judgment rows, known positives among their documents as Qrel rows, what questions cost."""

    judgments: pa.Table
    grades: pa.Table
    bought: Mapping[str, QuestionCosts]


def run(experiment: Experiment, reporter: Reporter, pairs: int | None = None) -> Piloted:
    """Pilot the panel, or the ensemble, on `pairs` pairs (or its `pilot.pairs`); kept at `pilots/<name>.json`.

    Raises AnmiError for whatever a user can mend; JudgeError where no question was asked.
    """
    panel = experiment.ensemble or experiment.judge
    own = {name: rounds.first(name, experiment) for name in (COMPARE, JUDGE)}
    round_ = own if panel is experiment.judge else _OF_ENSEMBLE
    refuse(requirements.of_machine(experiment, [s for s in stages_of(experiment) if s.name == round_[JUDGE]]))
    with ray_session(experiment.execution):
        main.run(experiment, reporter, last=round_[COMPARE])
        store = Store(experiment.execution.root)
        made = {name: item.artifact(store) for name, item in resolve(experiment).items()}
        made |= {role: made[name] for role, name in round_.items()}
        buckets = store.buckets(experiment.execution.buckets)
        context = Context(store, experiment.execution, buckets, experiment.seed, reporter.progress, reporter.notice)
        wanted = pairs or panel.pilot.pairs
        reporter.stage("pilot", f"ask {_asked(experiment)} about {wanted:,} pairs, both ways")
        with logs.Span(_LOG, "stage", run=experiment.name, stage="pilot"):
            found = pilot_run(made, panel, context, wanted, experiment.compare if round_ is own else None)
    store.publish_json(f"pilots/{experiment.name}.json", found.to_json())
    return found


def _asked(experiment: Experiment) -> str:
    """Who is tried."""
    if experiment.ensemble is None:
        return "the judges"
    others = [judge.name for judge in experiment.judge.judges if judge not in experiment.judge.distilled]
    return "the ensemble (distill.judge)" + (f", not {', '.join(others)} of judge.judges" if others else "")


def pilot_run(
    made: Mapping[str, Artifact],
    config: JudgeConfig,
    context: Context,
    pairs: int,
    design: CompareConfig | None = None,
) -> Piloted:
    """A pilot over complete artifacts (ingest, retrieve, compare); that of judge need not be there.

    design: what chose the comparisons, where later rounds of it may add to them.
    """
    sources, of, in_all = _sample(made, context, pairs, design)
    questions = in_all * (1 if config.orders == "one" else 2)
    # how many questions fail, and what the order changes, is what a pilot finds out
    config = config.model_copy(update={"orders": "both"})
    lenient = config.model_copy(update={"max_failures": 1.0})
    asked = dispatch.ask(made[JUDGE], sources, lenient, context) if config.reading else {}
    chosen = sorted(sources.chosen)
    imported_answers = importing.judges(config, made[INGEST], context)
    parts: list[_Judged] = over_buckets(
        context, chosen, _judged, context.store, sources, config, context.seed, imported_answers
    )
    judgments = pa.concat_tables([JUDGMENT.empty(), *(part.judgments for part in parts)])
    judgments = judgments.filter(pc.fill_null(pc.not_equal(judgments["error"], dispatch.NO_BUDGET_LEFT), True))
    if not judgments.num_rows:
        raise JudgeError("no question was asked", "pilot", "raise judge.budget, or give more train queries")
    comparisons = pa.concat_tables([COMPARISON.empty(), *(sources.chosen[bucket] for bucket in chosen)])
    grades = pa.concat_tables([QREL.empty(), *(part.grades for part in parts)])
    figures = judging.audit(judgments, comparisons, grades=grades)
    verdicts = pilot.verdicts(figures, _all_bought(parts), config.pilot, comparisons.num_rows, of, questions)
    return Piloted(comparisons.num_rows, of, asked, figures, verdicts)


def _sample(
    made: Mapping[str, Artifact], context: Context, pairs: int, design: CompareConfig | None
) -> tuple[Sampled, int, int]:
    """Return the pilot's comparisons by bucket, and the run's current and future numbers of comparisons."""
    compare, retrieve = made[COMPARE], made[RETRIEVE]
    kept: list[pa.Table] = []
    of = in_all = 0
    for start in range(0, context.buckets, _AT_ONCE):
        buckets = list(range(start, min(start + _AT_ONCE, context.buckets)))
        found = over_buckets(context, buckets, _ranked, compare, retrieve, pairs, design)
        of += sum(count for _, count, _ in found)
        in_all += sum(count for _, _, count in found)
        kept = [pilot.merge([*kept, *(table for table, _, _ in found)], pairs)]
    return Sampled(compare, retrieve, made[INGEST], chosen=pilot.pick(kept[0], pairs)), of, in_all


def _ranked(
    bucket: int, compare: Artifact, retrieve: Artifact, pairs: int, design: CompareConfig | None
) -> tuple[pa.Table, int, int]:
    """Return a bucket's possible pilot pairs, and its current and future numbers of comparisons."""
    comparisons = compare.read_part("comparisons", bucket, COMPARISON)
    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    in_all = comparisons.num_rows
    if design is not None and design.design == "adaptive":
        in_all = pairs_in_all(comparisons, design)
    return pilot.ranked(bucket, comparisons, candidates, pairs), comparisons.num_rows, in_all


def _judged(
    bucket: int,
    store: Store,
    sources: Sampled,
    config: JudgeConfig,
    seed: int,
    imported_answers: Mapping[str, importing.ImportedAnswers],
) -> _Judged:
    comparisons = sources.chosen[bucket]
    candidates = sources.retrieve.read_part("candidates", bucket, CANDIDATE)
    given = dispatch.bought(store, sources, config, bucket)
    given |= {name: one.answers(bucket) for name, one in imported_answers.items()}
    judgments = judging.judge(comparisons, candidates, config, seed, given)
    queries = pc.is_in(candidates["query_id"], value_set=comparisons["query_id"].combine_chunks())
    known = candidates.filter(pc.and_(queries, pc.not_equal(candidates["source"], "random")))
    grades = QREL.table(
        {"query_id": known["query_id"], "doc_id": known["doc_id"], "grade": pc.cast(known["is_positive"], pa.int32())}
    )
    questions = sources.questions(bucket) if config.reading else None
    bought = {}
    if questions:
        bought = {judge.name: _cost(judge, bucket, store, questions) for judge in kinds.reading(config)}
    return _Judged(judgments, grades, bought)


def _cost(judge: TextJudge, bucket: int, store: Store, questions: TextQuestions) -> QuestionCosts:
    """Dollars of every question that was asked, by the judge's prices as they are now."""
    held = dispatch.log_of(store, judge).read(bucket)
    rows = held.rows(questions.ids)
    query = bucket * (1 << 32) + questions.query[rows >= 0]
    paid = judge.paid(held.table)
    if paid is None:
        return QuestionCosts(None, query)
    least, most = (dollars[rows[rows >= 0]] for dollars in paid)
    return QuestionCosts(least, query, most)


def _all_bought(parts: list[_Judged]) -> dict[str, QuestionCosts]:
    """By judge, of all buckets."""
    found: dict[str, QuestionCosts] = {}
    for judge in parts[0].bought if parts else ():
        each = [part.bought[judge] for part in parts]
        query = np.concatenate([one.query for one in each])
        least = [one.dollars for one in each if one.dollars is not None]
        most = [one.most for one in each if one.most is not None]
        priced = len(least) == len(each)
        found[judge] = (
            QuestionCosts(np.concatenate(least), query, np.concatenate(most)) if priced else QuestionCosts(None, query)
        )
    return found
