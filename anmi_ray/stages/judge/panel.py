"""Judge a round of comparisons with a panel: the bodies of the stages in `stages/judge`.

Text judges are asked first for what is missing in the answer log (`dispatch`); then each bucket's judgments are
collected from the log, from files of preferences (`importing`), and from judges that compute in process (simulated,
similarity). The latent relevance of a simulated panel is stored with its judgments, so that the audit can measure
accuracy and errors.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray import judging, rating
from anmi_ray.config.judge import BudgetConfig, JudgeConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.errors import AnmiError, BudgetError, JudgeError
from anmi_ray.core.records import CANDIDATE, COMPARISON, JUDGMENT, QREL, TRUTH, find_rows, rejects
from anmi_ray.judging import budget, confirmation, kinds
from anmi_ray.judging.kinds.base import by_frequency
from anmi_ray.rating.graph import count_triads
from anmi_ray.runtime.costs import BEGUN
from anmi_ray.runtime.stage import Inputs
from anmi_ray.runtime.tasks import Context, run_buckets, run_task
from anmi_ray.stages.ingest import HIDDEN, of_queries, sample_queries, stacked
from anmi_ray.stages.judge import dispatch, importing
from anmi_ray.stages.judge.asking import ASSESS, CONFIRM, FIRST, REMEDY, VALIDATE, QuestionSources
from anmi_ray.store import Artifact, Flow
from anmi_ray.store.folders import local_folder
from anmi_ray.store.spend_log import SpendRecord

_AUDIT_QUERIES = 1000


def run(artifact: Artifact, inputs: Inputs, config: JudgeConfig, context: Context) -> dict[str, Any]:
    """Ask which document of each pair is better. Raises JudgeError or BudgetError if a first round lacks answers."""
    config = bound(config, inputs.get("distill"))
    later = "first" in inputs
    sources = _sources(inputs, orders=config.orders, round=VALIDATE if later else FIRST)
    facts, spent, why = _judged(artifact, sources, config, context)
    if not later:
        if why:
            raise _no_answer(why, facts["flows"], config, artifact.stage)
        _check_left_out(facts["flows"], config, artifact.stage, spent, sources.begun is not None)
    return facts


def confirm(artifact: Artifact, inputs: Inputs, config: JudgeConfig, context: Context) -> dict[str, Any]:
    """Ask about single documents. Raises JudgeError if none is answered or confirmed, or all are confirmed."""
    sources = _sources(inputs, pairwise=bound(config, inputs.get("distill")), round=CONFIRM)
    facts, _, why = _judged(artifact, sources, config.direct, context)
    if why:
        raise _no_answer(why, facts["flows"], config.direct, artifact.stage)
    if problem := confirmation.fault(_counts(facts["flows"])):
        remedy = "check the prompt with anmi judge CONFIG --dry-run; prompt.relevance sets another one"
        raise JudgeError(problem, f"stage {artifact.stage}", remedy)
    return facts


def assess(artifact: Artifact, inputs: Inputs, config: JudgeConfig, context: Context) -> dict[str, Any]:
    """Ask about the top documents of held-out queries. Useless answers only cause a notice, since a model exists."""
    sources = _sources(inputs, pairwise=bound(config, inputs.get("distill")), round=ASSESS)
    facts, _, why = _judged(artifact, sources, config.direct, context)
    nothing = f"no question about held-out queries was answered, so judges measure nothing; {why}" if why else None
    if problem := nothing or confirmation.fault(_counts(facts["flows"])):
        context.notice(problem)
    return {**facts, "panel": {judge.name: judge.kind for judge in config.direct.judges}}


def _sources(inputs: Inputs, **more: Any) -> QuestionSources:
    read = inputs["compare"], inputs["retrieve"], inputs["ingest"]
    others = {"first": inputs.get("first"), "begun": inputs.get(BEGUN), "distill": inputs.get("distill")}
    return QuestionSources(*read, **others, **more)


def _judged(
    artifact: Artifact, sources: QuestionSources, config: JudgeConfig, context: Context
) -> tuple[dict[str, Any], Sequence[SpendRecord], str]:
    """Ask, collect the judgments of all buckets, and audit a sample of them.

    Return the manifest's facts, this round's spend, and the failures by judge if nothing was answered.
    """
    asked = dispatch.ask(artifact, sources, config, context) if config.reading else {}
    imported = importing.judges(config, sources.ingest, context)
    flows = run_buckets(context, artifact, ("judgments", JUDGMENT), _bucket, sources, config, context.seed, imported)
    spend_log = dispatch.spend_log_of(artifact.store, sources, config)
    spent = spend_log.records_of_round() if config.reading else []
    if artifact.read_json("audit.json") is None:  # before the checks, so that `anmi audit` shows why they fail
        figures = _audit_direct if sources.pairwise else _audit
        artifact.publish_json("audit.json", run_task(context, figures, artifact, sources, config, context.buckets))
    judgments = [flow for flow in flows if flow.unit == "judgments"]
    answered = sum(flow.rows_out for flow in judgments) or not sum(flow.rows_in for flow in judgments)
    why = "" if answered else run_task(context, _failures, artifact, context.buckets)
    facts = {"flows": flows, "asked": asked, "spent": budget.total(spent), "campaign": spend_log.campaign}
    return facts, spent, why


def bound(config: JudgeConfig, made: Artifact | None) -> JudgeConfig:
    """Return the panel with its distilled judges bound to the model of `made`, the artifact of the stage distill."""
    if made is None:
        return config
    model: dict[str, Any] = {"kind": "encoder", "model": str(local_folder(made, "model")), "form": "pairwise"}
    if (made.manifest() or {})["settings"].get("form") != "pairwise":
        model |= {"form": "pointwise", "slope": made.read_json("summary.json")["slope"]}
    return config.model_copy(update={"judges": tuple(kinds.of(judge).resolved(model) for judge in config.judges)})


def _failures(judge: Artifact, buckets: int) -> str:
    """Return the failures of each judge by reason, with their counts over all judgments."""
    parts = [judge.read_part("judgments", bucket, JUDGMENT).select(["judge", "error"]) for bucket in range(buckets)]
    rows = pa.concat_tables(parts).group_by(["judge", "error"]).aggregate([([], "count_all")]).to_pylist()
    failures: dict[str, dict[str, int]] = {}
    for row in rows:
        failures.setdefault(row["judge"], {})[row["error"]] = row["count_all"]
    return "; ".join(f"judge {name}: {by_frequency(failures[name])}" for name in sorted(failures))


def _no_answer(why: str, flows: list[Flow], config: JudgeConfig, stage: str) -> AnmiError:
    """Return the error for a stage without any answer."""
    if any(flow.rejected for flow in flows if flow.unit == "queries"):
        what = f"the budget ({_limits(config)}) does not cover all questions about one query; {why}"
        return BudgetError(what, f"stage {stage}", f"raise {_group(stage)}.budget; `anmi plan` shows what a run costs")
    return JudgeError(f"no question was answered; {why}", f"stage {stage}", REMEDY)


def _check_left_out(
    flows: list[Flow], config: JudgeConfig, stage: str, spent: Sequence[SpendRecord], later: bool
) -> None:
    """Raise BudgetError if the budget ended before all queries were judged, unless the settings allow it.

    later: in a later round of a design, queries that are left out keep the answers they have, so any
    number is allowed if some are.
    """
    if later and config.max_left_out:
        return
    queries = [flow for flow in flows if flow.unit == "queries"]
    asked = sum(flow.rows_in for flow in queries)
    left_out = sum(flow.rejected for flow in queries)
    if left_out <= config.max_left_out * asked:
        return
    dollars = sum(record.dollars for record in spent)
    sums = f"{sum(record.calls for record in spent):,.0f} calls" + (f", {dollars:,.2f} dollars" if dollars else "")
    share = math.ceil(100 * left_out / asked) / 100
    raise BudgetError(
        f"the budget ({_limits(config)}) is spent, {sums} in total: {asked - left_out:,} of {asked:,} queries have all "
        f"their answers, {left_out:,} were left out; the answers are kept",
        f"stage {stage}",
        f"raise {_group(stage)}.budget and run again to continue (`anmi plan` shows what is missing); or continue with "
        f"those queries alone: {_group(stage)}.max_left_out={share:g}",
    )


def _limits(config: JudgeConfig) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in config.budget if value is not None)


def _group(stage: str) -> str:
    """Return the settings group of a stage's judges."""
    return "distill.judge" if stage == "label" else "judge"


