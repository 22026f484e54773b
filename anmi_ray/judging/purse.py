"""What may be spent on a judge: whole queries are let through one after another, as long as a budget holds.

What is under way is held back from the budget at an estimate, which learns from what questions really took. A query
that was let through is asked to its end, so a budget is overrun at most by what retries cost beyond the estimate.
No clock and no store in here: `stages/purse.py` is the one actor of a run that keeps such a purse and writes its books.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from anmi_ray.judging.spend import Spend

_TOTALS = (
    "questions", "failed", "calls", "calls_uncounted", "prompt_tokens", "cached_tokens", "answer_tokens",
    "dollars", "dollars_uncounted", "hours",
)  # fmt: skip
QueryCost = tuple[int, float]  # questions of a query, and dollars that they may cost


@dataclass(frozen=True)
class Allowance:
    """What may still be spent; None: no limit."""

    dollars: float | None = None
    calls: float | None = None
    hours: float | None = None


@dataclass(frozen=True)
class Books:
    """What one session (a run until it ends or dies) has bought of one judge.

    `spend` is what was counted, and `estimated` the dollars that it was thought to be. `calls_under_way` and
    `dollars_under_way` are held back for questions that were let through and not counted yet; whoever finds the books
    of a session that died counts them as spent. Of askers that died within the session they are `calls_lost` and
    `dollars_lost`. `hours` since the session began to ask; `round` is that of the comparisons that it asked about.
    """

    judge: str
    questions: int = 0
    failed: int = 0
    spend: Spend = field(default_factory=Spend)
    calls_under_way: float = 0.0
    dollars_under_way: float = 0.0
    calls_lost: float = 0.0
    dollars_lost: float = 0.0
    hours: float = 0.0
    estimated: float = 0.0
    round: int = 0

    @property
    def calls(self) -> float:
        """Calls, those included that may have been made."""
        return self.spend.requests + self.calls_under_way + self.calls_lost

    @property
    def dollars(self) -> float:
        """Dollars, those included that may have been spent; those of unknown prices are none."""
        return (
            (self.spend.dollars or 0.0)
            + (self.spend.unreported_dollars or 0.0)
            + self.dollars_under_way
            + self.dollars_lost
        )

    def to_json(self) -> dict[str, Any]:
        """As JSON values."""
        return asdict(self)

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> Books:
        """What `to_json` gave."""
        return Books(**{**content, "spend": Spend(**content["spend"])})


def allowance(budget: Allowance, weights: Sequence[tuple[str, float]], judge: str, books: Sequence[Books]) -> Allowance:
    """What `judge` may spend of a panel's budget, after `books`.

    `weights` are the judges in the order in which they are asked, each with the dollars that one of its questions may
    cost. What the judges before it left is shared with those after it: dollars by weight, calls and hours evenly. So
    every judge of a panel hears about the same queries.
    """
    names = [name for name, _ in weights]
    place = names.index(judge)
    prices = [price for _, price in weights[place:]]
    shares = {"dollars": prices[0] / sum(prices) if sum(prices) else 1.0}
    found: dict[str, float | None] = {}
    for what in ("dollars", "calls", "hours"):
        limit = getattr(budget, what)
        if limit is not None:
            before = sum(getattr(one, what) for one in books if one.judge in names[:place])
            own = sum(getattr(one, what) for one in books if one.judge == judge)
            limit = max(0.0, (limit - before) * shares.get(what, 1 / len(prices)) - own)
        found[what] = limit
    return Allowance(**found)


def total(books: Sequence[Books]) -> dict[str, dict[str, float]]:
    """By judge, what all sessions spent, with what those that died may have spent beyond what they counted."""
    found: dict[str, dict[str, float]] = {}
    for one in books:
        of = found.setdefault(one.judge, dict.fromkeys(_TOTALS, 0.0))
        spend, dollars = one.spend, one.spend.dollars or 0.0
        amounts = (
            one.questions, one.failed, spend.requests, one.calls - spend.requests, spend.prompt_tokens,
            spend.cached_tokens, spend.answer_tokens, dollars, one.dollars - dollars, one.hours,
        )  # fmt: skip
        for name, amount in zip(_TOTALS, amounts, strict=True):
            of[name] += amount
    return found


@dataclass
class _UnderWay:
    """Questions of a chunk that were let through and not settled."""

    questions: int = 0
    dollars: float = 0.0


@dataclass
class Purse:
    """One judge's money in one session. Chunks are named by a key; the caller says how late it is, in hours.

    Estimates learn from `past`, the judge's books of earlier sessions, too. `spent_out` is set when a query had to be
    refused.
    """

    judge: str
    allowance: Allowance
    past: Sequence[Books] = ()
    spent_out: bool = False
    _books: Books = field(init=False)
    _under_way: dict[str, _UnderWay] = field(default_factory=dict[str, _UnderWay])

    def __post_init__(self) -> None:
        self._books = Books(self.judge)

    @property
    def books(self) -> Books:
        """What was bought so far."""
        held = self._under_way.values()
        return replace(
            self._books,
            calls_under_way=sum(one.questions for one in held) * self._calls_each,
            dollars_under_way=sum(one.dollars for one in held) * self._dearer,
        )

    @property
    def _calls_each(self) -> float:
        """Calls that a question takes."""
        known = (*self.past, self._books)
        questions = sum(one.questions for one in known)
        return max(1.0, sum(one.spend.requests for one in known) / questions) if questions else 1.0

    @property
    def _dearer(self) -> float:
        """What a question costs, of what it was thought to."""
        known = (*self.past, self._books)
        estimated = sum(one.estimated for one in known)
        return sum(one.spend.dollars or 0.0 for one in known) / estimated if estimated else 1.0

    def begin(self, key: str) -> None:
        """A chunk starts. Starts it anew, its last asker has died: what was under way may have been bought."""
        gone = self._under_way.pop(key, _UnderWay())
        self._books = replace(
            self._books,
            calls_lost=self._books.calls_lost + gone.questions * self._calls_each,
            dollars_lost=self._books.dollars_lost + gone.dollars * self._dearer,
        )

    def admit(self, key: str, queries: Sequence[QueryCost], hours: float) -> int:
        """How many of a chunk's next `queries` may be asked: all, or as many as the allowance holds."""
        may = self.allowance
        late = may.hours is not None and hours >= may.hours
        calls, dollars = self.books.calls, self.books.dollars
        own = self._under_way.setdefault(key, _UnderWay())
        admitted = 0
        for questions, cost in queries:
            calls, dollars = calls + questions * self._calls_each, dollars + cost * self._dearer
            if late or calls > _limit(may.calls) or dollars > _limit(may.dollars):
                self.spent_out = True
                break
            own.questions, own.dollars = own.questions + questions, own.dollars + cost
            admitted += 1
        self._books = replace(self._books, hours=hours)
        return admitted

    def settle(self, key: str, questions: int, failed: int, spend: Spend, hours: float) -> None:
        """So many questions of a chunk were handed over, and this is what was spent since the last time."""
        own, freed = self._under_way.setdefault(key, _UnderWay()), 0.0
        if own.questions:
            freed = own.dollars * min(1.0, questions / own.questions)
            own.questions, own.dollars = max(0, own.questions - questions), own.dollars - freed
        self._books = replace(
            self._books,
            questions=self._books.questions + questions,
            failed=self._books.failed + failed,
            spend=self._books.spend + spend,
            hours=hours,
            estimated=self._books.estimated + freed,
        )

    def close(self, key: str) -> None:
        """A chunk is over; nothing of it is under way."""
        self._under_way.pop(key, None)


def _limit(value: float | None) -> float:
    return float("inf") if value is None else value
