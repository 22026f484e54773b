"""Asking judges that read texts: plan what is missing, ask it, in chunks of whole queries; answers go to the log.

Nothing but the answer log says what was bought. A chunk's actor looks the log up before it asks, so a chunk that is
carried out again (an actor's death makes Ray repeat it, a killed run is started anew) asks only what never reached the
log. What may be asked, and how fast, the judge's budget actor says.
"""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import ray
import ray.data

from anmi_ray.config.base import whole
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.errors import JudgeError, rebuild
from anmi_ray.core.identity import digest
from anmi_ray.core.records import JUDGMENT
from anmi_ray.judging import autoscale, kinds
from anmi_ray.judging.autoscale import Limits, Target
from anmi_ray.judging.budget_session import BudgetReport
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.judging.kinds.base import ACTOR_CPUS, by_frequency
from anmi_ray.judging.preferences import answer_source
from anmi_ray.judging.protocol import AnswerSource
from anmi_ray.runtime.capacity import cpus
from anmi_ray.runtime.tasks import Context, data_settings, our_errors, over_buckets, rows_of, watched
from anmi_ray.stages.judge import budget_actor, vllm
from anmi_ray.stages.judge.actor import JudgeActor, context_of
from anmi_ray.stages.judge.sources import QuestionSources
from anmi_ray.store import Artifact, Store
from anmi_ray.store.answer_log import AnswerLog
from anmi_ray.store.spend_log import SpendLog

NO_BUDGET_LEFT = "budget"  # why a question was not asked
_DIRECT_ROUND = 2  # of the spend log
_HELD_OUT_ROUND = 3


@dataclass(frozen=True)
class _Plan:
    """What is missing of one judge's answers: chunks to ask; questions, those without a final answer, and of these
    those that failed for a reason that may go away."""

    chunks: list[dict[str, int]]
    questions: int
    missing: int
    failed: int


def log_of(store: Store, judge: TextJudge) -> AnswerLog:
    """The answers of a judge under a root."""
    return AnswerLog(store, judge.identity)


def spend_log_of(store: Store, sources: QuestionSources, config: JudgeConfig) -> SpendLog:
    """Return the spend on a panel's answers about these comparisons, regardless of the budget.

    Later rounds are of the first one's campaign: one budget holds for all, each spends what those before it left.
    """
    reading = (sources.direct or config).reading
    panel = json.dumps([whole(judge) for judge in reading], sort_keys=True, ensure_ascii=False)
    compared = sources.first or sources.begun or sources.compare
    campaign = digest("campaign", compared.fingerprint, panel).hex()[:16]
    later = 1 if sources.direct is None else _HELD_OUT_ROUND if sources.held_out else _DIRECT_ROUND
    return SpendLog(store, campaign, 0 if sources.first is None else later)


def ask(artifact: Artifact, sources: QuestionSources, config: JudgeConfig, context: Context) -> dict[str, Any]:
    """Ask what is missing, judge by judge, then once more what failed for a passing reason; counts by judge.

    A bucket whose judgments are there already is left alone. Raises JudgeError where more of a judge's questions than
    `config.max_failures` stay without an answer though they were asked: what is missing is asked by the next run.
    """
    spend_log = spend_log_of(artifact.store, sources, config)
    began = time.monotonic()
    buckets = [bucket for bucket in range(context.buckets) if artifact.seal("judgments", JUDGMENT, bucket) is None]
    counts: dict[str, Any] = {}
    for judge in kinds.reading(config):
        target = autoscale.target_of(config, judge, context.execution, time.monotonic() - began)
        counts[judge.name] = _ask_judge(judge, buckets, spend_log, sources, config, target, context)
    return counts


def bought(store: Store, sources: QuestionSources, config: JudgeConfig, bucket: int) -> Mapping[str, AnswerSource]:
    """By name, the answers in the log about a bucket, of the panel's judges that read texts."""
    if not config.reading:
        return {}
    sources.fetch()
    questions = sources.questions(bucket)
    given: dict[str, AnswerSource] = {}
    for judge in kinds.reading(config):
        held = log_of(store, judge).read(bucket)
        rows = held.rows(questions.ids)
        given[judge.name] = answer_source(questions, held.table, rows, judge.read_reply(), NO_BUDGET_LEFT)
    return given


def _ask_judge(
    judge: TextJudge,
    buckets: list[int],
    spend_log: SpendLog,
    sources: QuestionSources,
    config: JudgeConfig,
    target: Target,
    context: Context,
) -> dict[str, int]:
    """Passes over what is missing until nothing is, the budget is spent, or the passes are over; the counts."""
    log = log_of(context.store, judge)
    plan = _plan(buckets, log, sources, context)
    if not plan.chunks:
        return {"asked": 0, "answered": 0, "failed": 0}
    execution = context.execution
    if execution.address is not None:  # the most actors follow from its CPUs
        execution = execution.model_copy(update={"cpus": cpus(execution)})
    limits = autoscale.limits_of(judge, execution)
    clients = min(limits.most, len(plan.chunks))
    # never killed: it ends, and its metrics are sent, when nobody refers to it any more
    actor = budget_actor.start(spend_log, config, judge, clients, plan.missing)
    for _ in range(1 + config.retry_passes):
        failed_before = _report(actor).spent.failed
        began = time.monotonic()
        _ask_pass(plan, log, sources, judge, actor, target, limits, context)
        target = target.after(time.monotonic() - began, 0)
        report: BudgetReport = ray.get(actor.finish.remote())
        if report.problem:
            raise rebuild(report.problem)
        if report.spent.failed == failed_before or report.spent_out:
            break
        plan = _plan(buckets, log, sources, context)
        if not plan.chunks:
            break
    else:
        _check_failures(plan, judge, config, _report(actor).failures)
    spent = _report(actor).spent
    return {"asked": spent.questions, "answered": spent.questions - spent.failed, "failed": spent.failed}


