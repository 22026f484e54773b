"""The actor that asks: it holds a judge's engine, takes chunks, and publishes every batch of answers at once."""

from __future__ import annotations

import collections
import functools
import itertools
import logging
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray

from anmi_ray.core import logs
from anmi_ray.core.errors import AnmiError, flatten
from anmi_ray.judging.budget import Admission
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.judging.kinds.base import JudgeEngine, failures_of
from anmi_ray.judging.questions import Rows, TextQuestions, slices
from anmi_ray.stages.judge.sources import QuestionSources
from anmi_ray.store.answer_log import AnswerLog, Lacking

CHUNK = ("bucket", "start", "stop", "backwards")  # columns
_QUESTIONS = ""  # no reason is called so
_LOG = logging.getLogger(__name__)


class JudgeActor:
    """Asks what a chunk still lacks.

    An error meant for the user goes to the budget actor, which then lets nothing through: Ray Data would wrap it, and
    the next chunks may be on their way when the driver hears of it.
    """

    def __init__(self) -> None:
        self._engine: JudgeEngine | None = None

    def __call__(
        self,
        batch: dict[str, Any],
        log: AnswerLog,
        sources: QuestionSources,
        judge: TextJudge,
        budget: Any,
        where: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Ask chunks (columns of CHUNK); gives the same columns back. where: the context of log lines."""
        logs.set_up()
        for bucket, start, stop, backwards in zip(*(batch[name].tolist() for name in CHUNK), strict=True):
            try:
                with logs.Span(_LOG, "chunk", traces=True, **{**where, "bucket": bucket, "chunk": start}) as span:
                    self._ask(sources, bucket, np.arange(start, stop), bool(backwards), log, judge, budget, span)
            except AnmiError as error:
                ray.get(budget.stop.remote(flatten(error)))
        return {name: batch[name] for name in CHUNK}

    def _ask(
        self,
        sources: QuestionSources,
        bucket: int,
        chunk: Rows,
        backwards: bool,
        log: AnswerLog,
        judge: TextJudge,
        budget: Any,
        span: logs.Span,
    ) -> None:
        questions = sources.questions(bucket)
        lacking = Lacking(log, bucket, questions.ids)
        queries = in_order(questions, chunk, lacking.among(chunk), backwards)
        if not queries:
            return
        key = chunk_key(bucket, int(chunk[0]))
        answered: bool = ray.get(budget.begin.remote(key))
        if self._engine is None:
            sources.fetch()
            self._engine = judge.engine(lambda *wanted: budget.lease.remote(*wanted), answered or lacking.answered)
        engine = self._engine
        spent = engine.spend
        asked: collections.Counter[str] = collections.Counter()

        def settle(count: int, failures: dict[str, int]) -> None:
            nonlocal spent
            since = engine.spend - spent
            spent = engine.spend
            budget.settle.remote(key, count, failures, since)

        def publish(answers: pa.Table) -> None:
            log.publish(bucket, answers)
            failures = failures_of(answers, judge, engine.messages)
            asked.update({_QUESTIONS: answers.num_rows, **failures})
            settle(answers.num_rows, failures)

        let = functools.partial(admit, budget, key, judge.estimated_dollars(questions))
        try:
            engine.ask(questions, slices(queries, engine.at_once, let, lacking=lacking), publish)
        finally:
            settle(0, {})  # what was sent for nothing
            ray.get(budget.close.remote(key))
            span.told(questions=asked.pop(_QUESTIONS, 0), failures=dict(asked))


def context_of(judge: TextJudge) -> dict[str, Any]:
    """Fields of log lines about asking."""
    return {**logs.context(), "judge": judge.name}


def chunk_key(bucket: int, start: int) -> str:
    """How the budget actor knows a chunk."""
    return f"{bucket}-{start}"


def admit(budget: Any, key: str, dollars: NDArray[np.float64], group: list[Rows], patient: bool) -> Admission:
    """How many queries of a group may be asked; `dollars` float64[N] is what each question of the bucket may cost."""
    costs = [(len(which), float(dollars[which].sum())) for which in group]
    return ray.get(budget.admit.remote(key, costs, patient))


def in_order(questions: TextQuestions, chunk: Rows, missing: NDArray[np.bool_], backwards: bool = False) -> list[Rows]:
    """What is missing of a chunk, query by query; queries that were begun come first, so that a budget ends none.

    backwards: from the other end, begun ones last: another run, at work on the same, is asking them now.
    """
    query = questions.query[chunk]
    bounds = [0, *(np.flatnonzero(np.diff(query)) + 1).tolist(), len(chunk)]
    ranges = [slice(*ends) for ends in itertools.pairwise(bounds)]
    ranges = sorted((one for one in ranges if missing[one].any()), key=lambda one: bool(missing[one].all()))
    return [chunk[one][missing[one]] for one in (reversed(ranges) if backwards else ranges)]
