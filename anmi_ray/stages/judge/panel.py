"""How a panel judges a round of comparisons, whichever of the stages of `stages/judge` it is.

Judges that read texts are asked first, what is missing in the answer log (`dispatch`); then every bucket's judgments
are put together from the log, from files of preferences (`importing`), and from the judges that compute in process (a
simulated panel, similarity). The latent relevance of a simulated panel is kept beside its judgments, so that the audit
can measure accuracy and errors against it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
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
from anmi_ray.runtime.tasks import Context, run_buckets, run_task
from anmi_ray.stages.ingest import HIDDEN, of_queries, sample_queries, stacked
from anmi_ray.stages.judge import dispatch, importing
from anmi_ray.stages.judge.budget_actor import REMEDY
from anmi_ray.stages.judge.sources import QuestionSources
from anmi_ray.store import Artifact, Flow
from anmi_ray.store.folders import local_folder
from anmi_ray.store.spend_log import SpendRecord

_AUDIT_QUERIES = 1000


def run(
    artifact: Artifact,
    inputs: Mapping[str, Artifact],
    config: JudgeConfig,
    context: Context,
    direct: bool = False,
    held_out: bool = False,
) -> dict[str, Any]:
    """Run the stage; `direct`: about single documents, `held_out`: for queries not used in training."""
    made = inputs.get("distill")
    whole = bound(config, made)
    config = config.direct if direct else whole
    read = inputs["compare"], inputs["retrieve"], inputs["ingest"]
    round_ = QuestionSources(*read, first=inputs.get("first"), begun=inputs.get(BEGUN), distill=made, held_out=held_out)
    sources = replace(round_, direct=whole) if direct else replace(round_, orders=config.orders)
    asked = dispatch.ask(artifact, sources, config, context) if config.reading else {}
    brought = importing.judges(config, inputs["ingest"], context)
    flows = run_buckets(context, artifact, ("judgments", JUDGMENT), _bucket, sources, config, context.seed, brought)
    spend_log = dispatch.spend_log_of(artifact.store, sources, config)
    spent = spend_log.records_of_round() if config.reading else []
    audit = artifact.read_json("audit.json")
    if audit is None:  # before the checks, so that `anmi audit` shows why they fail
        figures = _audit_direct if direct else _audit
        audit = run_task(context, figures, artifact, sources, config, context.buckets)
        artifact.publish_json("audit.json", audit)
    judgments = [flow for flow in flows if flow.unit == "judgments"]
    answered = sum(flow.rows_out for flow in judgments) or not sum(flow.rows_in for flow in judgments)
    why = "" if answered else run_task(context, _failures, artifact, context.buckets)
    if held_out:
        if said := _doubt(flows, why):
            context.notice(said)
    else:
        if why and (direct or sources.first is None):
            raise _no_answer(why, flows, config, artifact.stage)
        if sources.first is None:
            _check_left_out(flows, config, artifact.stage, spent, later=sources.begun is not None)
        if direct:
            _check_telling(flows, artifact.stage)
    facts = {"panel": {judge.name: judge.kind for judge in config.judges}} if held_out else {}
    return {"flows": flows, "asked": asked, "spent": budget.total(spent), "campaign": spend_log.campaign, **facts}


def bound(config: JudgeConfig, made: Artifact | None) -> JudgeConfig:
    """The panel with its distilled judges as judges that ask the model of `made`, the artifact of the stage distill."""
    if made is None:
        return config
    model: dict[str, Any] = {"kind": "encoder", "model": str(local_folder(made, "model")), "form": "pairwise"}
    if (made.manifest() or {})["settings"].get("form") != "pairwise":
        model |= {"form": "pointwise", "slope": made.read_json("summary.json")["slope"]}

    return config.model_copy(update={"judges": tuple(kinds.of(judge).resolved(model) for judge in config.judges)})


def _failures(judge: Artifact, buckets: int) -> str:
    """The failures of each judge by reason, with their counts over all judgments."""
    parts = [judge.read_part("judgments", bucket, JUDGMENT).select(["judge", "error"]) for bucket in range(buckets)]
    rows = pa.concat_tables(parts).group_by(["judge", "error"]).aggregate([([], "count_all")]).to_pylist()
    failures: dict[str, dict[str, int]] = {}
    for row in rows:
        failures.setdefault(row["judge"], {})[row["error"]] = row["count_all"]
    return "; ".join(f"judge {name}: {by_frequency(failures[name])}" for name in sorted(failures))


def _no_answer(why: str, flows: list[Flow], config: JudgeConfig, stage: str) -> AnmiError:
    """The error for a stage without any answer, so that there is nothing to rate."""
    if any(flow.rejected for flow in flows if flow.unit == "queries"):
        what = f"no question was answered within the budget ({_limits(config)}): a query is asked about whole; {why}"
        return BudgetError(what, f"stage {stage}", f"raise {_group(stage)}.budget: `anmi plan` says what a run costs")
    return JudgeError(f"no question was answered; {why}", f"stage {stage}", REMEDY)


def _check_left_out(
    flows: list[Flow], config: JudgeConfig, stage: str, spent: Sequence[SpendRecord], later: bool
) -> None:
    """Say here that a budget ended before all queries were asked about: nothing is built on fewer unless that is said.

    later: in a round after the first of a design, or of a refinement. There a query that is left out keeps the answers
    that it has, so any number may be where some may. Raises BudgetError.
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
        f"the budget ({_limits(config)}) is spent, {sums} in all: {asked - left_out:,} of {asked:,} queries have all "
        f"their answers, {left_out:,} were left out. What was bought is kept",
        f"stage {stage}",
        f"raise {_group(stage)}.budget and run again, which goes on from there (`anmi plan` says what is missing); or "
        f"go on with those queries alone: {_group(stage)}.max_left_out={share:g}",
    )


