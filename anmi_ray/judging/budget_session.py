"""A budget during one session of asking: admissions are written to the spend log before questions are sent.

In a run it lives in the one actor through which all questions go (`stages/judge/budget_actor.py`); a command that asks
directly holds it in its own process (`asking.py`). Concurrent runs of a campaign see each other's admissions when they
read the log again, every few seconds. If the log cannot be written, asking stops.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from anmi_ray.config.judge import BudgetConfig
from anmi_ray.core.errors import JudgeError, StoreError, flatten
from anmi_ray.judging.budget import Admission, Budget, BudgetShare, QueryCost, share_of
from anmi_ray.judging.kinds.base import TextJudge, by_frequency
from anmi_ray.store.spend_log import Spend, SpendLog, SpendRecord

_HOPELESS = 200  # questions without any answer after which asking stops
_WRITE_S = 5.0  # seconds between writes of settled spend
_READ_S = 2.0  # seconds between reads of other sessions' spend


@dataclass(frozen=True)
class BudgetReport:
    """Progress of a judge.

    spent: spend of this session.
    spent_out: True if the budget is exhausted.
    problem: the error that stopped asking, or "".
    failures: failures of this session by reason.
    """

    spent: SpendRecord
    spent_out: bool
    problem: str
    failures: Mapping[str, int]


class BudgetSession:
    """The share of `judge` in the panel's budget, in one session of asking.

    `remedy`: what the user can do if the judge never answers.
    """

    def __init__(
        self, log: SpendLog, budget: BudgetConfig, judge: TextJudge, panel: Sequence[TextJudge], remedy: str
    ) -> None:
        self._log = log
        self._remedy = remedy
        self._session = f"{time.time_ns():016x}-{uuid.uuid4().hex[:12]}"
        self._whole = BudgetShare(**budget.model_dump())
        self._weights = [(member.name, member.max_dollars) for member in panel]
        self._budget = Budget(judge.name, BudgetShare())
        self._problem = ""
        self._failures: Counter[str] = Counter()
        self._began = 0.0
        self._written = 0.0
        self._read = float("-inf")
        self._read_others()

    def begin(self, key: str) -> bool:
        """Start a chunk. Return whether the judge has ever answered, in this session or an earlier one."""
        self._began = self._began or time.monotonic()
        self._budget.begin(key)
        return self._answered()

    def admit(self, key: str, queries: Sequence[QueryCost], patient: bool = True) -> Admission:
        """Admit queries as `Budget.admit` does; none after a problem."""
        self._read_others()
        if not self._problem:
            admitted = self._budget.admit(key, queries, self._hours(), patient)
            self._write(
                now=admitted.queries > 0
            )  # before asking: if the process is killed, questions in flight count as spent
            if not self._problem:
                return admitted
        return Admission(0, over=True)

    def settle(self, key: str, questions: int, failures: Mapping[str, int], spend: Spend) -> None:
        """Record finished questions of a chunk, with failures by reason. Stop a judge that never answers."""
        failed = sum(failures.values())
        self._failures.update(failures)
        self._budget.settle(key, questions, failed, spend, self._hours())
        self._write()
        record = self._budget.record
        if record.questions >= _HOPELESS and not self._answered():
            self.stop(flatten(self._hopeless(record)))

    def close(self, key: str) -> None:
        """End a chunk."""
        self._budget.close(key)

    def stop(self, problem: str) -> None:
        """Stop admitting questions; the first problem is kept."""
        self._problem = self._problem or problem

    def report(self) -> BudgetReport:
        """Return the progress, and log the elapsed time, so that a killed session has spent its hours."""
        if self._began:
            self._budget.pass_time(self._hours())
            self._write()
        return BudgetReport(self._budget.record, self._budget.spent_out, self._problem, Counter(self._failures))

    def finish(self) -> BudgetReport:
        """Write the final record."""
        if self._began:
            self._budget.pass_time(self._hours())
            self._write(now=True)
        return self.report()

    def _answered(self) -> bool:
        return any(record.questions > record.failed for record in (*self._budget.past, self._budget.record))

    def _hours(self) -> float:
        return (time.monotonic() - self._began) / 3600 if self._began else 0.0

    def _write(self, now: bool = False) -> None:
        if now or time.monotonic() - self._written >= _WRITE_S:
            self._written = time.monotonic()
            with self._stopping():
                self._log.write(self._session, self._budget.record)

    def _read_others(self) -> None:
        """Read the spend and admissions of other sessions."""
        if time.monotonic() - self._read < _READ_S:
            return
        with self._stopping():
            records = self._log.records(but=self._session)
            self._budget.past = [record for record in records if record.judge == self._budget.judge]
            self._budget.share = share_of(self._whole, self._weights, self._budget.judge, records)
        self._read = time.monotonic()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """Treat an unusable log as a problem that stops asking; paid answers are in the answer log."""
        try:
            yield
        except StoreError as error:
            self.stop(flatten(error))

    def _hopeless(self, record: SpendRecord) -> JudgeError:
        what = f"none of the first {record.questions:,} questions has an answer ({by_frequency(self._failures)})"
        return JudgeError(what, f"judge {record.judge}", self._remedy)
