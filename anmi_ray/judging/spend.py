"""What asking costs, and where it ends: requests, tokens, dollars so far, and a budget that every request asks."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.errors import ConfigError
from anmi_ray.judging.access import place
from anmi_ray.judging.completion import Tokens
from anmi_ray.judging.limits import Clock

_MILLION = 1e6


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

    def __add__(self, other: Spend) -> Spend:
        return Spend(
            self.requests + other.requests,
            self.prompt_tokens + other.prompt_tokens,
            self.cached_tokens + other.cached_tokens,
            self.answer_tokens + other.answer_tokens,
            _sum(self.dollars, other.dollars),
            self.unreported + other.unreported,
            _sum(self.unreported_dollars, other.unreported_dollars),
        )


@dataclass(frozen=True)
class Budget:
    """What may be spent; None: no limit. Hours count from when the client was made."""

    dollars: float | None = None
    calls: int | None = None
    hours: float | None = None


@dataclass(frozen=True)
class Charge:
    """A request under way: the estimate that is held back from the budget for it, in tokens and dollars."""

    tokens: Tokens
    dollars: float | None


class Account:
    """One client's books. What is in flight counts at its estimate, so a budget is not overrun by concurrency.

    Raises ConfigError for a budget in dollars where prices are unknown.
    """

    def __init__(self, config: EndpointConfig, budget: Budget | None, clock: Clock = time.monotonic) -> None:
        self._config, self._budget, self._clock = config, budget or Budget(), clock
        known = config.input_price is not None
        if self._budget.dollars is not None and not known:
            raise ConfigError(
                "a budget in dollars needs prices",
                place(config),
                "give input_price and output_price, dollars a million",
            )
        self.spend = Spend() if known else Spend(dollars=None, unreported_dollars=None)
        self._held, self._opened = 0.0, clock()

    def dollars(self, tokens: Tokens) -> float | None:
        """Price of so many tokens; None where prices are unknown."""
        config = self._config
        if config.input_price is None or config.output_price is None:
            return None
        cached_price = config.input_price if config.cached_price is None else config.cached_price
        fresh = tokens.prompt - tokens.cached
        spent = fresh * config.input_price + tokens.cached * cached_price + tokens.answer * config.output_price
        return spent / _MILLION

    def allows(self, estimate: Tokens) -> bool:
        """Whether a request of about `estimate` is within the budget."""
        budget, spend = self._budget, self.spend
        if budget.calls is not None and spend.requests >= budget.calls:
            return False
        if budget.hours is not None and self._clock() - self._opened >= budget.hours * 3600:
            return False
        if budget.dollars is None:
            return True
        gone = (spend.dollars or 0.0) + (spend.unreported_dollars or 0.0) + self._held
        return gone + (self.dollars(estimate) or 0.0) <= budget.dollars

    def open(self, estimate: Tokens) -> Charge:
        """Write down that a request leaves."""
        charge = Charge(estimate, self.dollars(estimate))
        self._held += charge.dollars or 0.0
        self.spend = replace(self.spend, requests=self.spend.requests + 1)
        return charge

    def close(self, charge: Charge, tokens: Tokens | None, perhaps_billed: bool = False, sent: bool = True) -> None:
        """Write down how it ended: the server's count, or none; `sent` False takes back that it left."""
        self._held = max(0.0, self._held - (charge.dollars or 0.0))
        spend = self.spend
        if not sent:
            self.spend = replace(spend, requests=spend.requests - 1)
        elif tokens is not None:
            self.spend = spend + Spend(0, tokens.prompt, tokens.cached, tokens.answer, self.dollars(tokens))
        elif perhaps_billed:
            self.spend = spend + Spend(unreported=1, unreported_dollars=charge.dollars)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