def _limits(config: JudgeConfig) -> str:
    return ", ".join(f"{name} {value:g}" for name, value in config.budget if value is not None)


def _group(stage: str) -> str:
    """The settings of a stage's judges."""
    return "distill.judge" if stage == "label" else "judge"


def _doubt(flows: list[Flow], why: str) -> str:
    """Return the problem with answers about held-out queries, or ""; why: the failures if all failed."""
    if why:
        return f"no question about held-out queries was answered, so judges measure nothing; {why}"
    return confirmation.fault(_counts(flows)) or ""


def _counts(flows: list[Flow]) -> dict[str, int]:
    return {unit: sum(flow.rows_out for flow in flows if flow.unit == unit) for unit in confirmation.UNITS}


def _check_telling(flows: list[Flow], stage: str) -> None:
    """Say here that no query would have an anchor, or that no answer tells documents apart."""
    if said := confirmation.fault(_counts(flows)):
        remedy = (
            "see what they are asked with anmi judge CONFIG --dry-run; a judge's prompt.relevance says it otherwise"
        )
        raise JudgeError(said, f"stage {stage}", remedy)


def _bucket(
    artifact: Artifact,
    bucket: int,
    sources: QuestionSources,
    config: JudgeConfig,
    seed: int,
    brought: Mapping[str, importing.Brought],
) -> list[Flow]:
    comparisons = sources.compare.read_part("comparisons", bucket, COMPARISON)
    candidates = sources.candidates.read_part("candidates", bucket, CANDIDATE)
    if config.simulated:
        candidates = _told(candidates, sources.ingest, bucket)
    given = dict(dispatch.bought(artifact.store, sources, config, bucket))
    given |= {name: one.answers(bucket) for name, one in brought.items()}
    direct = sources.direct is not None
    judgments = judging.judge(comparisons, candidates, config, seed, given, direct)
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


def _told(candidates: pa.Table, ingest: Artifact, bucket: int) -> pa.Table:
    """Return candidates including withheld positives, which only a simulated panel may see."""
    if not (ingest.manifest() or {}).get("hidden"):
        return candidates
    hidden = ingest.read_part(HIDDEN, bucket, QREL)
    relevant = hidden.filter(pc.greater(hidden["grade"], 0))
    known = find_rows(relevant, {name: candidates[name] for name in ("query_id", "doc_id")}) >= 0
    at = candidates.schema.get_field_index("is_positive")
    return candidates.set_column(at, candidates.schema.field(at), pc.or_(candidates["is_positive"], pa.array(known)))


def _left_out(judgments: pa.Table) -> pa.Table:
    """Rejects: queries of which some judge was asked nothing, because the budget was spent."""
    unasked = judgments.filter(pc.equal(judgments["error"], dispatch.NO_BUDGET_LEFT)).select(["query_id", "judge"])
    by_query = unasked.group_by("query_id", use_threads=False).aggregate([("judge", "distinct")])
    rows = zip(by_query["query_id"].to_pylist(), by_query["judge_distinct"].to_pylist(), strict=True)
    why = [(query.hex(), "budget", f"not asked: {', '.join(sorted(names))}") for query, names in rows]
    return rejects("judge", why)


def _audit_direct(judge: Artifact, asked: QuestionSources, config: JudgeConfig, buckets: int) -> dict[str, Any]:
    """Each judge's failures and yeses over a hash sample of queries."""
    sample = sample_queries(asked.compare, "comparisons", buckets, _AUDIT_QUERIES, "audit")
    parts = [of_queries(judge.read_part("judgments", bucket, JUDGMENT), sample) for bucket in range(buckets)]
    return {"queries": sample.num_rows, **confirmation.audit(pa.concat_tables(parts))}


def _audit(judge: Artifact, asked: QuestionSources, config: JudgeConfig, buckets: int) -> dict[str, Any]:
    """The audit over a hash sample of queries, read bucket by bucket."""
    compare = asked.compare
    sample = sample_queries(compare, "comparisons", buckets, _AUDIT_QUERIES, "audit")
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
