"""The actor that asks: it holds a judge's engine, asks chunks, and publishes every batch of answers at once."""

from __future__ import annotations

import collections
import logging
from typing import Any

import numpy as np
import pyarrow as pa
import ray

from anmi_ray.core import logs
from anmi_ray.core.errors import AnmiError, flatten
from anmi_ray.judging.kinds.base import JudgeEngine, failures_of
from anmi_ray.stages.judge.sources import Asking, Chunk
from anmi_ray.store.answer_log import Lacking

_LOG = logging.getLogger(__name__)


class JudgeActor:
    """Asks the unanswered questions of chunks.

    User errors are reported to the budget actor, which then admits nothing more: Ray Data would wrap them, and other
    chunks may be started before the driver sees them.
    """

    def __init__(self) -> None:
        self._engine: JudgeEngine | None = None

    def __call__(self, batch: dict[str, Any], asking: Asking) -> dict[str, Any]:
        """Ask a batch of chunks and return it."""
        logs.set_up()
        for chunk in Chunk.of(batch):
            where = {**asking.where, "bucket": chunk.bucket, "chunk": chunk.start}
            try:
                with logs.Span(_LOG, "chunk", traces=True, **where) as span:
                    self._ask(chunk, asking, span)
            except AnmiError as error:
                ray.get(asking.budget.stop.remote(flatten(error)))
        return batch

    def _ask(self, chunk: Chunk, asking: Asking, span: logs.Span) -> None:
        judge, budget = asking.judge, asking.budget
        questions = asking.sources.questions(chunk.bucket)
        lacking = Lacking(asking.log, chunk.bucket, questions.ids)
        if not lacking.among(np.arange(chunk.start, chunk.stop)).any():
            return
        answered: bool = ray.get(budget.begin.remote(chunk.key))
        if self._engine is None:
            asking.sources.fetch()
            self._engine = judge.engine(lambda *wanted: budget.lease.remote(*wanted), answered or lacking.answered)
        engine = self._engine
        spent = engine.spend
        asked = 0
        failed: collections.Counter[str] = collections.Counter()

        def settle(count: int, failures: dict[str, int]) -> None:
            nonlocal spent
            since = engine.spend - spent
            spent = engine.spend
            budget.settle.remote(chunk.key, count, failures, since)

        def publish(answers: pa.Table) -> None:
            nonlocal asked
            asking.log.publish(chunk.bucket, answers)
            failures = failures_of(answers, judge, engine.messages)
            asked += answers.num_rows
            failed.update(failures)
            settle(answers.num_rows, failures)

        try:
            engine.ask(questions, asking.slices(chunk, questions, lacking, engine.at_once), publish)
        finally:
            settle(0, {})  # spend of requests without an answer
            ray.get(budget.close.remote(chunk.key))
            span.told(questions=asked, failures=dict(failed))
