"""Spend of runs on judges, one file per session, so that a budget holds over kills and resumptions.

`spend/<campaign>/<session>.json`: a campaign is a panel asked about the same comparisons, with any budget and in any
round; a session is one process that asks. Only the session writes its file, repeatedly; the last version counts. Once
the process has died, its reservations for questions in flight count as spent.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from typing import Any

from anmi_ray.core.errors import StoreError
from anmi_ray.store import Store


@dataclass(frozen=True)
class Spend:
    """Requests sent, those that failed included, and what the server says they took; sums over clients with `+`.

    `dollars` is None where prices are unknown. `unreported` requests ended without the server's count of tokens after
    it may have worked on them (time-outs, broken connections): `unreported_dollars` is an estimate of those.
    """

    requests: int = 0
    prompt_tokens: int = 0
    cached_tokens: int = 0
    answer_tokens: int = 0
    dollars: float | None = 0.0
    unreported: int = 0
    unreported_dollars: float | None = 0.0

    @property
    def cost(self) -> float:
        """Dollars, including estimates; 0 for unknown prices."""
        return (self.dollars or 0.0) + (self.unreported_dollars or 0.0)

    def __add__(self, other: Spend) -> Spend:
        return self._plus(other, 1)

    def __sub__(self, earlier: Spend) -> Spend:
        """What came since `earlier`."""
        return self._plus(earlier, -1)

    def _plus(self, other: Spend, sign: int) -> Spend:
        """Unknown dollars stay unknown."""
        sums: dict[str, Any] = {}
        for amount in fields(self):
            mine = getattr(self, amount.name)
            others = getattr(other, amount.name)
            sums[amount.name] = None if mine is None or others is None else mine + sign * others
        return Spend(**sums)


@dataclass(frozen=True)
class SpendRecord:
    """Purchases from one judge in one session (a run until it ends or dies).

    spend: counted requests, tokens and dollars.
    estimated: estimated dollars of the questions that cost some.
    calls_under_way, dollars_under_way: reserved for questions in flight; they count as spent if the session dies.
    calls_lost, dollars_lost: reserved by actors that died within the session.
    hours: since the session began to ask.
    round: round of the comparisons.
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
        """Calls, including possibly made ones."""
        return self.spend.requests + self.calls_under_way + self.calls_lost

    @property
    def dollars(self) -> float:
        """Dollars, including possibly spent ones; 0 for unknown prices."""
        return self.spend.cost + self.dollars_under_way + self.dollars_lost

    @staticmethod
    def from_json(content: Mapping[str, Any]) -> SpendRecord:
        """The record of a file."""
        return SpendRecord(**{**content, "spend": Spend(**content["spend"])})


@dataclass(frozen=True)
class SpendLog:
    """The records of one campaign under a root; what is written to it belongs to `round`."""

    store: Store
    campaign: str
    round: int = 0

    @property
    def path(self) -> str:
        """The campaign's folder in the store."""
        return f"spend/{self.campaign}"

    def records(self, but: str = "") -> list[SpendRecord]:
        """Records of all sessions, oldest name first, without session `but`.

        Raises StoreError if one cannot be read.
        """
        names = [name for name in self.store.names(self.path) if name != f"{but}.json"]
        return [self._read(f"{self.path}/{name}") for name in names]

    def records_of_round(self) -> list[SpendRecord]:
        """Records of all sessions of this round."""
        return [record for record in self.records() if record.round == self.round]

    def write(self, session: str, record: SpendRecord) -> None:
        """Write the state of a session of this round."""
        self.store.publish_json(f"{self.path}/{session}.json", asdict(replace(record, round=self.round)))

    def _read(self, path: str) -> SpendRecord:
        remedy = "delete it: what it had spent is forgotten"
        content = self.store.read_json(path, remedy)
        try:
            return SpendRecord.from_json(content)
        except (TypeError, KeyError) as error:
            raise StoreError(f"not a session's record of spending: {error}", self.store.where(path), remedy) from None
