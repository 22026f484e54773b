"""Budget of a judge: admit whole queries, in order, while the budget lasts.

Questions in flight are reserved at an estimated cost, which is corrected by actual costs. An admitted query is always
completed, so a budget is exceeded at most by retries beyond the estimate. If a run is killed, reservations count as
spent, so at most a quarter of the remaining budget is reserved at a time.
`Budget` is bookkeeping without clock or store. `BudgetSession` adds both: admissions are written to the spend log
before questions are sent, concurrent runs of a campaign see them within seconds, and asking stops if the log cannot be
written. A run has one session, in the actor of `stages/judge/asking.py`; `judging/asking.py` has one in its process.
"""

from __future__ import annotations

import time
import uuid
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from anmi_ray.config.judge import BudgetConfig
from anmi_ray.core.errors import JudgeError, StoreError, flatten
from anmi_ray.judging.kinds.base import TextJudge, by_frequency
from anmi_ray.store.spend_log import Spend, SpendLog, SpendRecord

QueryCost = tuple[int, float]  # (questions of a query, their estimated dollars)
MAX_RESERVED = 0.25  # fraction of the remaining budget that may be reserved
MIN_RESERVED = 64  # questions that may always be in flight; with fewer, asking would wait for each answer


class Admission(NamedTuple):
    """Number of queries admitted, and whether the budget is exhausted (`over`) rather than temporarily reserved."""

    queries: int
    over: bool


@dataclass(frozen=True)
class BudgetShare:
    """Remaining budget; None: no limit."""

    dollars: float | None = None
    calls: float | None = None
    hours: float | None = None


def share_of(
    budget: BudgetShare, weights: Sequence[tuple[str, float]], judge: str, records: Sequence[SpendRecord]
) -> BudgetShare:
    """Return `judge`'s share of a panel's budget, given the spend in `records`.

    weights: the judges in the order in which they are asked, each with its estimated dollars per question. What is left
    by earlier judges is split among this judge and those after it: dollars by weight, calls and hours evenly. So all
    judges of a panel are asked about the same queries.
    """
    names = [name for name, _ in weights]
    place = names.index(judge)
    prices = [price for _, price in weights[place:]]
    by_price = prices[0] / sum(prices) if sum(prices) else 1.0
    share: dict[str, float | None] = {}
    for what in ("dollars", "calls", "hours"):
        limit = getattr(budget, what)
        if limit is not None:
            before = sum(getattr(record, what) for record in records if record.judge in names[:place])
            own = sum(getattr(record, what) for record in records if record.judge == judge)
            part = by_price if what == "dollars" else 1 / len(prices)
            limit = max(0.0, (limit - before) * part - own)
        share[what] = limit
    return BudgetShare(**share)


def total(records: Sequence[SpendRecord]) -> dict[str, dict[str, float]]:
    """Return total spend per judge over all sessions, including the possible uncounted spend of killed ones."""
    totals: dict[str, dict[str, float]] = {}
    for record in records:
        spend = record.spend
        dollars = spend.dollars or 0.0
        amounts = {
            "questions": record.questions,
            "failed": record.failed,
            "calls": spend.requests,
            "calls_uncounted": record.calls - spend.requests,
            "prompt_tokens": spend.prompt_tokens,
            "cached_tokens": spend.cached_tokens,
            "answer_tokens": spend.answer_tokens,
            "dollars": dollars,
            "dollars_uncounted": record.dollars - dollars,
            "hours": record.hours,
        }
        sums = totals.setdefault(record.judge, dict.fromkeys(amounts, 0.0))
        for name, amount in amounts.items():
            sums[name] += amount
    return totals


@dataclass
class _UnderWay:
    """Admitted questions of a chunk that are not settled."""

    questions: int = 0
    dollars: float = 0.0


