"""Ask judges that read texts: plan the missing answers, ask them in chunks of whole queries, write them to the log.

Only the answer log says what was bought. A chunk's actor reads it before asking, so a chunk that is repeated (because
an actor died or a killed run was restarted) asks only what is not in the log. The judge's budget actor decides what may
be asked, and how fast.
"""

from __future__ import annotations

import collections
import json
import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import ray
import ray.data

from anmi_ray.config.base import whole
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core import logs
from anmi_ray.core.errors import JudgeError, rebuild
from anmi_ray.core.identity import digest
from anmi_ray.core.records import JUDGMENT
from anmi_ray.judging import autoscale, kinds
from anmi_ray.judging.autoscale import Limits
from anmi_ray.judging.budget import BudgetReport
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.judging.kinds.base import ACTOR_CPUS, by_frequency
from anmi_ray.judging.preferences import answer_source
from anmi_ray.judging.protocol import AnswerSource
from anmi_ray.runtime.capacity import cpus
from anmi_ray.runtime.tasks import Context, data_settings, our_errors, over_buckets, rows_of, watched
from anmi_ray.stages.judge import vllm
from anmi_ray.stages.judge.asking import Asking, Chunk, JudgeActor, QuestionSources, start_budget
from anmi_ray.store import Artifact, Store
from anmi_ray.store.answer_log import AnswerLog
from anmi_ray.store.spend_log import SpendLog

NO_BUDGET_LEFT = "budget"  # failure reason of questions that were not asked


@dataclass(frozen=True)
class _Plan:
    """The missing answers of one judge.

    chunks: chunks to ask, in order.
    questions: number of questions.
    missing: those without a final answer.
    failed: those of them with a temporary failure.
    """

    chunks: list[Chunk]
    questions: int
    missing: int
    failed: int


def log_of(store: Store, judge: TextJudge) -> AnswerLog:
    """Return the answer log of a judge under a root."""
    return AnswerLog(store, judge.identity)


def spend_log_of(store: Store, sources: QuestionSources, config: JudgeConfig) -> SpendLog:
    """Return the spend log of a panel's answers about these comparisons, regardless of the budget.

    Later rounds belong to the first one's campaign: one budget covers all, and each round has what is left.
    """
    reading = (sources.pairwise or config).reading
    panel = json.dumps([whole(judge) for judge in reading], sort_keys=True, ensure_ascii=False)
    compared = sources.first or sources.begun or sources.compare
    return SpendLog(store, digest("campaign", compared.fingerprint, panel).hex()[:16], sources.round)


def ask(artifact: Artifact, sources: QuestionSources, config: JudgeConfig, context: Context) -> dict[str, Any]:
    """Ask what is missing, judge by judge, and retry temporary failures; return counts by judge.

    Buckets with judgments are skipped. Raises JudgeError if more than `config.max_failures` of a judge's questions
    have no answer although they were asked; the next run asks them.
    """
    spend_log = spend_log_of(artifact.store, sources, config)
    began = time.monotonic()
    buckets = [at for at, seal in enumerate(artifact.seals("judgments", JUDGMENT, context.buckets)) if seal is None]
    counts: dict[str, Any] = {}
    for judge in kinds.reading(config):
        deadline = time.monotonic() + autoscale.target_of(config, judge, time.monotonic() - began)
        counts[judge.name] = _ask_judge(judge, buckets, spend_log, sources, config, deadline, context)
    return counts


def bought(store: Store, sources: QuestionSources, config: JudgeConfig, bucket: int) -> dict[str, AnswerSource]:
    """Return the logged answers about a bucket, by name of the panel's text judges; leave them in one segment each."""
    if not config.reading:
        return {}
    sources.fetch()
    questions = sources.questions(bucket)
    answers: dict[str, AnswerSource] = {}
    for judge in kinds.reading(config):
        held = log_of(store, judge).merge(bucket)
        rows = held.rows(questions.ids)
        answers[judge.name] = answer_source(questions, held.table, rows, judge.read_reply(), NO_BUDGET_LEFT)
    return answers


def _ask_judge(
    judge: TextJudge,
    buckets: list[int],
    spend_log: SpendLog,
    sources: QuestionSources,
    config: JudgeConfig,
    deadline: float,
    context: Context,
) -> dict[str, int]:
    """Ask in passes until nothing is missing, the budget is spent, or no passes are left; return counts."""
    log = log_of(context.store, judge)
    plan = _plan(buckets, log, sources, context)
    if not plan.chunks:
        return {"asked": 0, "answered": 0, "failed": 0}
    execution = context.execution
    if execution.address is not None:  # the maximum number of actors follows from its CPUs
        execution = execution.model_copy(update={"cpus": cpus(execution)})
    limits = Limits(*judge.actors(execution), autoscale.START_S)
    clients = min(limits.most, len(plan.chunks))
    # never killed: it ends and sends its metrics when no references are left
    actor = start_budget(spend_log, config, judge, clients, plan.missing)
    asking = Asking(judge, log, sources, actor, context.later, {**logs.context(), "judge": judge.name})
    for _ in range(1 + config.retry_passes):
        failed_before = _report(actor).spent.failed
        _ask_pass(plan, asking, deadline, limits, context)
        report: BudgetReport = ray.get(actor.report.remote(final=True))
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
            f"{plan.failed:,} of {plan.questions:,} questions have no answer because of temporary failures; failures "
            f"over all passes: {by_frequency(failures)}",
            f"judge {judge.name}",
            "run the same command again to retry them, or raise `judge.max_failures`",
        )


