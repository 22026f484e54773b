"""Ask a judge: where its questions come from, the object that workers need, and the actors that ask and admit.

A JudgeActor holds the engine, asks chunks, and publishes each batch of answers immediately.
"""

from __future__ import annotations

import collections
import itertools
import logging
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa
import ray
from numpy.typing import NDArray
from ray.util.metrics import Counter, Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core import logs
from anmi_ray.core.errors import AnmiError, flatten
from anmi_ray.core.records import COMPARISON, QUERY, TEXT_OF
from anmi_ray.judging import kinds
from anmi_ray.judging.budget import Admission, BudgetSession
from anmi_ray.judging.http.limits import Lease, Rates
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.judging.kinds.base import JudgeEngine, failures_of
from anmi_ray.judging.questions import PATIENCE_S, Rows, TextQuestions, direct_questions, slices, text_questions
from anmi_ray.store import Artifact
from anmi_ray.store.answer_log import AnswerLog, Lacking
from anmi_ray.store.folders import local_folder
from anmi_ray.store.spend_log import Spend, SpendLog

_LOG = logging.getLogger(__name__)
REMEDY = "see what it is asked with anmi judge CONFIG --dry-run; prompt.template and prompt.readout must suit the model"
FIRST, VALIDATE, CONFIRM, ASSESS = range(4)  # rounds of the spend log


@dataclass(frozen=True)
class QuestionSources:
    """The artifacts that questions are built from, bucket by bucket.

    first: comparisons of the first round, if this is a later one.
    begun: comparisons of an adaptive design's first round, if this is a later one.
    distill: the model of the panel's distilled judge, if any.
    pairwise: the panel of the first round, if this one is about single documents.
    orders: presentation orders of the panel.
    round: round of the spend log.
    """

    compare: Artifact
    retrieve: Artifact
    ingest: Artifact
    first: Artifact | None = None
    begun: Artifact | None = None
    distill: Artifact | None = None
    pairwise: JudgeConfig | None = None
    orders: Literal["both", "one"] = "both"
    round: int = FIRST

    @property
    def candidates(self) -> Artifact:
        """The artifact with the candidates: retrieve, or the pool of held-out queries."""
        return self.compare if self.round == ASSESS else self.retrieve

    def fetch(self) -> None:
        """Copy a distilled judge's model to this machine, where its settings expect it."""
        if self.distill is not None:
            local_folder(self.distill, "model")

    def questions(self, bucket: int) -> TextQuestions:
        """Return all questions of a bucket."""
        tables = (
            self.compare.read_part("comparisons", bucket, COMPARISON),
            self.ingest.read_part("queries", bucket, QUERY),
            self.retrieve.read_part("texts", bucket, TEXT_OF),
        )
        return direct_questions(*tables) if self.pairwise else text_questions(*tables, self.orders)


class Chunk(NamedTuple):
    """The questions `start` to `stop` of a bucket, whole queries.

    begun: 1 if some have answers.
    """

    bucket: int
    start: int
    stop: int
    begun: int = 0

    @property
    def key(self) -> str:
        """Name of the chunk in the budget actor."""
        return f"{self.bucket}-{self.start}"

    @staticmethod
    def of(batch: dict[str, Any]) -> list[Chunk]:
        """Return the chunks of a batch of Ray Data (columns of arrays)."""
        return [Chunk(*row) for row in zip(*(batch[name].tolist() for name in Chunk._fields), strict=True)]


@dataclass(frozen=True)
class Asking:
    """Everything that a worker needs to ask a judge.

    budget: handle of the judge's BudgetActor.
    backwards: whether to ask the last queries first, since another run that started earlier asks the first ones.
    where: context of log lines.
    """

    judge: TextJudge
    log: AnswerLog
    sources: QuestionSources
    budget: Any
    backwards: bool
    where: Mapping[str, Any]

    def slices(
        self, chunk: Chunk, questions: TextQuestions, lacking: Lacking, size: int, patience_s: float = PATIENCE_S
    ) -> Iterator[Rows]:
        """Return the slices of a chunk's unanswered questions, as the budget admits them."""
        rows = np.arange(chunk.start, chunk.stop)
        dollars = self.judge.estimated_dollars(questions)

        def admit(group: list[Rows], patient: bool) -> Admission:
            costs = [(len(which), float(dollars[which].sum())) for which in group]
            return ray.get(self.budget.admit.remote(chunk.key, costs, patient))

        queries = in_order(questions, rows, lacking.among(rows), self.backwards)
        return slices(queries, size, admit, patience_s, lacking)


def in_order(questions: TextQuestions, chunk: Rows, missing: NDArray[np.bool_], backwards: bool = False) -> list[Rows]:
    """Return the missing questions of a chunk by query; partly answered queries come first, before a budget may end.

    backwards: reversed.
    """
    query = questions.query[chunk]
    bounds = [0, *(np.flatnonzero(np.diff(query)) + 1).tolist(), len(chunk)]
    ranges = [slice(*ends) for ends in itertools.pairwise(bounds)]
    ranges = sorted((rows for rows in ranges if missing[rows].any()), key=lambda rows: bool(missing[rows].all()))
    return [chunk[rows][missing[rows]] for rows in (reversed(ranges) if backwards else ranges)]


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
        tags, self._tags = ("judge",), {"judge": judge}
        self._counters = {
            "answers": Counter("anmi_judge_answers", "questions answered by a judge", tags),
            "failures": Counter("anmi_judge_failures", "questions that a judge failed to answer", tags),
            "requests": Counter("anmi_judge_requests", "requests sent to a judge, retries included", tags),
            "prompt_tokens": Counter("anmi_judge_prompt_tokens", "prompt tokens that a judge read", tags),
            "cached_tokens": Counter("anmi_judge_cached_tokens", "prompt tokens that came from a judge's cache", tags),
            "answer_tokens": Counter("anmi_judge_answer_tokens", "tokens that a judge wrote", tags),
            "dollars": Counter("anmi_judge_dollars", "dollars spent on a judge, by its prices", tags),
        }
        self._queue = Gauge("anmi_judge_queue", "questions that are not answered yet", tags)
        self._missing = missing
        self._queue.set(missing, tags=self._tags)

    def add(self, questions: int, failed: int, spend: Spend) -> None:
        """Count settled questions and their spend."""
        amounts = {"answers": questions - failed, "failures": failed, "requests": spend.requests, "dollars": spend.cost}
        amounts |= {name: getattr(spend, name) for name in ("prompt_tokens", "cached_tokens", "answer_tokens")}
        for name, amount in amounts.items():
            if amount > 0:
                self._counters[name].inc(amount, tags=self._tags)
        self._missing = max(0, self._missing - questions)
        self._queue.set(self._missing, tags=self._tags)


def start_budget(log: SpendLog, config: JudgeConfig, judge: TextJudge, clients: int, missing: int) -> Any:
    """Start a BudgetActor on this node, that takes no CPU; Ray restarts it if its process dies."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(BudgetActor).options(
        name=f"anmi-budget-{log.campaign}-{judge.name}-{uuid.uuid4().hex[:8]}",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=here,
    )
    return actor.remote(log, config, judge, clients, missing)
