"""A budget while one process asks: what it lets through is written to the spend log first, what came back is settled.

Of a run it stands in the one actor that all asking goes through (`stages/judge/budget_actor.py`); where a command asks
by itself, in its own process (`asking.py`). Runs of one campaign that are at work at once see what the others let
through when they read the log again, every few seconds; a log that cannot be written ends the asking.
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

_HOPELESS = 200  # questions
_WRITE_S = 5.0  # what was settled since is still under way to the log
_READ_S = 2.0  # what another session let through since is not known


@dataclass(frozen=True)
class BudgetReport:
    """How far a judge is.

    spent: by this session
    spent_out: the budget is spent
    problem: an error that stopped it, "" if none did
    failures: this session's failures by reason
    """

    spent: SpendRecord
    spent_out: bool
    problem: str
    failures: Mapping[str, int]


class BudgetSession:
    """What `judge` may spend of the budget that the judges of `panel` share, in one session of asking.

    `remedy`: what its user can do where it never answers.
    """

    def __init__(
        self, log: SpendLog, budget: BudgetConfig, judge: TextJudge, panel: Sequence[TextJudge], remedy: str
    ) -> None:
        self._log = log
        self._remedy = remedy
        self._session = f"{time.time_ns():016x}-{uuid.uuid4().hex[:12]}"
        self._whole = BudgetShare(**budget.model_dump())
        self._weights = [(one.name, one.max_dollars) for one in panel]
        self._budget = Budget(judge.name, BudgetShare())
        self._problem = ""
        self._failures: Counter[str] = Counter()
        self._began = 0.0
        self._written = 0.0
        self._read = float("-inf")
        self._read_others()

    def begin(self, key: str) -> bool:
        """A chunk starts. Whether the judge has ever answered, in this session or an earlier one."""
        self._began = self._began or time.monotonic()
        self._budget.begin(key)
        return self._answered()

    def admit(self, key: str, queries: Sequence[QueryCost], patient: bool = True) -> Admission:
        """How many of the next queries may be asked, see Budget; none after a problem."""
        self._read_others()
        if not self._problem:
            admitted = self._budget.admit(key, queries, self._hours(), patient)
            self._write(now=admitted.queries > 0)  # before it is asked: what is under way when all dies counts as spent
            if not self._problem:
                return admitted
        return Admission(0, over=True)

    def settle(self, key: str, questions: int, failures: Mapping[str, int], spend: Spend) -> None:
        """So much of a chunk is done, and of it failed, by reason. A judge that never answers is stopped."""
        failed = sum(failures.values())
        self._failures.update(failures)
        self._budget.settle(key, questions, failed, spend, self._hours())
        self._write()
        record = self._budget.record
        if record.questions >= _HOPELESS and not self._answered():
            self.stop(flatten(self._hopeless(record)))

    def close(self, key: str) -> None:
        """A chunk is over."""
        self._budget.close(key)

    def stop(self, problem: str) -> None:
        """Let nothing through any more; the first problem is kept."""
        self._problem = self._problem or problem

    def report(self) -> BudgetReport:
        """How far it is. The log hears that time passes, too: a session that is killed has spent its hours."""
        if self._began:
            self._budget.pass_time(self._hours())
            self._write()
        return BudgetReport(self._budget.record, self._budget.spent_out, self._problem, Counter(self._failures))

    def finish(self) -> BudgetReport:
        """Write the record for the last time."""
        if self._began:
            self._budget.pass_time(self._hours())
            self._write(now=True)
        return self.report()

    def _answered(self) -> bool:
        return any(one.questions > one.failed for one in (*self._budget.past, self._budget.record))

    def _hours(self) -> float:
        return (time.monotonic() - self._began) / 3600 if self._began else 0.0

    def _write(self, now: bool = False) -> None:
        if now or time.monotonic() - self._written >= _WRITE_S:
            self._written = time.monotonic()
            with self._stopping():
                self._log.write(self._session, self._budget.record)

    def _read_others(self) -> None:
        """What other sessions have spent, and let through, by now."""
        if time.monotonic() - self._read < _READ_S:
            return
        with self._stopping():
            records = self._log.records(but=self._session)
            self._budget.past = [record for record in records if record.judge == self._budget.judge]
            self._budget.share = share_of(self._whole, self._weights, self._budget.judge, records)
        self._read = time.monotonic()

    @contextmanager
    def _stopping(self) -> Iterator[None]:
        """A log that cannot be used is a problem: what was bought is in the answer log, and nothing more is."""
        try:
            yield
        except StoreError as error:
            self.stop(flatten(error))

    def _hopeless(self, record: SpendRecord) -> JudgeError:
        what = f"none of the first {record.questions:,} questions has an answer ({by_frequency(self._failures)})"
        return JudgeError(what, f"judge {record.judge}", self._remedy)