def _counts(flows: list[Flow]) -> dict[str, int]:
    return {unit: sum(flow.rows_out for flow in flows if flow.unit == unit) for unit in confirmation.UNITS}


def _bucket(
    artifact: Artifact,
    bucket: int,
    sources: QuestionSources,
    config: JudgeConfig,
    seed: int,
    imported: Mapping[str, importing.ImportedAnswers],
) -> list[Flow]:
    comparisons = sources.compare.read_part("comparisons", bucket, COMPARISON)
    candidates = sources.candidates.read_part("candidates", bucket, CANDIDATE)
    if config.simulated:
        candidates = _with_hidden(candidates, sources.ingest, bucket)
    answers = dispatch.bought(artifact.store, sources, config, bucket)
    answers |= {name: rows.answers(bucket) for name, rows in imported.items()}
    direct = sources.pairwise is not None
    judgments = judging.judge(comparisons, candidates, config, seed, answers, direct)
    asked, answered = judgments.num_rows, len(judgments["p_a"]) - judgments["p_a"].null_count
    flows, left_out = [Flow("judgments", asked, answered, asked - answered)], None
    if config.budget != BudgetConfig():
        left_out, queries = _left_out(judgments), pc.count_distinct(judgments["query_id"]).as_py()
        flows.append(Flow("queries", queries, queries - left_out.num_rows, left_out.num_rows))
    parts = {"judgments": (JUDGMENT, judgments)}
    if direct:
        counts = confirmation.counts(judging.confirmations(judgments, comparisons))
        flows += [Flow(unit, count, count) for unit, count in counts.items()]
    else:
        parts["truth"] = (TRUTH, judging.truth(candidates, config, seed))
    artifact.commit_bucket(bucket, parts, flows, left_out, explained=asked - answered)
    return flows


