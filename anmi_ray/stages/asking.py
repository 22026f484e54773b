"""Asking judges that read texts: plan what is missing, ask it, in chunks of whole queries; answers go to the log.

Nothing but the answer log says what was bought. A chunk's actor looks the log up before it asks, so a chunk that is
carried out again (an actor's death makes Ray repeat it, a killed run is started anew) asks only what never reached the
log. What may be asked, and how fast, the run's keeper says (`keeper`).
"""

from __future__ import annotations

import collections
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import ray
import ray.data

from anmi_ray import judging
from anmi_ray.answers import AnswerLog
from anmi_ray.config.base import whole
from anmi_ray.config.judge import ApiJudgeConfig, JudgeConfig, TextJudgeConfig, gpus_of
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.errors import JudgeError, rebuild
from anmi_ray.identity import digest
from anmi_ray.judging.bought import judge_of
from anmi_ray.judging.pools import Target, limits_of, target_of
from anmi_ray.judging.protocol import Judge
from anmi_ray.judging.questions import TextQuestions, text_questions
from anmi_ray.ledger import Ledger
from anmi_ray.records import COMPARISON, JUDGMENT, QUERY, TEXT_OF
from anmi_ray.stages import keeper, vllm
from anmi_ray.stages.asker import Asker, context_of
from anmi_ray.stages.folders import local_folder
from anmi_ray.stages.keeper import Report
from anmi_ray.stages.runtime import Context, data_settings, our_errors, over_buckets, rows_of, watched
from anmi_ray.stages.waves import in_waves
from anmi_ray.store import Artifact, Store

NO_BUDGET_LEFT = "budget"
ASKER_CPUS = 0.5  # that an asking actor takes


@dataclass(frozen=True)
class Sources:
    """Where questions come from; `first`: the comparisons of the first round, where this is the second; `distill`: the
    model that a distilled judge of the panel is."""

    compare: Artifact
    retrieve: Artifact
    ingest: Artifact
    first: Artifact | None = None
    distill: Artifact | None = None

    def fetch(self) -> None:
        """See that a distilled judge's model lies on this machine's disk, where the bound judge says it does."""
        if self.distill is not None:
            local_folder(self.distill, "model")

    def questions(self, bucket: int) -> TextQuestions:
        """All questions of a bucket."""
        return text_questions(
            self.compare.read_part("comparisons", bucket, COMPARISON),
            self.ingest.read_part("queries", bucket, QUERY),
            self.retrieve.read_part("texts", bucket, TEXT_OF),
        )


@dataclass(frozen=True)
class _Plan:
    """What is missing of one judge's answers: chunks to ask; questions, those without a final answer, and of these
    those that failed for a reason that may go away."""

    chunks: list[dict[str, int]]
    questions: int
    missing: int
    failed: int


def log_of(store: Store, config: TextJudgeConfig) -> AnswerLog:
    """The answers of a judge under a root."""
    return AnswerLog(store, judging.judge_id(config))


def ledger_of(store: Store, sources: Sources, config: JudgeConfig) -> Ledger:
    """What was spent on a panel's answers about these comparisons, whatever the budget.

    A second round is of the first one's campaign: one budget holds for both, the second spends what the first left.
    """
    panel = json.dumps([whole(judge) for judge in config.reading], sort_keys=True, ensure_ascii=False)
    compared = sources.first or sources.compare
    campaign = digest("campaign", compared.fingerprint, panel).hex()[:16]
    return Ledger(store, campaign, 0 if sources.first is None else 1)


def ask(artifact: Artifact, sources: Sources, config: JudgeConfig, context: Context) -> dict[str, Any]:
    """Ask what is missing, judge by judge, then once more what failed for a passing reason; counts by judge.

    A bucket whose judgments are there already is left alone. Raises JudgeError where more of a judge's questions than
    `config.max_failures` stay without an answer though they were asked: what is missing is asked by the next run.
    """
    ledger, began = ledger_of(artifact.store, sources, config), time.monotonic()
    buckets = [bucket for bucket in range(context.buckets) if artifact.seal("judgments", JUDGMENT, bucket) is None]
    counts: dict[str, Any] = {}
    for judge in config.reading:
        target = target_of(config, judge, context.execution, time.monotonic() - began)
        counts[judge.name] = _ask_judge(judge, buckets, ledger, sources, config, target, context)
    return counts


def bought(store: Store, sources: Sources, config: JudgeConfig, bucket: int) -> Mapping[str, Judge]:
    """By name, the reading judges of the panel as what is in the log about a bucket."""
    if not config.reading:
        return {}
    sources.fetch()
    questions = sources.questions(bucket)
    judges: dict[str, Judge] = {}
    for one in config.reading:
        held = log_of(store, one).read(bucket)
        judges[one.name] = judge_of(
            questions, held.table, held.rows(questions.ids), judging.readout(one), NO_BUDGET_LEFT
        )
    return judges


