"""Costs of asking: token prices, GPU hours, and what a judge's missing calls are expected to cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.config.execution import PlanConfig
from anmi_ray.config.paths import as_written
from anmi_ray.judging.http.completion import TokenCounts

LONG_ANSWER = 1024  # tokens reserved for an answer if max_tokens is not sent
MILLION = 1e6
# Dense bfloat16 TFLOPS by data sheet, without sparsity.
GPU_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "A10G": 70.0}
USED = 0.4  # utilization when reading prompts; long prompts with one-token answers are compute-bound


def dollars(config: EndpointConfig, tokens: TokenCounts) -> float | None:
    """Return the price of tokens; None if prices are unknown."""
    if config.input_price is None or config.output_price is None:
        return None
    cached_price = config.input_price if config.cached_price is None else config.cached_price
    fresh = tokens.prompt - tokens.cached
    return (fresh * config.input_price + tokens.cached * cached_price + tokens.answer * config.output_price) / MILLION


def gpu_hours(tokens: float, parameters: float, gpu: str | None) -> float | None:
    """Estimate the GPU hours that a model with so many parameters takes for `tokens`; None for an unknown GPU.

    Assumes two operations per parameter and token at 40 % utilization: a rough estimate.

    >>> round(gpu_hours(1e9, 8e9, "H100"), 1)
    11.2
    """
    if gpu not in GPU_TFLOPS:
        return None
    return 2.0 * parameters * tokens / (USED * GPU_TFLOPS[gpu] * 1e12) / 3600.0


def planned_hours(plan: PlanConfig, model: str, tokens: float) -> float:
    """Return `gpu_hours` for a model and a GPU of the plan; 0 if the plan does not name both."""
    return gpu_hours(tokens, plan.parameters.get(as_written(model), 0.0) * 1e9, plan.gpu) or 0.0


@dataclass(frozen=True)
class CallTokens:
    """Mean tokens of a judge's prompts, the half-width of its 95 % interval, of an answer, and their source."""

    prompt: float
    slack: float
    answer: float
    how: str


@dataclass(frozen=True)
class Price:
    """Predicted cost of asking; None: unknown.

    dollars: estimate.
    at_most: upper bound in dollars.
    hours: time by the rate limit that `limit` names.
    gpus: description of the use of the cluster's GPUs, if any.
    gpu_hours: GPU hours of that use.
    """

    dollars: float | None = None
    at_most: float | None = None
    hours: float | None = None
    limit: str = ""
    gpus: str = ""
    gpu_hours: float | None = None


@dataclass(frozen=True, kw_only=True)
class CallCost(Price):
    """Expected cost of a judge's `calls`, of which `bought` are in the log (None: not looked up)."""

    judge: str
    calls: int
    bought: int | None
    tokens: CallTokens

    @property
    def missing(self) -> int:
        """Calls not made yet."""
        return self.calls - (self.bought or 0)

    @property
    def missing_tokens(self) -> float:
        """Tokens of these calls, including answers."""
        return self.missing * (self.tokens.prompt + self.tokens.answer)

    def said(self) -> Iterator[str]:
        """Yield lines to print."""
        bought = "" if self.bought is None else f", {self.bought:,} already bought"
        if self.bought is None:
            bought = "; the answer log was not read"
        tokens = self.tokens
        yield f"{self.judge}: {self.calls:,} calls{bought}"
        slack = f" ± {tokens.slack:,.0f}" if tokens.slack else ""
        yield f"  tokens   {tokens.prompt:,.0f}{slack} of a prompt and {tokens.answer:,.3g} of an answer, {tokens.how}"
        yield f"           {self.missing_tokens / MILLION:,.2f} million missing"
        if self.gpus:
            yield f"  GPUs     {self.gpus}"
            return
        if self.dollars is None or self.at_most is None:
            yield "  dollars  unknown: set endpoint.input_price and endpoint.output_price"
        else:
            cost = f"about {self.dollars:,.2f}, at most {self.at_most:,.2f}"
            yield f"  dollars  {cost}, excluding retries and the server's cache"
        limits = "no rate limit set" if self.hours is None else f"{self.hours:,.1f} at {self.limit}"
        yield f"  hours    {limits}"
