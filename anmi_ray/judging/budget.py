"""What may be spent on a judge: whole queries are let through one after another, as long as a budget holds.

What is under way is held back from the budget at an estimate, which learns from what questions really took. A query
that was let through is asked to its end, so a budget is overrun at most by what retries cost beyond the estimate. What
is held when all is killed counts as spent, so no more is held at once than a quarter of what is left.
No clock and no store in here: `stages/judge/budget_actor.py` is the one actor of a run that keeps such a budget and
writes its record.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from anmi_ray.store.spend_log import Spend, SpendRecord

QueryCost = tuple[int, float]  # questions of a query, and dollars that they may cost
HELD = 0.25  # of what is left of a budget, at most, is under way
FEW = 64  # questions that are under way however little is left: with fewer, asking would wait for every answer


class Admission(NamedTuple):
    """How many of some queries may be asked now; whether the next may never be, rather than when others are settled."""

    queries: int
    over: bool


@dataclass(frozen=True)
class BudgetShare:
    """What may still be spent; None: no limit."""

    dollars: float | None = None
    calls: float | None = None
    hours: float | None = None


def share_of(
    budget: BudgetShare, weights: Sequence[tuple[str, float]], judge: str, records: Sequence[SpendRecord]
) -> BudgetShare:
    """What `judge` may spend of a panel's budget, after `records`.

    `weights` are the judges in the order in which they are asked, each with the dollars that one of its questions may
    cost. What the judges before it left is shared with those after it: dollars by weight, calls and hours evenly. So
    every judge of a panel hears about the same queries.
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
    """By judge, what all sessions spent, with what those that died may have spent beyond what they counted."""
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
    """Questions of a chunk that were let through and not settled."""

    questions: int = 0
    dollars: float = 0.0


@dataclass
class Budget:
    """What one judge may spend in one session. Chunks are named by a key; the caller says how late it is, in hours.

    Estimates learn from `past`, the judge's records of earlier sessions, too. `spent_out` is set when a query had to be
    refused.
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
        """What was bought so far."""
        held = self._under_way.values()
        return replace(
            self._record,
            calls_under_way=sum(chunk.questions for chunk in held) * self._calls_each,
            dollars_under_way=sum(chunk.dollars for chunk in held) * self._dearer,
        )

    @property
    def _calls_each(self) -> float:
        """Calls that a question takes."""
        records = (*self.past, self._record)
        questions = sum(record.questions for record in records)
        return max(1.0, sum(record.spend.requests for record in records) / questions) if questions else 1.0

    @property
    def _dearer(self) -> float:
        """What a question costs, of what it was thought to."""
        # failures that cost nothing say nothing of what answers cost
        records = [record for record in (*self.past, self._record) if record.spend.cost]
        estimated = sum(record.estimated for record in records)
        return sum(record.spend.cost for record in records) / estimated if estimated else 1.0

    def begin(self, key: str) -> None:
        """A chunk starts. Starts it anew, its last actor has died: what was under way may have been bought."""
        gone = self._under_way.pop(key, _UnderWay())
        self._record = replace(
            self._record,
            calls_lost=self._record.calls_lost + gone.questions * self._calls_each,
            dollars_lost=self._record.dollars_lost + gone.dollars * self._dearer,
        )

    def admit(self, key: str, queries: Sequence[QueryCost], hours: float, patient: bool = True) -> Admission:
        """How many of a chunk's next `queries` may be asked: all, or as many as the budget holds.

        patient: who asks can wait until others are settled, so that no more is held than HELD of what is left, or FEW
        questions, or one query.
        """
        limits = self.share
        late = limits.hours is not None and hours >= limits.hours
        before = self.record
        calls = before.calls
        dollars = before.dollars
        most_calls, most_dollars = (spent + HELD * (limit - spent) for spent, limit in self._settled(before))
        questions_held = sum(chunk.questions for chunk in self._under_way.values())
        own = self._under_way.setdefault(key, _UnderWay())
        admitted = 0
        over = False
        for questions, cost in queries:
            calls += questions * self._calls_each
            dollars += cost * self._dearer
            if late or calls > _limit(limits.calls) or dollars > _limit(limits.dollars):
                self.spent_out = over = True
                break
            many = questions_held + questions > FEW and (calls > most_calls or dollars > most_dollars)
            if patient and questions_held and many:
                break
            own.questions += questions
            own.dollars += cost
            questions_held += questions
            admitted += 1
        self._record = replace(self._record, hours=hours)
        return Admission(admitted, over)

    def _settled(self, record: SpendRecord) -> tuple[tuple[float, float], tuple[float, float]]:
        """Calls and dollars that are spent for good, each with its limit."""
        calls = record.calls - record.calls_under_way
        dollars = record.dollars - record.dollars_under_way
        return (calls, _limit(self.share.calls)), (dollars, _limit(self.share.dollars))

    def pass_time(self, hours: float) -> None:
        """It is so late, though nothing may have happened."""
        self._record = replace(self._record, hours=hours)

    def settle(self, key: str, questions: int, failed: int, spend: Spend, hours: float) -> None:
        """So many questions of a chunk were handed over, and this is what was spent since the last time."""
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
        """A chunk is over; nothing of it is under way."""
        self._under_way.pop(key, None)


def _limit(value: float | None) -> float:
    return float("inf") if value is None else value