def _report(actor: Any) -> BudgetReport:
    return ray.get(actor.report.remote())


def _plan(buckets: list[int], log: AnswerLog, sources: QuestionSources, context: Context) -> _Plan:
    """Return the chunks that hold questions without a final answer; those with partly answered queries come first.

    If another run started earlier, the order is reversed: the two meet in the middle and buy little twice.
    """
    found = over_buckets(context, buckets, _missing, log, sources, context.execution.chunk)
    chunks = sorted((chunk for part in found for chunk in part.chunks), key=lambda chunk: not chunk.begun)
    chunks = chunks[::-1] if context.later else chunks
    return _Plan(chunks, *(sum(getattr(part, name) for part in found) for name in ("questions", "missing", "failed")))


def _missing(bucket: int, log: AnswerLog, sources: QuestionSources, size: int) -> _Plan:
    questions = sources.questions(bucket)
    held = log.read(bucket)
    final = held.final(questions.ids)
    chunks = [
        Chunk(bucket, start, stop, int(final[start:stop].any()))
        for start, stop in questions.chunks(size)
        if not final[start:stop].all()
    ]
    failed = int(np.sum((held.rows(questions.ids) >= 0) & ~final))
    return _Plan(chunks, len(final), int(np.sum(~final)), failed)


def _ask_pass(plan: _Plan, asking: Asking, deadline: float, limits: Limits, context: Context) -> None:
    """Ask a plan's chunks in waves by `deadline` (monotonic clock). End early only if nothing more is admitted."""
    actor = asking.budget
    before = _report(actor)
    ask_chunks = vllm.ask_chunks if asking.judge.asked_by == "engines" else _ask_chunks
    sizes: list[str] = []
    first: list[float] = []  # when the first answer was seen
    with our_errors("judge"), watched(lambda: _say(actor, plan, before, sizes, first, context)):
        for chunks, pool in _in_waves(plan.chunks, deadline, limits, lambda: _report(actor).spent.questions, first):
            sizes[:] = [] if deadline == math.inf else [f"pool of {pool[0]} to {pool[1]}"]
            ask_chunks(chunks, asking, pool, context)
            report = _report(actor)
            if report.problem or report.spent_out:
                break


def _in_waves(
    chunks: list[Chunk], deadline: float, limits: Limits, answered: Callable[[], int], first: Sequence[float]
) -> Iterator[tuple[list[Chunk], tuple[int, int]]]:
    """Yield the chunks of each wave with the minimum and maximum number of actors; the caller asks them in between.

    answered: returns the number of questions answered so far.
    first: gets the time of the first answer, by which the start of an actor is measured in the first wave.
    """
    rate: float | None = None
    while chunks:
        before, began = answered(), time.monotonic()
        wave = autoscale.next_wave([chunk.stop - chunk.start for chunk in chunks], rate, deadline - began, limits)
        yield chunks[: wave.chunks], (wave.least, wave.most)
        if rate is None and first:
            limits = replace(limits, start=first[0] - began)
        rate = autoscale.achieved(answered() - before, time.monotonic() - began, wave, limits)
        chunks = chunks[wave.chunks :]


def _ask_chunks(chunks: list[Chunk], asking: Asking, pool: tuple[int, int], context: Context) -> None:
    """Ask through a pool of actors; a chunk is a block."""
    least, most = (min(size, len(chunks)) for size in pool)
    asking = replace(asking, judge=asking.judge.one_of(most))
    with data_settings(context, context.execution.judging_on):
        asked = ray.data.from_items([chunk._asdict() for chunk in chunks], override_num_blocks=len(chunks)).map_batches(
            cast(Any, JudgeActor),  # Ray's types do not know actors whose call takes more than a batch
            fn_args=(asking,),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most, initial_size=least),
            num_cpus=ACTOR_CPUS,
            num_gpus=asking.judge.gpus or None,
        )
        with rows_of(asked) as rows:
            collections.deque(rows, maxlen=0)


def _say(actor: Any, plan: _Plan, before: BudgetReport, sizes: list[str], first: list[float], context: Context) -> None:
    """Report the progress of this pass; before: the report at its start. Note the time of its first answer."""
    report = _report(actor)
    spent = report.spent
    if not first and spent.questions > before.spent.questions:
        first.append(time.monotonic())
    seconds = max(spent.hours * 3600, 1e-3)
    facts = [f"{spent.questions / seconds:,.0f}/s", *sizes]
    if plan.questions > plan.missing:
        facts.append(f"{plan.questions - plan.missing:,} held")
    if failed := collections.Counter(report.failures) - collections.Counter(before.failures):
        facts.append(f"{failed.total():,} failed ({by_frequency(failed, 1)})")
    if spent.dollars:
        facts.append(f"{spent.dollars:,.2f} dollars")
    context.progress(spent.questions - before.spent.questions, plan.missing, "questions", ", ".join(facts))
