"""What asking costs: one client's account of requests, tokens and dollars, prices of tokens, hours of GPUs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from anmi_ray.config.endpoint import EndpointConfig, ServerConfig
from anmi_ray.judging.http.completion import TokenCounts
from anmi_ray.store.spend_log import Spend

LONG_ANSWER = 1024  # tokens held back for an answer where max_tokens is not sent
MILLION = 1e6
# Dense bfloat16 arithmetic of a GPU, 10¹² operations a second (the makers' data sheets, without sparsity).
GPU_TFLOPS = {"H200": 989.0, "H100": 989.0, "A100": 312.0, "L40S": 362.0, "L4": 121.0, "A10G": 70.0}
USED = 0.4  # share of it that reading prompts reaches; long prompts and one-token answers are arithmetic, not memory


@dataclass(frozen=True)
class Charge:
    """A request under way: what it may take, in tokens and dollars."""

    tokens: TokenCounts
    dollars: float | None


class Account:
    """What one client spent; dollars where the settings name prices."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config if isinstance(config, EndpointConfig) else None
        priced = self._config is not None and self._config.input_price is not None
        self.spend = Spend() if priced else Spend(dollars=None, unreported_dollars=None)

    def open(self, estimate: TokenCounts) -> Charge:
        """Write down that a request leaves."""
        self.spend = replace(self.spend, requests=self.spend.requests + 1)
        return Charge(estimate, self._dollars(estimate))

    def close(
        self, charge: Charge, tokens: TokenCounts | None, perhaps_billed: bool = False, sent: bool = True
    ) -> None:
        """Write down how it ended: the server's count, or none; `sent` False takes back that it left."""
        if not sent:
            self.spend = replace(self.spend, requests=self.spend.requests - 1)
        elif tokens is not None:
            self.spend += Spend(0, tokens.prompt, tokens.cached, tokens.answer, self._dollars(tokens))
        elif perhaps_billed:
            self.spend += Spend(unreported=1, unreported_dollars=charge.dollars)

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
