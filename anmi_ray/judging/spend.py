"""What asking costs: requests, tokens and dollars so far, and what a question may cost.

Letters: N questions.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.config.endpoint import EndpointConfig, ServerConfig
from anmi_ray.config.judge import ApiJudgeConfig, TextJudgeConfig
from anmi_ray.judging.completion import Tokens
from anmi_ray.judging.questions import TextQuestions

TEMPLATE_TOKENS = 400  # of instructions and fences
LONG_ANSWER = 1024  # tokens held back for an answer where max_tokens is not sent
_MILLION = 1e6
_BYTES_PER_TOKEN = 3.0  # of text: of English fewer tokens


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

    def __sub__(self, earlier: Spend) -> Spend:
        """What came since `earlier`."""
        return self + Spend(
            -earlier.requests,
            -earlier.prompt_tokens,
            -earlier.cached_tokens,
            -earlier.answer_tokens,
            None if earlier.dollars is None else -earlier.dollars,
            -earlier.unreported,
            None if earlier.unreported_dollars is None else -earlier.unreported_dollars,
        )


@dataclass(frozen=True)
class Charge:
    """A request under way: what it may take, in tokens and dollars."""

    tokens: Tokens
    dollars: float | None


class Account:
    """One client's books; dollars where the settings name prices."""

    def __init__(self, config: ServerConfig) -> None:
        self._config = config if isinstance(config, EndpointConfig) else None
        priced = self._config is not None and self._config.input_price is not None
        self.spend = Spend() if priced else Spend(dollars=None, unreported_dollars=None)

    def dollars(self, tokens: Tokens) -> float | None:
        """Price of so many tokens; None where prices are unknown."""
        return None if self._config is None else dollars(self._config, tokens)

    def open(self, estimate: Tokens) -> Charge:
        """Write down that a request leaves."""
        charge = Charge(estimate, self.dollars(estimate))
        self.spend = replace(self.spend, requests=self.spend.requests + 1)
        return charge

    def close(self, charge: Charge, tokens: Tokens | None, perhaps_billed: bool = False, sent: bool = True) -> None:
        """Write down how it ended: the server's count, or none; `sent` False takes back that it left."""
        spend = self.spend
        if not sent:
            self.spend = replace(spend, requests=spend.requests - 1)
        elif tokens is not None:
            self.spend = spend + Spend(0, tokens.prompt, tokens.cached, tokens.answer, self.dollars(tokens))
        elif perhaps_billed:
            self.spend = spend + Spend(unreported=1, unreported_dollars=charge.dollars)


def dollars(config: EndpointConfig, tokens: Tokens) -> float | None:
    """Price of so many tokens; None where prices are unknown."""
    if config.input_price is None or config.output_price is None:
        return None
    cached_price = config.input_price if config.cached_price is None else config.cached_price
    fresh = tokens.prompt - tokens.cached
    return (fresh * config.input_price + tokens.cached * cached_price + tokens.answer * config.output_price) / _MILLION


def dearest(judge: TextJudgeConfig) -> float:
    """Dollars that one question may cost, with the longest texts that the judge is shown; 0 where it has no prices."""
    if not isinstance(judge, ApiJudgeConfig):
        return 0.0
    prompt = TEMPLATE_TOKENS + judge.prompt.query_tokens + 2 * judge.prompt.document_tokens
    return dollars(judge.endpoint, Tokens(prompt, 0, judge.endpoint.max_tokens or LONG_ANSWER)) or 0.0


def likely(judge: TextJudgeConfig, questions: TextQuestions) -> NDArray[np.float64]:
    """Dollars float64[N] that each question may cost, by the lengths of its texts; 0 where the judge has no prices."""
    if not isinstance(judge, ApiJudgeConfig) or judge.endpoint.input_price is None:
        return np.zeros(len(questions.query))
    document = _tokens(judge.prompt.document_tokens, questions.texts["title"], questions.texts["text"])
    query = _tokens(judge.prompt.query_tokens, questions.queries["text"])
    prompt = TEMPLATE_TOKENS + query[questions.query] + document[questions.first] + document[questions.second]
    answer = dollars(judge.endpoint, Tokens(0, 0, judge.endpoint.max_tokens or LONG_ANSWER)) or 0.0
    return prompt * judge.endpoint.input_price / _MILLION + answer


def _tokens(limit: int, *texts: pa.ChunkedArray) -> NDArray[np.float64]:
    """About as many tokens as texts have that are shown up to `limit`."""
    lengths = sum(pc.binary_length(text).to_numpy().astype(np.float64) for text in texts)
    return np.minimum(lengths / _BYTES_PER_TOKEN, limit)


def _sum(one: float | None, other: float | None) -> float | None:
    return None if one is None or other is None else one + other
