"""A pilot: compute a run's comparisons, ask a sample of them, audit the answers, and check them against gates.

The sample is asked through the same answer log and budget as the run, so the run does not buy it again. If the panel
has a distilled judge, which does not exist yet, its ensemble is tried, on the pairs that it will be asked about.
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
from anmi_ray.core.errors import ConfigError, JudgeError, refuse
from anmi_ray.core.records import CANDIDATE, COMPARISON, QREL, QUERY, TEXT_OF
from anmi_ray.judging import kinds
from anmi_ray.judging.audit import pilot
from anmi_ray.judging.audit.pilot import Verdict
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.judging.questions import TextQuestions, text_questions
from anmi_ray.pipeline import requirements
from anmi_ray.pipeline import run as main
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.stages import COMPARE, INGEST, JUDGE, RETRIEVE, stages_of
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, over_buckets, ray_session
from anmi_ray.stages import compare, sample
from anmi_ray.stages.judge import LABEL, dispatch, importing
from anmi_ray.stages.judge.asking import QuestionSources
from anmi_ray.store import Artifact, Store

_LOG = logging.getLogger(__name__)
_OF_ENSEMBLE = {COMPARE: sample.STAGE.name, JUDGE: LABEL.name}  # stages in these roles if the ensemble is tried
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
        """Return JSON values."""
        counts = {"pairs": self.pairs, "of": self.of, "asked": dict(self.asked)}
        decided = {"decision": pilot.decision(self.verdicts), "judges": [one.to_json() for one in self.verdicts]}
        return {**counts, **decided, "audit": dict(self.figures)}


def run(experiment: Experiment, reporter: Reporter, pairs: int | None = None) -> Piloted:
    """Pilot the panel, or the ensemble, on `pairs` pairs (or its `pilot.pairs`), and store `pilots/<name>.json`.

    Raises AnmiError for user errors, JudgeError if no question was asked.
    """
    panel = experiment.ensemble or experiment.judge
    if experiment.mine.anchors == "retrieved":
        raise ConfigError("retrieved asks no judge", "mine.anchors", "set it to confirmed, and name judge.judges")
    own = {name: compare.first(name, experiment) for name in (COMPARE, JUDGE)}
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
        who = "judges" if panel is experiment.judge else "ensemble (distill.judge)"
        reporter.stage("pilot", f"ask the {who} about {wanted:,} pairs, in both orders")
        with logs.Span(_LOG, "stage", run=experiment.name, stage="pilot"):
            found = pilot_run(made, panel, context, wanted, experiment.compare if round_ is own else None)
    store.publish_json(f"pilots/{experiment.name}.json", found.to_json())
    return found


def pilot_run(
    made: Mapping[str, Artifact],
    config: JudgeConfig,
    context: Context,
    pairs: int,
    design: CompareConfig | None = None,
) -> Piloted:
    """Sample comparisons of complete artifacts (ingest, retrieve, compare), ask about them, audit, and decide.

    design: of the comparisons, if its later rounds may add to them.
    """
    sources, of, in_all = _sample(made, context, pairs, design)
    questions = in_all * (1 if config.orders == "one" else 2)
    # the pilot measures failures and the effect of the order
    config = config.model_copy(update={"orders": "both", "max_failures": 1.0})
    asked = dispatch.ask(made[JUDGE], sources, config, context) if config.reading else {}
    chosen = sorted(sources.chosen)
    imported = importing.judges(config, made[INGEST], context)
    parts: list[tuple[pa.Table, pa.Table, pa.Table]] = over_buckets(
        context, chosen, _judged, context.store, sources, config, context.seed, imported
    )
    if not sum(judgments.num_rows for judgments, _, _ in parts):
        raise JudgeError("no question was asked", "pilot", "raise judge.budget, or give more train queries")
    judgments, grades, costs = map(pa.concat_tables, zip(*parts, strict=True))
    comparisons = pa.concat_tables([sources.chosen[bucket] for bucket in chosen])
    figures = judging.audit(judgments, comparisons, grades=grades)
    verdicts = pilot.verdicts(figures, costs, config.pilot, questions)
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
        found = over_buckets(context, buckets, _first, compare, retrieve, pairs, design)
        of += sum(count for _, count, _ in found)
        in_all += sum(count for _, _, count in found)
        kept = [pilot.first([*kept, *(table for table, _, _ in found)], pairs)]
    return Sampled(compare, retrieve, made[INGEST], chosen=pilot.pick(kept[0], pairs)), of, in_all


def _first(
    bucket: int, compare: Artifact, retrieve: Artifact, pairs: int, design: CompareConfig | None
) -> tuple[pa.Table, int, int]:
    """Return a bucket's possible pilot pairs, and its current and future numbers of comparisons."""
    comparisons = compare.read_part("comparisons", bucket, COMPARISON)
    candidates = retrieve.read_part("candidates", bucket, CANDIDATE)
    in_all = comparisons.num_rows
    if design is not None and design.design == "adaptive":
        in_all = pairs_in_all(comparisons, design)
    return pilot.first([pilot.numbered(bucket, comparisons, candidates)], pairs), comparisons.num_rows, in_all


def _judged(
    bucket: int,
    store: Store,
    sources: Sampled,
    config: JudgeConfig,
    seed: int,
    imported: Mapping[str, importing.ImportedAnswers],
) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return a bucket's Judgments, known positives as Qrels, and costs of questions (see `pilot.verdicts`)."""
    comparisons = sources.chosen[bucket]
    candidates = sources.retrieve.read_part("candidates", bucket, CANDIDATE)
    answers = dispatch.bought(store, sources, config, bucket)
    answers |= {name: judge.answers(bucket) for name, judge in imported.items()}
    judgments = judging.judge(comparisons, candidates, config, seed, answers)
    judgments = judgments.filter(pc.fill_null(pc.not_equal(judgments["error"], dispatch.NO_BUDGET_LEFT), True))
    queries = pc.is_in(candidates["query_id"], value_set=comparisons["query_id"].combine_chunks())
    known = candidates.filter(pc.and_(queries, pc.not_equal(candidates["source"], "random")))
    grades = QREL.table(
        {"query_id": known["query_id"], "doc_id": known["doc_id"], "grade": pc.cast(known["is_positive"], pa.int32())}
    )
    questions = sources.questions(bucket) if config.reading else None
    costs = [_costs(judge, bucket, store, questions) for judge in kinds.reading(config)] if questions else []
    return judgments, grades, pa.concat_tables([pilot.COSTS.empty_table(), *costs])


def _costs(judge: TextJudge, bucket: int, store: Store, questions: TextQuestions) -> pa.Table:
    """Return what every question that was asked cost, by the judge's current prices."""
    held = dispatch.log_of(store, judge).read(bucket)
    rows = held.rows(questions.ids)
    asked = rows >= 0
    paid = judge.paid(held.table)
    least, most = (np.full(asked.sum(), np.nan) if paid is None else paid[side][rows[asked]] for side in (0, 1))
    query = bucket * (1 << 32) + questions.query[asked]
    return pa.table([[judge.name] * len(query), query, least, most], schema=pilot.COSTS)
