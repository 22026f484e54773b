"""A budget while one process asks: what it lets through is written to the spend log first, what came back is settled.

Of a run it stands in the one actor that all asking goes through (`stages/judge/budget_actor.py`); where a command asks
by itself, in its own process (`asking.py`).
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from anmi_ray.config.judge import BudgetConfig
from anmi_ray.core.errors import JudgeError, flatten
from anmi_ray.judging.budget import Budget, BudgetShare, QueryCost, share_of
from anmi_ray.judging.kinds.base import TextJudge
from anmi_ray.store.spend_log import Spend, SpendLog, SpendRecord

_HOPELESS = 200  # questions
_WRITE_S = 5.0  # what was settled since is still under way to the log


@dataclass(frozen=True)
class BudgetReport:
    """How far a judge is: what this session spent, whether the budget is spent, and an error that stopped it."""

    spent: SpendRecord
    spent_out: bool
    problem: str


class BudgetSession:
    """What `judge` may spend of the budget that the judges of `panel` share, in one session of asking.

    `remedy`: what its user can do where it never answers.
    """

    def __init__(
        self, log: SpendLog, budget: BudgetConfig, judge: TextJudge, panel: Sequence[TextJudge], remedy: str
    ) -> None:
        whole = BudgetShare(**budget.model_dump())
        weights = [(one.name, one.dearest) for one in panel]
        records = log.records()
        own = [record for record in records if record.judge == judge.name]
        self._log = log
        self._remedy = remedy
        self._session = f"{time.time_ns():016x}-{uuid.uuid4().hex[:12]}"
        self._budget = Budget(judge.name, share_of(whole, weights, judge.name, records), own)
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
        self._write()
        record = self._budget.record
        answered = any(one.questions > one.failed for one in (*self._budget.past, record))
        if record.questions >= _HOPELESS and not answered:
            self.stop(flatten(self._hopeless(record, max(failures, key=lambda why: failures[why], default=""))))

    def close(self, key: str) -> None:
        """A chunk is over."""
        self._budget.close(key)

    def stop(self, problem: str) -> None:
        """Let nothing through any more; the first problem is kept."""
        self._problem = self._problem or problem

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

    def _hopeless(self, record: SpendRecord, why: str) -> JudgeError:
        what = f"none of the first {record.questions:,} questions has an answer ({why})"
        return JudgeError(what, f"judge {record.judge}", self._remedy)
