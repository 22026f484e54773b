"""Costs of asking: a client's account of requests, tokens and dollars, token prices, and GPU hours."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from anmi_ray.config.endpoint import EndpointConfig, ServerConfig
from anmi_ray.config.execution import PlanConfig
from anmi_ray.config.paths import as_written
from anmi_ray.judging.http.completion import TokenCounts
from anmi_ray.store.spend_log import Spend

LONG_ANSWER = 1024  # tokens reserved for an answer if max_tokens is not sent
MILLION = 1e6
# Dense bfloat16 TFLOPS by data sheet, without sparsity.
GPU_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "A10G": 70.0}
USED = 0.4  # utilization when reading prompts; long prompts with one-token answers are compute-bound


@dataclass(frozen=True)
class Charge:
    """Estimated tokens and dollars of a request in flight."""

    tokens: TokenCounts
    dollars: float | None


class Account:
    """Spend of one client; in dollars if the settings have prices."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config if isinstance(config, EndpointConfig) else None
        priced = self._config is not None and self._config.input_price is not None
        self.spend = Spend() if priced else Spend(dollars=None, unreported_dollars=None)

    def open(self, estimate: TokenCounts) -> Charge:
        """Record an outgoing request."""
        self.spend = replace(self.spend, requests=self.spend.requests + 1)
        return Charge(estimate, self._dollars(estimate))

    def close(
        self, charge: Charge, tokens: TokenCounts | None, perhaps_billed: bool = False, sent: bool = True
    ) -> Spend:
        """Record the end of a request and return its spend.

        tokens: the server's count, if any. sent: False if it was never sent.
        """
        took = Spend()
        if not sent:
            self.spend = replace(self.spend, requests=self.spend.requests - 1)
        elif tokens is not None:
            took = Spend(0, tokens.prompt, tokens.cached, tokens.answer, self._dollars(tokens))
        elif perhaps_billed:
            took = Spend(unreported=1, unreported_dollars=charge.dollars)
        self.spend += took
        return took

    def _dollars(self, tokens: TokenCounts) -> float | None:
        return None if self._config is None else dollars(self._config, tokens)


def dollars(config: EndpointConfig, tokens: TokenCounts) -> float | None:
    """Price of so many tokens; None where prices are unknown."""
    if config.input_price is None or config.output_price is None:
        return None
    cached_price = config.input_price if config.cached_price is None else config.cached_price
    fresh = tokens.prompt - tokens.cached
    return (fresh * config.input_price + tokens.cached * cached_price + tokens.answer * config.output_price) / MILLION


def gpu_hours(tokens: float, parameters: float, gpu: str | None) -> float | None:
    """GPU hours that a model of so many parameters reads `tokens` in; None where the GPU's speed is not known.

    Two operations a parameter and token, at 40 % of the GPU's arithmetic: an estimate that tells hours from days.

    >>> round(gpu_hours(1e9, 8e9, "H100"), 1)
    11.2
    """
    if gpu not in GPU_TFLOPS:
        return None
    return 2.0 * parameters * tokens / (USED * GPU_TFLOPS[gpu] * 1e12) / 3600.0


def planned_hours(plan: PlanConfig, model: str, tokens: float) -> float:
    """`gpu_hours` of a model whose size the plan names, on the plan's GPU; 0 where it does not name both."""
    return gpu_hours(tokens, plan.parameters.get(as_written(model), 0.0) * 1e9, plan.gpu) or 0.0


@dataclass(frozen=True)
class CallTokens:
    """Mean tokens of a judge's prompts with the half-width of its 95 % interval, of an answer, and who says so."""

    prompt: float
    slack: float
    answer: float
    how: str


@dataclass(frozen=True)
class CallCost:
    """What a judge would still cost: `calls` of which `bought` are in the log (None: not looked up).

    dollars and at_most are None without prices; hours None without rate limits. Where the judge runs on the cluster's
    own GPUs, `gpu_hours` is how long they take (None: not known), and `gpus` says so in words.
    """

    judge: str
    calls: int
    bought: int | None
    tokens: CallTokens
    dollars: float | None
    at_most: float | None
    hours: float | None
    limit: str
    gpus: str = ""
    gpu_hours: float | None = None

    @property
    def missing(self) -> int:
        """Calls that are still to be made."""
        return self.calls - (self.bought or 0)

    @property
    def missing_tokens(self) -> float:
        """Tokens of these calls, prompts and answers."""
        return self.missing * (self.tokens.prompt + self.tokens.answer)

    def said(self) -> Iterator[str]:
        """Lines to print."""
        bought = "" if self.bought is None else f", {self.bought:,} of them bought already"
        if self.bought is None:
            bought = "; those bought already were not counted"
        tokens = self.tokens
        yield f"{self.judge}: {self.calls:,} calls{bought}"
        slack = f" ± {tokens.slack:,.0f}" if tokens.slack else ""
        yield f"  tokens   {tokens.prompt:,.0f}{slack} of a prompt and {tokens.answer:,.3g} of an answer, {tokens.how}"
        yield f"           {self.missing_tokens / MILLION:,.2f} million to come"
        if self.gpus:
            yield f"  GPUs     {self.gpus}"
            return
        if self.dollars is None or self.at_most is None:
            yield "  dollars  prices not given (endpoint.input_price, endpoint.output_price)"
        else:
            cost = f"about {self.dollars:,.2f}, at most {self.at_most:,.2f}"
            yield f"  dollars  {cost}, without retries and the server's cache"
        limits = "no rate limit given" if self.hours is None else f"{self.hours:,.1f} at {self.limit}"
        yield f"  hours    {limits}"