def _check_failures(plan: _Plan, judge: TextJudge, config: JudgeConfig, failures: Mapping[str, int]) -> None:
    if plan.failed > config.max_failures * plan.questions:
        raise JudgeError(
            f"{plan.failed:,} of {plan.questions:,} questions have no answer, for reasons that may go away; failures "
            f"over all passes: {by_frequency(failures)}",
            f"judge {judge.name}",
            "run the same command again to ask them once more; `judge.max_failures` says how many a run may go on with",
        )


def _report(actor: Any) -> BudgetReport:
    return ray.get(actor.report.remote())


def _plan(buckets: list[int], log: AnswerLog, sources: QuestionSources, context: Context) -> _Plan:
    """Chunks that hold questions without a final answer; those with queries that were begun come first.

    Where another run was at work before this one, all is the other way round: both meet, and buy little twice.
    """
    backwards = context.second()
    found = over_buckets(context, buckets, _missing, log, sources, context.execution.chunk)
    chunks = sorted((chunk for one in found for chunk in one.chunks), key=lambda chunk: not chunk["begun"])
    chunks = [chunk | {"backwards": int(backwards)} for chunk in (reversed(chunks) if backwards else chunks)]
    return _Plan(chunks, *(sum(getattr(one, name) for one in found) for name in ("questions", "missing", "failed")))


def _missing(bucket: int, log: AnswerLog, sources: QuestionSources, size: int) -> _Plan:
    questions = sources.questions(bucket)
    held = log.read(bucket)
    final = held.final(questions.ids)
    chunks = [
        {"bucket": bucket, "start": start, "stop": stop, "begun": int(final[start:stop].any())}
        for start, stop in questions.chunks(size)
        if not final[start:stop].all()
    ]
    failed = int(np.sum((held.rows(questions.ids) >= 0) & ~final))
    return _Plan(chunks, len(final), int(np.sum(~final)), failed)


def _ask_pass(
    plan: _Plan,
    log: AnswerLog,
    sources: QuestionSources,
    judge: TextJudge,
    actor: Any,
    target: Target,
    limits: Limits,
    context: Context,
) -> None:
    """Ask all that a plan says is missing, in waves. It ends early by letting nothing more through, never by force."""
    before = _report(actor)
    ask_chunks = vllm.ask_chunks if judge.asked_by == "engines" else _ask_chunks
    sizes: list[str] = []
    with our_errors("judge"), watched(lambda: _say(actor, plan, before, sizes, context)):
        for chunks, pool in _in_waves(plan.chunks, target, limits, lambda: _report(actor).spent.questions):
            sizes[:] = [] if target == Target() else [f"pool of {pool[0]} to {pool[1]}"]
            ask_chunks(chunks, log, sources, judge, pool, actor, context)
            report = _report(actor)
            if report.problem or report.spent_out:
                break


def _in_waves(
    chunks: list[dict[str, int]], target: Target, limits: Limits, answered: Callable[[], int]
) -> Iterator[tuple[list[dict[str, int]], tuple[int, int]]]:
    """Chunks and the fewest and most actors for them, wave after wave; the caller asks each before it takes the next.

    answered: counts the questions answered so far.
    """
    rate: float | None = None
    while chunks:
        sizes = [chunk["stop"] - chunk["start"] for chunk in chunks]
        wave = autoscale.next_wave(sizes, rate, target, limits)
        before, began = answered(), time.monotonic()
        yield chunks[: wave.chunks], (wave.least, wave.most)
        passed = time.monotonic() - began
        rate = autoscale.achieved(answered() - before, passed, wave, limits)
        target, chunks = target.after(passed, wave.most), chunks[wave.chunks :]


def _ask_chunks(
    chunks: list[dict[str, int]],
    log: AnswerLog,
    sources: QuestionSources,
    judge: TextJudge,
    pool: tuple[int, int],
    actor: Any,
    context: Context,
) -> None:
    """Ask through a pool of actors; a chunk is a block."""
    least, most = (min(size, len(chunks)) for size in pool)
    with data_settings(context, context.execution.judging_on):
        asked = ray.data.from_items(chunks, override_num_blocks=len(chunks)).map_batches(
            cast(Any, JudgeActor),  # Ray's types know no actor whose call takes more than its batch
            fn_args=(log, sources, judge.one_of(most), actor, context_of(judge)),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most, initial_size=least),
            num_cpus=ACTOR_CPUS,
            num_gpus=judge.gpus or None,
        )
        with rows_of(asked) as rows:
            collections.deque(rows, maxlen=0)


def _say(actor: Any, plan: _Plan, before: BudgetReport, sizes: list[str], context: Context) -> None:
    """Report the progress of this pass; before: the report at its start."""
    report = _report(actor)
    spent = report.spent
    seconds = max(spent.hours * 3600, 1e-3)
    said = [f"{spent.questions / seconds:,.0f}/s", *sizes]
    if plan.questions > plan.missing:
        said.append(f"{plan.questions - plan.missing:,} held")
    if failed := collections.Counter(report.failures) - collections.Counter(before.failures):
        said.append(f"{failed.total():,} failed ({by_frequency(failed, 1)})")
    if spent.dollars:
        said.append(f"{spent.dollars:,.2f} dollars")
    context.progress(spent.questions - before.spent.questions, plan.missing, "questions", ", ".join(said))
