"""The judge behind an HTTP endpoint: prompts out, replies in, as Answer rows.

Letters: N questions.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence

import numpy as np

from anmi_ray.config.judge import ApiJudgeConfig
from anmi_ray.errors import DataError
from anmi_ray.judging.answers import letter_columns
from anmi_ray.judging.asking import Question, Result, ask_all
from anmi_ray.judging.client import ChatClient, Failed, Reply
from anmi_ray.judging.engine import HandOver, Slices, answer_rows
from anmi_ray.judging.limits import Leased, Leases
from anmi_ray.judging.preview import EMPTY, Prompter
from anmi_ray.judging.prompt import Message
from anmi_ray.judging.questions import AT_ONCE, TextQuestions
from anmi_ray.judging.spend import Spend, dollars


class ApiEngine:
    """Asks through one client; answers are handed over every AT_ONCE or 5 seconds."""

    at_once = AT_ONCE

    def __init__(self, config: ApiJudgeConfig, lease: Leases | None = None) -> None:
        self.config, self.prompter = config, Prompter.load(config.prompt)
        limited = config.endpoint.requests_per_minute or config.endpoint.tokens_per_minute
        self._lease = lease if limited else None
        self._past, self._client = Spend(), ChatClient(config.endpoint)

    @property
    def spend(self) -> Spend:
        """See Engine."""
        return self._past + self._client.spend

    def ask(self, questions: TextQuestions, slices: Slices, hand_over: HandOver) -> None:
        """Ask all. Raises ConfigError or JudgeError for what the user has to mend, after handing over what arrived."""
        asyncio.run(self._ask(questions, slices, hand_over))

    async def _ask(self, questions: TextQuestions, slices: Slices, hand_over: HandOver) -> None:
        row: dict[bytes, int] = {}
        empty: list[int] = []
        prompts = self.prompts(questions)

        async def asked() -> AsyncIterator[Question]:
            while (which := await asyncio.to_thread(next, slices, None)) is not None:
                for q in which.tolist():
                    try:
                        messages = prompts(q)
                    except DataError:  # of the three texts one is empty
                        empty.append(q)
                        continue
                    key = questions.ids[q].tobytes()
                    row[key] = q
                    yield key, messages

        def publish(results: list[Result]) -> None:
            which = np.array([row.pop(key) for key, _ in results], dtype=np.int64)
            hand_over(answer_rows(questions, which, **self._columns([result for _, result in results])))

        self._past = self.spend
        self._client = ChatClient(self.config.endpoint, Leased(self._lease) if self._lease else None)
        try:
            async with self._client as client:
                await ask_all(client, asked(), publish)
        finally:
            if empty:
                which = np.array(empty, dtype=np.int64)
                hand_over(answer_rows(questions, which, error=[EMPTY] * len(which)))

    def prompts(self, questions: TextQuestions) -> Callable[[int], list[Message]]:
        """See `Prompter.prompts`."""
        return self.prompter.prompts(questions)

    def _columns(self, results: Sequence[Reply | Failed]) -> dict[str, object]:
        """The Answer columns of replies and failures."""
        rows = [self._row(result) for result in results]
        return {name: [row[name] for row in rows] for name in rows[0]}

    def _row(self, result: Reply | Failed) -> dict[str, object]:
        row: dict[str, object] = {"seconds": result.seconds, "attempts": result.attempts}
        row |= {"text": None, "error": None, "transient": False, "dollars": 0.0}
        row |= dict.fromkeys(("log_first", "log_second", "log_tie"))
        row |= dict.fromkeys(("prompt_tokens", "cached_tokens", "answer_tokens"), 0)
        if isinstance(result, Failed):
            return row | {"error": result.reason, "transient": result.transient}
        if result.tokens is not None:
            row |= {"prompt_tokens": result.tokens.prompt, "cached_tokens": result.tokens.cached}
            row |= {
                "answer_tokens": result.tokens.answer,
                "dollars": dollars(self.config.endpoint, result.tokens) or 0.0,
            }
        if self.config.prompt.readout != "logprob":
            return row | {"text": result.text}
        return row | letter_columns(result.logprobs or {})
