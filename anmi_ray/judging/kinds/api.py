"""The judge behind an HTTP endpoint: prompts out, replies in, as Answer rows.

Letters: N questions.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.base import whole
from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.config.execution import ExecutionConfig, PlanConfig
from anmi_ray.config.judge import ApiJudgeConfig
from anmi_ray.config.needs import Need
from anmi_ray.core.errors import DataError
from anmi_ray.judging import spend
from anmi_ray.judging.http.client import ChatClient, Failed, Reply
from anmi_ray.judging.http.completion import Completion, TokenCounts
from anmi_ray.judging.http.dispatch import Question, Result, ask_all
from anmi_ray.judging.http.limits import Leases
from anmi_ray.judging.kinds.base import (
    DEFAULTS,
    PromptJudge,
    Publish,
    Reals,
    Slices,
    actor_need,
    answer_rows,
)
from anmi_ray.judging.parse_reply import letter_columns, read, text_columns, without_reasoning
from anmi_ray.judging.prompt_builder import EMPTY, PromptBuilder
from anmi_ray.judging.questions import AT_ONCE, TextQuestions
from anmi_ray.store.spend_log import Spend

TEMPLATE_TOKENS = 400  # of instructions and fences
_BYTES_PER_TOKEN = 3.0  # of text: of English fewer tokens


@dataclass(frozen=True)
class ApiJudge(PromptJudge):
    """A language model behind an OpenAI-compatible endpoint."""

    config: ApiJudgeConfig

    @property
    def server(self) -> EndpointConfig:
        return self.config.endpoint

    def need(self, place: str, on: Mapping[str, str]) -> Need:
        return actor_need(place, on)

    @property
    def rates(self) -> tuple[float | None, float | None]:
        return self.server.requests_per_minute, self.server.tokens_per_minute

    @property
    def longest_answer(self) -> float:
        return self.server.max_tokens or math.inf

    def content(self) -> dict[str, object]:
        """Prompt, sampling, and the server's address or the identity that was given for it."""
        at = self.config.identity or self.server.base_url
        return {**super().content(), "sampling": whole(self.server.sampling), "at": at}

    def prompt_builder(self) -> PromptBuilder:
        return PromptBuilder.load(self.prompt)

    def engine(self, lease: Leases | None = None, answered: bool = False) -> ApiEngine:
        return ApiEngine(self.config, lease, self.prompt_builder(), answered=answered)

    def actors(self, execution: ExecutionConfig) -> tuple[int, int]:
        """Return no more actors than requests may be in flight."""
        least, most = (min(count, self.server.concurrency) for count in execution.asking)
        return least, most

    def one_of(self, actors: int) -> ApiJudge:
        """Return the judge with its share of the requests in flight."""
        concurrency = max(1, self.server.concurrency // actors)
        endpoint = self.server.model_copy(update={"concurrency": concurrency})
        return ApiJudge(self.config.model_copy(update={"endpoint": endpoint}))

    @property
    def max_dollars(self) -> float:
        documents = self.prompt.documents * self.prompt.document_tokens
        prompt = TEMPLATE_TOKENS + self.prompt.query_tokens + documents
        return spend.dollars(self.server, TokenCounts(prompt, 0, self._answer_tokens)) or 0.0

    def estimated_dollars(self, questions: TextQuestions) -> Reals:
        if self.server.input_price is None:
            return super().estimated_dollars(questions)
        document = _tokens(self.prompt.document_tokens, questions.texts["title"], questions.texts["text"])
        query = _tokens(self.prompt.query_tokens, questions.queries["text"])
        prompt = TEMPLATE_TOKENS + query[questions.query] + document[questions.first] + document[questions.second]
        answer = spend.dollars(self.server, TokenCounts(0, 0, self._answer_tokens)) or 0.0
        return prompt * self.server.input_price / spend.MILLION + answer

    def paid(self, answers: pa.Table) -> tuple[Reals, Reals] | None:
        """Return bounds; what its server did not count may have been billed, at every attempt."""
        if self.server.input_price is None:
            return None
        counts = (answers[name].to_pylist() for name in ("prompt_tokens", "cached_tokens", "answer_tokens"))
        each = [spend.dollars(self.server, TokenCounts(*tokens)) for tokens in zip(*counts, strict=True)]
        least = np.array(each, np.float64)
        held = pc.or_(pc.is_null(answers["error"]), pc.greater(answers["dollars"], 0.0))  # else refused, and unbilled
        uncounted = pc.and_(held, pc.equal(answers["prompt_tokens"], 0)).to_numpy()
        return least, least + uncounted * answers["attempts"].to_numpy() * self.max_dollars

    def price(self, calls: int, prompt: float, answer: float, plan: PlanConfig) -> spend.Price:
        """Predict the cost, with the hours of the tighter of the server's rate limits."""
        dollars = spend.dollars(self.server, TokenCounts(round(prompt), 0, round(answer)))
        at_most = None if dollars is None else max(dollars, calls * self.max_dollars)
        requests, tokens = self.rates
        limits = ((calls, requests, "requests a minute"), (prompt + answer, tokens, "tokens a minute"))
        hours = [(amount / limit / 60.0, f"{limit:,.0f} {what}") for amount, limit, what in limits if limit is not None]
        return spend.Price(dollars, at_most, *(max(hours) if hours else (None, "")))

    @property
    def _answer_tokens(self) -> int:
        return self.server.max_tokens or spend.LONG_ANSWER


def _tokens(limit: int, *texts: pa.ChunkedArray) -> Reals:
    """About as many tokens as texts have that are shown up to `limit`."""
    lengths = sum(pc.binary_length(text).to_numpy().astype(np.float64) for text in texts)
    return np.minimum(lengths / _BYTES_PER_TOKEN, limit)


class ApiEngine:
    """Asks through one client; answers are handed over every `at_once` or 5 seconds."""

    def __init__(
        self,
        config: ApiJudgeConfig,
        lease: Leases | None = None,
        builder: PromptBuilder | None = None,
        at_once: int = AT_ONCE,
        answered: bool = False,
    ) -> None:
        self.at_once = at_once
        self.messages: dict[str, str] = {}
        self.config = config
        self.builder = PromptBuilder.load(config.prompt) if builder is None else builder
        limited = config.endpoint.requests_per_minute or config.endpoint.tokens_per_minute
        self._lease = lease if limited else None
        self._past = Spend()
        self._client = ChatClient(config.endpoint, answered=answered)

    @property
    def spend(self) -> Spend:
        return self._past + self._client.spend

    def ask(self, questions: TextQuestions, slices: Slices, publish: Publish) -> None:
        """Ask all questions. Raises ConfigError or JudgeError for user errors, after publishing the answers so far."""
        asyncio.run(self._ask(questions, slices, publish))

    async def _ask(self, questions: TextQuestions, slices: Slices, publish: Publish) -> None:
        row: dict[bytes, int] = {}
        empty: list[int] = []
        prompts = self.builder.prompts(questions)

        async def asked() -> AsyncIterator[Question]:
            while (which := await asyncio.to_thread(next, slices, None)) is not None:
                for q in which.tolist():
                    try:
                        messages = prompts(q)
                    except DataError:  # one of the three texts is empty
                        empty.append(q)
                        continue
                    key = questions.ids[q].tobytes()
                    row[key] = q
                    yield key, messages

        def publish_results(results: list[Result]) -> None:
            which = np.array([row.pop(key) for key, _ in results], dtype=np.int64)
            publish(answer_rows(questions, which, **self._columns([result for _, result in results])))

        self._past = self.spend
        by_logprobs = self.config.prompt.readout == "logprob"
        past = self._client
        self._client = ChatClient(self.config.endpoint, self._lease, by_logprobs, past.answered, past.learned)
        try:
            async with self._client as client:
                await ask_all(client, asked(), publish_results, self.at_once)
        finally:
            if empty:
                which = np.array(empty, dtype=np.int64)
                publish(answer_rows(questions, which, error=[EMPTY] * len(which)))

    def _columns(self, results: Sequence[Reply[Completion] | Failed]) -> dict[str, object]:
        """The Answer columns of replies and failures."""
        rows = [self._row(result) for result in results]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _row(self, result: Reply[Completion] | Failed) -> dict[str, object]:
        row: dict[str, object] = {**DEFAULTS, "seconds": result.seconds, "attempts": result.attempts}
        spent = result.spend
        row |= {"prompt_tokens": spent.prompt_tokens, "cached_tokens": spent.cached_tokens}
        row |= {"answer_tokens": spent.answer_tokens, "dollars": spent.cost}
        if isinstance(result, Failed):
            self.messages.setdefault(result.reason, result.detail)
            return row | {"error": result.reason, "transient": result.transient}
        answer = result.answer
        if self.config.prompt.readout != "logprob":
            return row | text_columns(answer.text, answer.cut)
        return row | self._letters(answer)

    def _letters(self, answer: Completion) -> dict[str, float | str]:
        """The columns that log-probabilities fill. A letter that begins a sentence, "A is worse", is not a vote."""
        form = self.builder.template.form
        columns = letter_columns(answer.logprobs or {}, form)
        value = read(without_reasoning(answer.text).strip().partition("\n")[0], form)
        return {"error": value} if isinstance(value, str) and "error" not in columns else columns


JUDGE = ApiJudge
