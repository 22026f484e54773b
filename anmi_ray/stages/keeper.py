"""The one actor of a run that a judge's money and rates go through, on the driver's node.

Askers ask it before every few hundred questions and tell it what they got, so it is never called once a judgment. It
writes the ledger before it lets anything through, and says how far the run is: to the driver, and to Prometheus through
Ray.
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

from anmi_ray.config.judge import ApiJudgeConfig, JudgeConfig, TextJudgeConfig
from anmi_ray.errors import JudgeError, flatten
from anmi_ray.judging.limits import Lease, Rates
from anmi_ray.judging.purse import Allowance, Books, Purse, QueryCost, allowance
from anmi_ray.judging.spend import Spend, dearest
from anmi_ray.ledger import Ledger

_HOPELESS = 200  # questions
_WRITE_S = 5.0  # what was settled since is still under way to the ledger


@dataclass(frozen=True)
class Report:
    """How far a judge is: its books of this session, whether the budget is spent, and an error that stopped it."""

    books: Books
    spent_out: bool
    problem: str


class Keeper:
    """See the module. `clients`: actors that ask; after a restart the books so far are those of a session that died."""

    def __init__(self, ledger: Ledger, config: JudgeConfig, judge: TextJudgeConfig, clients: int, missing: int) -> None:
        budget = Allowance(**config.budget.model_dump())
        weights = [(one.name, dearest(one)) for one in config.reading]
        self._ledger, self._session = ledger, f"{time.time_ns():016x}-{uuid.uuid4().hex[:12]}"
        books = ledger.books()
        own = [one for one in books if one.judge == judge.name]
        self._purse = Purse(judge.name, allowance(budget, weights, judge.name, books), own)
        endpoint = judge.endpoint if isinstance(judge, ApiJudgeConfig) else None
        limits = (endpoint.requests_per_minute, endpoint.tokens_per_minute) if endpoint else (None, None)
        self._rates = Rates(*limits, clients)
        self._meters = _Meters(judge.name, missing)
        self._problem, self._began, self._written = "", 0.0, 0.0

    def begin(self, key: str) -> None:
        """A chunk starts."""
        self._began = self._began or time.monotonic()
        self._purse.begin(key)

    def admit(self, key: str, queries: Sequence[QueryCost]) -> int:
        """How many of the next queries may be asked; none after a problem."""
        if self._problem:
            return 0
        admitted = self._purse.admit(key, queries, self._hours())
        self._write(now=admitted > 0)  # before it is asked: what is under way when all dies counts as spent
        return admitted

    def settle(self, key: str, questions: int, failures: Mapping[str, int], spend: Spend) -> None:
        """So much of a chunk is done, and of it failed, by reason. A judge that never answers is stopped."""
        failed = sum(failures.values())
        self._purse.settle(key, questions, failed, spend, self._hours())
        self._meters.add(questions, failed, spend)
        self._write()
        books = self._purse.books
        answered = any(one.questions > one.failed for one in (*self._purse.past, books))
        if books.questions >= _HOPELESS and not answered:
            self.stop(flatten(_hopeless(books, max(failures, key=lambda why: failures[why], default=""))))

    def close(self, key: str) -> None:
        """A chunk is over."""
        self._purse.close(key)

    def stop(self, problem: str) -> None:
        """Let nothing through any more; the first problem is kept."""
        self._problem = self._problem or problem

    def lease(self, requests: int, tokens: int, unused: int) -> Lease:
        """See Rates."""
        return self._rates.lease(requests, tokens, unused)

    def report(self) -> Report:
        """How far it is."""
        return Report(self._purse.books, self._purse.spent_out, self._problem)

    def finish(self) -> Report:
        """Write the books for the last time."""
        if self._began:
            self._write(now=True)
        return self.report()

    def _hours(self) -> float:
        return (time.monotonic() - self._began) / 3600 if self._began else 0.0

    def _write(self, now: bool = False) -> None:
        if now or time.monotonic() - self._written >= _WRITE_S:
            self._written = time.monotonic()
            self._ledger.write(self._session, self._purse.books)


def _hopeless(books: Books, why: str) -> JudgeError:
    return JudgeError(
        f"none of the first {books.questions:,} questions has an answer ({why})",
        f"judge {books.judge}",
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
        self._tags, self._missing = {"judge": judge}, missing
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


def start(ledger: Ledger, config: JudgeConfig, judge: TextJudgeConfig, clients: int, missing: int) -> Any:
    """A keeper as a named actor on this node; it needs no CPU, and comes back when its process dies."""
    here = NodeAffinitySchedulingStrategy(ray.get_runtime_context().get_node_id(), soft=True)
    actor = ray.remote(Keeper).options(
        name=f"anmi-keeper-{ledger.campaign}-{judge.name}-{uuid.uuid4().hex[:8]}",
        num_cpus=0,
        max_restarts=-1,
        max_task_retries=-1,
        scheduling_strategy=here,
    )
    return actor.remote(ledger, config, judge, clients, missing)
