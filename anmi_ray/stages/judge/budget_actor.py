"""The one actor of a run that a judge's money and rates go through, on the driver's node.

Asking actors call it before every few hundred questions and tell it what they got, so it is never called once a
judgment. It writes the spend log before it lets anything through, and says how far the run is: to the driver, and to
Prometheus through Ray.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import ray
from ray.util.metrics import Counter, Gauge
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.errors import JudgeError, flatten
from anmi_ray.judging import kinds
from anmi_ray.judging.budget import Budget, BudgetShare, QueryCost, share_of
from anmi_ray.judging.http.limits import Lease, Rates
from anmi_ray.judging.kinds import TextJudge
from anmi_ray.store.spend_log import Spend, SpendLog, SpendRecord

_HOPELESS = 200  # questions
_WRITE_S = 5.0  # what was settled since is still under way to the log


@dataclass(frozen=True)
class BudgetReport:
    """How far a judge is: what this session spent, whether the budget is spent, and an error that stopped it."""

    spent: SpendRecord
    spent_out: bool
    problem: str


class BudgetActor:
    """See the module. `clients`: actors that ask; after a restart the record so far is of a session that died."""

    def __init__(self, log: SpendLog, config: JudgeConfig, judge: TextJudge, clients: int, missing: int) -> None:
        whole = BudgetShare(**config.budget.model_dump())
        weights = [(one.name, one.dearest) for one in kinds.reading(config)]
        records = log.records()
        own = [record for record in records if record.judge == judge.name]
        self._log = log
        self._session = f"{time.time_ns():016x}-{uuid.uuid4().hex[:12]}"
        self._budget = Budget(judge.name, share_of(whole, weights, judge.name, records), own)
        self._rates = Rates(*judge.rates, clients)
        self._meters = _Meters(judge.name, missing)
        self._problem = ""
        self._began = 0.0
        self._written = 0.0

    def begin(self, key: str) -> None:
        """A chunk starts."""
        self._began = self._began or time.monotonic()
        self._budget.begin(key)

    def admit(self, key: str, queries: Sequence[QueryCost]) -> int:
        """How many of the next queries may be asked; none after a problem."""
        if self._problem:
            return 0
        admitted = self._budget.admit(key, queries, self._hours())
        self._write(now=admitted > 0)  # before it is asked: what is under way when all dies counts as spent
        return admitted

    def settle(self, key: str, questions: int, failures: Mapping[str, int], spend: Spend) -> None:
        """So much of a chunk is done, and of it failed, by reason. A judge that never answers is stopped."""
        failed = sum(failures.values())
        self._budget.settle(key, questions, failed, spend, self._hours())
        self._meters.add(questions, failed, spend)
        self._write()
        record = self._budget.record
        answered = any(one.questions > one.failed for one in (*self._budget.past, record))
        if record.questions >= _HOPELESS and not answered:
            self.stop(flatten(_hopeless(record, max(failures, key=lambda why: failures[why], default=""))))

    def close(self, key: str) -> None:
        """A chunk is over."""
        self._budget.close(key)

    def stop(self, problem: str) -> None:
        """Let nothing through any more; the first problem is kept."""
        self._problem = self._problem or problem

    def lease(self, requests: int, tokens: int, unused: int) -> Lease:
        """See Rates."""
        return self._rates.lease(requests, tokens, unused)

    def report(self) -> BudgetReport:
        """How far it is."""
        return BudgetReport(self._budget.record, self._budget.spent_out, self._problem)

    def finish(self) -> BudgetReport:
        """Write the record for the last time."""
        if self._began:
            self._write(now=True)
        return self.report()

    def _hours(self) -> float:
        return (time.monotonic() - self._began) / 3600 if self._began else 0.0

    def _write(self, now: bool = False) -> None:
        if now or time.monotonic() - self._written >= _WRITE_S:
            self._written = time.monotonic()
            self._log.write(self._session, self._budget.record)


def _hopeless(record: SpendRecord, why: str) -> JudgeError:
    return JudgeError(
        f"none of the first {record.questions:,} questions has an answer ({why})",
        f"judge {record.judge}",
        "see what it is asked with anmi judge CONFIG --dry-run; prompt.template and prompt.readout must suit the model",
    )


class _Meters:
    """What Prometheus sees."""

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
        """Count what was settled."""
        amounts: list[tuple[Counter, float]] = [
            (self._answers, questions - failed),
            (self._failures, failed),
            (self._requests, spend.requests),
            (self._prompt, spend.prompt_tokens),
            (self._cached, spend.cached_tokens),
            (self._answer, spend.answer_tokens),
            (self._dollars, (spend.dollars or 0.0) + (spend.unreported_dollars or 0.0)),
        ]
        for counter, amount in amounts:
            if amount > 0:
                counter.inc(amount, tags=self._tags)
        self._missing = max(0, self._missing - questions)
        self._queue.set(self._missing, tags=self._tags)


def start(log: SpendLog, config: JudgeConfig, judge: TextJudge, clients: int, missing: int) -> Any:
    """A BudgetActor, named, on this node; it needs no CPU, and comes back when its process dies."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(BudgetActor).options(
        name=f"anmi-budget-{log.campaign}-{judge.name}-{uuid.uuid4().hex[:8]}",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=here,
    )
    return actor.remote(log, config, judge, clients, missing)