def _ask_judge(
    judge: TextJudgeConfig,
    buckets: list[int],
    ledger: Ledger,
    sources: Sources,
    config: JudgeConfig,
    target: Target,
    context: Context,
) -> dict[str, int]:
    """Passes over what is missing until nothing is, the budget is spent, or the passes are over; the counts."""
    log = log_of(context.store, judge)
    plan = _plan(buckets, log, sources, context)
    if not plan.chunks:
        return {"asked": 0, "answered": 0, "failed": 0}
    clients = min(context.execution.asking[1], len(plan.chunks))
    # never killed: it ends, and its metrics are sent, when nobody refers to it any more
    actor = keeper.start(ledger, config, judge, clients, plan.missing)
    for _ in range(1 + config.retry_passes):
        known = _report(actor).books.failed
        began = time.monotonic()
        _ask_pass(plan, log, sources, judge, actor, target, context)
        target = target.after(time.monotonic() - began, 0)
        report: Report = ray.get(actor.finish.remote())
        if report.problem:
            raise rebuild(report.problem)
        if report.books.failed == known or report.spent_out:
            break
        plan = _plan(buckets, log, sources, context)
        if not plan.chunks:
            break
    else:
        _check_failures(plan, judge, config)
    books = _report(actor).books
    return {"asked": books.questions, "answered": books.questions - books.failed, "failed": books.failed}


def _check_failures(plan: _Plan, judge: TextJudgeConfig, config: JudgeConfig) -> None:
    if plan.failed > config.max_failures * plan.questions:
        raise JudgeError(
            f"{plan.failed:,} of {plan.questions:,} questions have no answer, for reasons that may go away",
            f"judge {judge.name}",
            "run the same command again to ask them once more; `judge.max_failures` says how many a run may go on with",
        )


def _report(actor: Any) -> Report:
    return ray.get(actor.report.remote())


def _plan(buckets: list[int], log: AnswerLog, sources: Sources, context: Context) -> _Plan:
    """Chunks that hold questions without a final answer; those with queries that were begun come first."""
    found = over_buckets(context, buckets, _missing, log, sources, context.execution.chunk)
    chunks = sorted((chunk for one in found for chunk in one.chunks), key=lambda chunk: not chunk["begun"])
    return _Plan(chunks, *(sum(getattr(one, name) for one in found) for name in ("questions", "missing", "failed")))


def _missing(bucket: int, log: AnswerLog, sources: Sources, size: int) -> _Plan:
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
    sources: Sources,
    judge: TextJudgeConfig,
    actor: Any,
    target: Target,
    context: Context,
) -> None:
    """Ask all that a plan says is missing, in waves. It ends early by letting nothing more through, never by force."""
    before, limits = _report(actor).books.questions, limits_of(judge, context.execution)
    sizes: list[str] = []
    with our_errors("judge"), watched(lambda: _say(actor, plan, before, sizes, context)):
        for chunks, pool in in_waves(plan.chunks, target, limits, lambda: _report(actor).books.questions):
            sizes[:] = [] if target == Target() else [f"pool of {pool[0]} to {pool[1]}"]
            if isinstance(judge, VllmJudgeConfig):
                vllm.ask_chunks(chunks, log, sources, judge, pool, actor, context)
            else:
                _ask_chunks(chunks, log, sources, judge, pool, actor, context)
            report = _report(actor)
            if report.problem or report.spent_out:
                break


def _ask_chunks(
    chunks: list[dict[str, int]],
    log: AnswerLog,
    sources: Sources,
    judge: TextJudgeConfig,
    pool: tuple[int, int],
    actor: Any,
    context: Context,
) -> None:
    """Ask through a pool of actors; a chunk is a block."""
    least, most = (min(size, len(chunks)) for size in pool)
    with data_settings(context, context.execution.judging_on):
        asked = ray.data.from_items(chunks, override_num_blocks=len(chunks)).map_batches(
            cast(Any, Asker),  # Ray's types know no actor whose call takes more than its batch
            fn_args=(log, sources, _share(judge, most), actor, context_of(judge)),
            batch_size=1,
            batch_format="numpy",
            compute=ray.data.ActorPoolStrategy(min_size=least, max_size=most, initial_size=least),
            num_cpus=ASKER_CPUS,
            num_gpus=gpus_of(judge) or None,
        )
        with rows_of(asked) as rows:
            collections.deque(rows, maxlen=0)


def _say(actor: Any, plan: _Plan, before: int, sizes: list[str], context: Context) -> None:
    """Tell how far this pass is."""
    books = _report(actor).books
    seconds = max(books.hours * 3600, 1e-3)
    said = [f"{books.questions / seconds:,.0f}/s", *sizes]
    if plan.questions > plan.missing:
        said.append(f"{plan.questions - plan.missing:,} held")
    if books.failed:
        said.append(f"{books.failed:,} failed")
    if books.dollars:
        said.append(f"{books.dollars:,.2f} dollars")
    context.progress(books.questions - before, plan.missing, "questions", ", ".join(said))


def _share(judge: TextJudgeConfig, actors: int) -> TextJudgeConfig:
    """The judge as one of several actors may ask it: together they keep its concurrency."""
    if not isinstance(judge, ApiJudgeConfig):
        return judge
    share = max(1, judge.endpoint.concurrency // actors)
    return judge.model_copy(update={"endpoint": judge.endpoint.model_copy(update={"concurrency": share})})
