"""The actor that asks a judge: it holds the engine, asks chunks, and publishes each batch of answers immediately."""

from __future__ import annotations

import collections
import logging
import uuid
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import ray
from ray.util.metrics import Counter, Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core import logs
from anmi_ray.core.errors import AnmiError, flatten
from anmi_ray.judging import kinds
from anmi_ray.judging.budget import BudgetSession
from anmi_ray.judging.http.limits import Lease, Rates
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.judging.kinds.base import JudgeEngine, failures_of
from anmi_ray.stages.judge.sources import Asking, Chunk
from anmi_ray.store.answer_log import Lacking
from anmi_ray.store.spend_log import Spend, SpendLog

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


REMEDY = "see what it is asked with anmi judge CONFIG --dry-run; prompt.template and prompt.readout must suit the model"


class BudgetActor(BudgetSession):
    """The BudgetSession of a judge, in an actor. After a restart, its earlier record is that of a dead session.

    clients: number of actors that ask. missing: number of questions without a final answer.
    """

    def __init__(self, log: SpendLog, config: JudgeConfig, judge: TextJudge, clients: int, missing: int) -> None:
        super().__init__(log, config.budget, judge, kinds.reading(config), REMEDY)
        self._rates = Rates(*judge.rates, clients)
        self._meters = _Meters(judge.name, missing)

    def settle(self, key: str, questions: int, failures: Mapping[str, int], spend: Spend) -> None:
        """See BudgetSession."""
        self._meters.add(questions, sum(failures.values()), spend)
        super().settle(key, questions, failures, spend)

    def lease(self, requests: int, tokens: int, unused: int) -> Lease:
        """See Rates."""
        return self._rates.lease(requests, tokens, unused)


class _Meters:
    """Prometheus metrics of a judge."""

    def __init__(self, judge: str, missing: int) -> None:
        tags = {"tag_keys": ("judge",)}
        self._answers = Counter("anmi_judge_answers", "questions answered by a judge", **tags)
        self._failures = Counter("anmi_judge_failures", "questions that a judge failed to answer", **tags)
        self._requests = Counter("anmi_judge_requests", "requests sent to a judge, retries included", **tags)
        self._prompt = Counter("anmi_judge_prompt_tokens", "prompt tokens that a judge read", **tags)
        self._cached = Counter("anmi_judge_cached_tokens", "prompt tokens that came from a judge's cache", **tags)
        self._answer = Counter("anmi_judge_answer_tokens", "tokens that a judge wrote", **tags)
        self._dollars = Counter("anmi_judge_dollars", "dollars spent on a judge, by its prices", **tags)
        self._queue = Gauge("anmi_judge_queue", "questions that are not answered yet", **tags)
        self._tags = {"judge": judge}
        self._missing = missing
        self._queue.set(missing, tags=self._tags)

    def add(self, questions: int, failed: int, spend: Spend) -> None:
        """Count settled questions and their spend."""
        amounts: list[tuple[Counter, float]] = [
            (self._answers, questions - failed),
            (self._failures, failed),
            (self._requests, spend.requests),
            (self._prompt, spend.prompt_tokens),
            (self._cached, spend.cached_tokens),
            (self._answer, spend.answer_tokens),
            (self._dollars, spend.cost),
        ]
        for counter, amount in amounts:
            if amount > 0:
                counter.inc(amount, tags=self._tags)
        self._missing = max(0, self._missing - questions)
        self._queue.set(self._missing, tags=self._tags)


def start_budget(log: SpendLog, config: JudgeConfig, judge: TextJudge, clients: int, missing: int) -> Any:
    """Start a BudgetActor on this node, without a CPU of its own; Ray restarts it if its process dies."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(BudgetActor).options(
        name=f"anmi-budget-{log.campaign}-{judge.name}-{uuid.uuid4().hex[:8]}",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=here,
    )
    return actor.remote(log, config, judge, clients, missing)