@dataclass
class Budget:
    """The budget of one judge in one session. Chunks are identified by a key; the caller passes elapsed hours.

    judge: name of the judge.
    share: its budget.
    past: its records of earlier sessions, which also inform the estimates.
    spent_out: True once a query was refused.
    """

    judge: str
    share: BudgetShare
    past: Sequence[SpendRecord] = ()
    spent_out: bool = False
    _record: SpendRecord = field(init=False)
    _under_way: dict[str, _UnderWay] = field(default_factory=dict[str, _UnderWay])

    def __post_init__(self) -> None:
        self._record = SpendRecord(self.judge)

    @property
    def record(self) -> SpendRecord:
        """Spend so far."""
        held = self._under_way.values()
        return replace(
            self._record,
            calls_under_way=sum(chunk.questions for chunk in held) * self._calls_each,
            dollars_under_way=sum(chunk.dollars for chunk in held) * self._cost_ratio,
        )

    @property
    def reservable(self) -> tuple[float, float]:
        """Calls and dollars that may be reserved in addition: in all, MAX_RESERVED of the remaining budget."""
        record = self.record
        calls, dollars = record.calls - record.calls_under_way, record.dollars - record.dollars_under_way
        return (
            MAX_RESERVED * (_limit(self.share.calls) - calls) - record.calls_under_way,
            MAX_RESERVED * (_limit(self.share.dollars) - dollars) - record.dollars_under_way,
        )

    @property
    def _calls_each(self) -> float:
        """Estimated calls per question."""
        records = (*self.past, self._record)
        questions = sum(record.questions for record in records)
        return max(1.0, sum(record.spend.requests for record in records) / questions) if questions else 1.0

    @property
    def _cost_ratio(self) -> float:
        """Ratio of actual to estimated cost per question."""
        # failures without cost carry no information about the cost of answers
        records = [record for record in (*self.past, self._record) if record.spend.cost]
        estimated = sum(record.estimated for record in records)
        return sum(record.spend.cost for record in records) / estimated if estimated else 1.0

    def begin(self, key: str) -> None:
        """Start a chunk. If it was started before, its actor has died, and its reservations count as spent."""
        lost = self._under_way.pop(key, _UnderWay())
        self._record = replace(
            self._record,
            calls_lost=self._record.calls_lost + lost.questions * self._calls_each,
            dollars_lost=self._record.dollars_lost + lost.dollars * self._cost_ratio,
        )

    def admit(self, key: str, queries: Sequence[QueryCost], hours: float, patient: bool = True) -> Admission:
        """Admit as many of a chunk's next `queries` as the budget allows.

        patient: the caller can wait until others are settled. Then at most MAX_RESERVED of the remaining budget is
        reserved, or MIN_RESERVED questions, or one query.
        """
        before = self.record
        calls = before.calls
        dollars = before.dollars
        max_calls, max_dollars, max_hours = map(_limit, (self.share.calls, self.share.dollars, self.share.hours))
        more_calls, more_dollars = self.reservable
        most_calls, most_dollars = calls + more_calls, dollars + more_dollars
        questions_held = sum(chunk.questions for chunk in self._under_way.values())
        own = self._under_way.setdefault(key, _UnderWay())
        admitted = 0
        over = False
        for questions, cost in queries:
            calls += questions * self._calls_each
            dollars += cost * self._cost_ratio
            if hours >= max_hours or calls > max_calls or dollars > max_dollars:
                self.spent_out = over = True
                break
            too_many = questions_held + questions > MIN_RESERVED and (calls > most_calls or dollars > most_dollars)
            if patient and questions_held and too_many:
                break
            own.questions += questions
            own.dollars += cost
            questions_held += questions
            admitted += 1
        self._record = replace(self._record, hours=hours)
        return Admission(admitted, over)

    def pass_time(self, hours: float) -> None:
        """Update the elapsed time."""
        self._record = replace(self._record, hours=hours)

    def settle(self, key: str, questions: int, failed: int, spend: Spend, hours: float) -> None:
        """Record `questions` finished questions of a chunk, and the spend since the last call."""
        own = self._under_way.setdefault(key, _UnderWay())
        freed = 0.0
        if own.questions:
            freed = own.dollars * min(1.0, questions / own.questions)
            own.questions = max(0, own.questions - questions)
            own.dollars -= freed
        self._record = replace(
            self._record,
            questions=self._record.questions + questions,
            failed=self._record.failed + failed,
            spend=self._record.spend + spend,
            hours=hours,
            estimated=self._record.estimated + (freed if spend.cost else 0.0),
        )

    def close(self, key: str) -> None:
        """End a chunk and release its reservations."""
        self._under_way.pop(key, None)


def _limit(value: float | None) -> float:
    return float("inf") if value is None else value


_HOPELESS = 200  # questions without any answer after which asking stops
_WRITE_S = 5.0  # seconds between writes of settled spend
_READ_S = 2.0  # seconds between reads of other sessions' spend
_LEASE_S = 1.0  # seconds that admissions should last which one write covers


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
        self._written = float("-inf")
        self._covered = (0.0, 0.0)  # calls and dollars in the log
        self._ahead = 0  # admissions like the last one that a write covers in advance
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
            before = self._budget.record
            admitted = self._budget.admit(key, queries, self._hours(), patient)
            if admitted.queries:
                self._cover(before)
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
            what = f"none of the first {record.questions:,} questions has an answer ({by_frequency(self._failures)})"
            self.stop(flatten(JudgeError(what, f"judge {record.judge}", self._remedy)))

    def close(self, key: str) -> None:
        """End a chunk."""
        self._budget.close(key)

    def stop(self, problem: str) -> None:
        """Stop admitting questions; the first problem is kept."""
        self._problem = self._problem or problem

    def report(self, final: bool = False) -> BudgetReport:
        """Return the progress, and log the elapsed time, so that a killed session has spent its hours.

        final: write the record now.
        """
        if self._began:
            self._budget.pass_time(self._hours())
            self._write(now=final)
        return BudgetReport(self._budget.record, self._budget.spent_out, self._problem, Counter(self._failures))

    def _answered(self) -> bool:
        return any(record.questions > record.failed for record in (*self._budget.past, self._budget.record))

    def _hours(self) -> float:
        return (time.monotonic() - self._began) / 3600 if self._began else 0.0

    def _cover(self, before: SpendRecord) -> None:
        """Have the log cover an admission before its questions are sent: if the process is killed, they are spent.

        Where writes would follow each other within _LEASE_S, one covers more and more admissions in advance, within
        what may be reserved.
        """
        now = self._budget.record
        if now.calls <= self._covered[0] and now.dollars <= self._covered[1]:
            return
        self._ahead = 2 * self._ahead + 1 if time.monotonic() - self._written < _LEASE_S else self._ahead // 2
        wanted = self._ahead * (now.calls - before.calls), self._ahead * (now.dollars - before.dollars)
        calls, dollars = (max(0.0, min(pair)) for pair in zip(wanted, self._budget.reservable, strict=True))
        self._write(now=True, calls=calls, dollars=dollars)

    def _write(self, now: bool = False, calls: float = 0.0, dollars: float = 0.0) -> None:
        """Write the spend and reservations, and further reservations of `calls` and `dollars`."""
        if now or time.monotonic() - self._written >= _WRITE_S:
            record = self._budget.record
            held = record.calls_under_way + calls, record.dollars_under_way + dollars
            record = replace(record, calls_under_way=held[0], dollars_under_way=held[1])
            with self._stopping():
                self._log.write(self._session, record)
            self._written, self._covered = time.monotonic(), (record.calls, record.dollars)

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