def _with_hidden(candidates: pa.Table, ingest: Artifact, bucket: int) -> pa.Table:
    """Return candidates including withheld positives, which only a simulated panel may see."""
    if not (ingest.manifest() or {}).get("hidden"):
        return candidates
    hidden = ingest.read_part(HIDDEN, bucket, QREL)
    relevant = hidden.filter(pc.greater(hidden["grade"], 0))
    known = find_rows(relevant, {name: candidates[name] for name in ("query_id", "doc_id")}) >= 0
    at = candidates.schema.get_field_index("is_positive")
    return candidates.set_column(at, candidates.schema.field(at), pc.or_(candidates["is_positive"], pa.array(known)))


def _left_out(judgments: pa.Table) -> pa.Table:
    """Return Rejects: queries that some judge was not asked about because the budget was spent."""
    unasked = judgments.filter(pc.equal(judgments["error"], dispatch.NO_BUDGET_LEFT)).select(["query_id", "judge"])
    by_query = unasked.group_by("query_id", use_threads=False).aggregate([("judge", "distinct")])
    rows = zip(by_query["query_id"].to_pylist(), by_query["judge_distinct"].to_pylist(), strict=True)
    why = [(query.hex(), "budget", f"not asked: {', '.join(sorted(names))}") for query, names in rows]
    return rejects("judge", why)


def _audit_direct(judge: Artifact, asked: QuestionSources, config: JudgeConfig, buckets: int) -> dict[str, Any]:
    """Return each judge's rates of failures and yes over a hash sample of queries."""
    sample, buckets = sample_queries(asked.compare, "comparisons", buckets, _AUDIT_QUERIES, "audit")
    parts = [of_queries(judge.read_part("judgments", bucket, JUDGMENT), sample) for bucket in range(buckets)]
    return {"queries": sample.num_rows, **confirmation.audit(pa.concat_tables(parts))}


def _audit(judge: Artifact, asked: QuestionSources, config: JudgeConfig, buckets: int) -> dict[str, Any]:
    """Return the audit over a hash sample of queries, read bucket by bucket."""
    compare = asked.compare
    sample, buckets = sample_queries(compare, "comparisons", buckets, _AUDIT_QUERIES, "audit")
    parts = ((judge, "judgments", JUDGMENT), (compare, "comparisons", COMPARISON), (judge, "truth", TRUTH))
    judgments, comparisons, truth = stacked(
        [of_queries(source.read_part(part, bucket, record), sample) for source, part, record in parts]
        for bucket in range(buckets)
    )
    leanings = None
    if config.orders == "one" and judgments["p_a"].null_count < judgments.num_rows:
        read = (asked.retrieve.read_part("candidates", bucket, CANDIDATE) for bucket in range(buckets))
        candidates = pa.concat_tables(of_queries(table, sample) for table in read)
        leanings = rating.fit_globals(judgments, comparisons, candidates, RateConfig(judge_offsets=True)).offsets
    figures = judging.audit(judgments, comparisons, truth, triads=count_triads, leanings=leanings)
    return {"queries": sample.num_rows, **figures}
