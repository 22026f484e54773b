"""A model behind HTTP: one question in, a reply or a named failure out, whatever the network does in between.

`Client` is what judges and rerankers share; `ChatClient` asks judges. Only what the user has to mend (key, model,
address, credit) is raised, and stops the whole client at once.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from types import TracebackType
from typing import Any, Generic, Protocol, Self, TypeVar, cast

from anmi_ray.config.endpoint import EndpointConfig, ServerConfig
from anmi_ray.core.errors import AnmiError, JudgeError
from anmi_ray.judging.http import access, completion, retry
from anmi_ray.judging.http.completion import Completion, Message, TokenCounts, UnreadableBody
from anmi_ray.judging.http.connections import Connections, Lost, Response
from anmi_ray.judging.http.limits import InFlight, Limiter, Pause, TokenBucket
from anmi_ray.judging.http.retry import Trouble
from anmi_ray.judging.prompt import without_system
from anmi_ray.judging.spend import LONG_ANSWER, Account, Charge, Spend

_LOG = logging.getLogger(__name__)
_BYTES_PER_TOKEN = 4.0  # of JSON, before the server has counted any
_HOPELESS = 3  # questions refused one after the other before any was answered
_ODD = 8  # requests in a row that bring nothing an answer could be, before any was answered
_AROUND = 1 << 17  # tokens that a server may put around a prompt, whose own are no more than its bytes
_BEGINNING = 80  # characters of a body in a message
_CUT = Trouble("cancelled", again=False, transient=True, perhaps_billed=True)
_REFUSED = Trouble("refused", again=False, transient=True)


@dataclass(frozen=True)
class Failed:
    """A question without an answer: why, in a short stable name, and whether a later run should ask again.

    `detail`: the server's own words, if any; never the key. `spend`: what it took all the same, without `requests`.
    """

    reason: str
    transient: bool
    seconds: float
    attempts: int
    detail: str = ""
    spend: Spend = field(default_factory=Spend)


class Readable(Protocol):
    """What a readable body says, beside its answer: the tokens that it took, None where the server does not count."""

    @property
    def tokens(self) -> TokenCounts | None: ...


Answer = TypeVar("Answer", bound=Readable)
Config = TypeVar("Config", bound=ServerConfig)


@dataclass(frozen=True)
class Reply(Generic[Answer]):
    """What was read of an answer; seconds from question to answer, waits and retries included; times it was tried.

    `spend`: what all tries took, without `requests`.
    """

    answer: Answer
    seconds: float
    attempts: int
    spend: Spend = field(default_factory=Spend)


class Client(Generic[Config, Answer]):
    """Requests to one endpoint. Use: `async with ...Client(config) as client: ...`.

    Entering reads the key and checks the address. Raises ConfigError for either, and JudgeError when the server
    cannot be reached at first contact, or refuses key, model or every question.
    answered: the server has answered such questions before, so what it refuses now is about one question.
    """

    def __init__(self, config: Config, limiter: Limiter, answer_tokens: int = 0, answered: bool = False) -> None:
        self.config = config
        self._answered = answered
        self._limiter = limiter
        self._answer_tokens = answer_tokens
        self._account = Account(config)
        self._in_flight = InFlight(config.concurrency)
        self._pause = Pause()
        self._connections = Connections(config)
        self._contacted = self._replied = False
        self._refused = 0
        self._odd = 0
        self._stop: AnmiError | None = None
        self._bytes, self._counted = 0, 0  # of all prompts that the server counted the tokens of

    @property
    def spend(self) -> Spend:
        """What was sent and spent so far."""
        return self._account.spend

    @property
    def answered(self) -> bool:
        """Whether the server has ever answered, as far as is known here."""
        return self._answered or self._replied

    async def __aenter__(self) -> Self:
        await self._connections.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._connections.close()

    async def send(
        self, body: bytes, key: str | bytes, read: Callable[[bytes], Answer | UnreadableBody]
    ) -> Reply[Answer] | Failed:
        """Send one body, with retries. `key` names it: the retries' jitter is drawn from it; `read`: of a 200's body.

        Raises JudgeError for what the user has to mend; from then on every question does.
        """
        config = self.config
        deadline = retry.TIMEOUTS * config.timeout_s
        estimate = self._estimate(body)
        started = time.monotonic()
        worked = 0.0
        attempts = 0
        spend = Spend()
        while True:
            took, result, spent = await self._attempt(body, estimate, deadline - worked, read)
            spend += spent
            seconds = time.monotonic() - started
            if not isinstance(result, Trouble):
                return Reply(result, seconds, attempts + 1, spend)
            attempts += 1
            wait = self._back_off(result, key, attempts)
            worked += took + wait
            if not result.again or attempts > config.retries or worked >= deadline:
                return Failed(result.reason, result.transient, seconds, attempts, result.detail, spend)
            await asyncio.sleep(wait)

    def _estimate(self, body: bytes) -> TokenCounts:
        """What a request may take, from the tokens that the server counted so far."""
        per_byte = self._counted / self._bytes if self._bytes else 1 / _BYTES_PER_TOKEN
        return TokenCounts(1 + int(len(body) * per_byte), 0, self._answer_tokens)

    def _back_off(self, trouble: Trouble, key: str | bytes, attempt: int) -> float:
        """Seconds that this question waits of its own; an overload makes everybody wait at the gate instead."""
        wait = retry.backoff(self.config, key, attempt)
        if trouble.wait is not None:
            wait = min(trouble.wait, self.config.max_wait_s)
        if not trouble.overload:
            return wait
        self._pause.pause(wait)
        _LOG.debug("%s: %s, paused for %.1f s", access.place(self.config), trouble.reason, wait)
        return 0.0

    async def _attempt(
        self, body: bytes, estimate: TokenCounts, left: float, read: Callable[[bytes], Answer | UnreadableBody]
    ) -> tuple[float, Answer | Trouble, Spend]:
        """One request when its turn has come: the seconds it took, what became of it, and what was spent."""
        async with self._in_flight.slot() as epoch:
            charge = await self._clearance(estimate)
            began = time.monotonic()
            outcome: Answer | Trouble = _CUT
            try:
                outcome = await self._exchange(body, min(left, self.config.timeout_s), epoch, read)
            except AnmiError as error:
                self._stop = self._stop or error
                outcome = replace(_REFUSED, sent=self._contacted)
                raise
            finally:
                spent = self._settle(charge, outcome)
            return time.monotonic() - began, outcome, spent

    async def _clearance(self, estimate: TokenCounts) -> Charge:
        """Wait until a request may leave, and write down that it does."""
        while True:
            self._raise_if_stopped()
            await self._pause.passed()
            await self._limiter.reserve(1, estimate.total)
            if self._pause.is_open:  # else what was reserved before a pause would leave in a burst after it
                break
            self._limiter.settle(estimate.total, 0)
        self._raise_if_stopped()
        return self._account.open(estimate)

    def _raise_if_stopped(self) -> None:
        if self._stop is not None:
            raise type(self._stop)(*self._stop.args)

    def _settle(self, charge: Charge, outcome: Answer | Trouble) -> Spend:
        """Correct what was held back to what the server counted; what it did not count stays as estimated."""
        sent = not isinstance(outcome, Trouble) or outcome.sent
        perhaps_billed = not isinstance(outcome, Trouble) or outcome.perhaps_billed
        spent = self._account.close(charge, outcome.tokens, perhaps_billed, sent)
        if outcome.tokens is not None or not sent:
            self._limiter.settle(charge.tokens.total, outcome.tokens.total if outcome.tokens else 0)
        return spent

    async def _exchange(
        self, body: bytes, timeout: float, epoch: int, read: Callable[[bytes], Answer | UnreadableBody]
    ) -> Answer | Trouble:
        """Send one request, and learn from what comes back within `timeout` seconds."""
        response = await self._connections.post(body, timeout)
        if isinstance(response, Lost):
            outcome: Answer | Trouble = self._of_lost(response)
        else:
            outcome = self._of_response(response, len(body), read)
        if isinstance(outcome, Trouble) and outcome.overload:
            self._in_flight.overloaded(epoch)
        elif isinstance(response, Response):
            self._in_flight.answered()
        return outcome

    def _of_lost(self, lost: Lost) -> Trouble:
        if not lost.unreachable:
            if not self._contacted:
                self._count_odd(lost.reason, completion.shown(lost.detail))
            return Trouble(lost.reason, again=True, transient=True, perhaps_billed=True, detail=lost.detail)
        if not self._contacted:
            said = completion.shown(lost.detail)
            raise JudgeError(
                f"the server cannot be reached ({said})", access.place(self.config), access.reach_remedy(said)
            )
        # it went away: no use in sending it everybody's questions meanwhile
        return Trouble(lost.reason, again=True, transient=True, overload=True, sent=False)

    def _of_response(
        self, response: Response, sent_bytes: int, read: Callable[[bytes], Answer | UnreadableBody]
    ) -> Answer | Trouble:
        self._contacted = True
        if not 200 <= response.status < 300:
            said = (response.status, response.headers, response.content)
            trouble = retry.of_status(*said, self.config, self._replied, time.time(), self._answered)
            self._count_refusals(trouble)
            return trouble
        answer = read(response.content)
        if answer.tokens is not None and answer.tokens.prompt > sent_bytes + _AROUND:
            answer = replace(cast(Any, answer), tokens=None)
        if isinstance(answer, UnreadableBody):
            return self._of_unreadable(answer, response)
        self._replied = True
        self._odd = 0
        if answer.tokens is not None:
            self._bytes += sent_bytes
            self._counted += answer.tokens.prompt
        return answer

    def _of_unreadable(self, answer: UnreadableBody, response: Response) -> Trouble:
        """See `_of_response`, of a body that holds no answer."""
        if answer.odd:
            begins = completion.shown(response.content, _BEGINNING)
            kind = completion.shown(response.headers.get("content-type", "of no type"), _BEGINNING)
            said = f"{kind}, {f'beginning {begins!r}' if begins else 'empty'}"
            # what is no JSON from its first letter on has not been cut short on its way
            alien = response.content.lstrip()[:1] not in (b"{", b"[")
            self._count_odd(answer.reason, said, at_once=alien)
        else:
            self._odd = 0
        trouble = Trouble(
            answer.reason,
            again=answer.transient and answer.again,
            transient=answer.transient and (answer.again or not self._replied),
            tokens=answer.tokens,
            perhaps_billed=answer.tokens is None,
            detail=answer.detail,
        )
        self._count_refusals(trouble)
        return trouble

    def _count_refusals(self, trouble: Trouble) -> None:
        """Stop where the first questions are refused one like the other: the settings are wrong, not the questions."""
        self._refused += not trouble.again and trouble.transient and trouble.reason != retry.NO_SYSTEM_ROLE
        if self._refused < _HOPELESS or self._replied:
            return
        if trouble.reason == completion.NO_LOGPROBS:  # such answers cost money, whatever others had
            what = f"the server gives no log-probabilities: none came with its first {self._refused} answers"
            remedy = "set prompt.readout: sign, which needs none, or ask a server that gives them (vLLM does)"
        elif self._answered:  # the settings are right: a text that the server refuses stands in many questions
            return
        else:
            what = (
                f"the server refuses the questions ({trouble.reason}{': ' if trouble.detail else ''}{trouble.detail})"
            )
            remedy = f"check {self.config.optional}"
        raise JudgeError(what, access.place(self.config), remedy)

    def _count_odd(self, reason: str, said: str, at_once: bool = False) -> None:
        """Stop where request after request brings nothing that could be an answer: something else stands there."""
        self._odd += 1
        most = _ODD + 2 * self.config.concurrency if self._replied else 1 if at_once else _ODD
        if self._odd >= most:
            times = f", {self._odd} times in a row" if self._odd > 1 else ""
            raise JudgeError(
                f"no {self.config.role}'s answer comes from {self.config.endpoint}{times}: "
                f"{reason}{f' ({said})' if said else ''}",
                access.place(self.config),
                "check base_url (http or https, the port, and that it ends as in /v1), and whether a proxy or a login "
                "page answers in the server's place",
            )


class ChatClient(Client[EndpointConfig, Completion]):
    """An OpenAI-compatible chat-completions endpoint.

    by_logprobs: an answer without log-probabilities is a failure. merges_system: the server takes no system role, so
    that what it would say precedes the user's message; learnt from the server's first refusal.
    """

    def __init__(
        self,
        config: EndpointConfig,
        limiter: Limiter | None = None,
        by_logprobs: bool = False,
        answered: bool = False,
        merges_system: bool = False,
    ) -> None:
        bucket = limiter or TokenBucket(config.requests_per_minute, config.tokens_per_minute)
        super().__init__(config, bucket, config.max_tokens or LONG_ANSWER, answered)
        self._read = completion.read_logprobs if by_logprobs else completion.read
        self.merges_system = merges_system

    async def ask(self, messages: Sequence[Message], key: str | bytes = b"") -> Reply[Completion] | Failed:
        """Ask one question, with retries. `key` names it: the retries' jitter is drawn from it (default: its text).

        Raises JudgeError for what the user has to mend; from then on every question does.
        """
        merged = self.merges_system
        body = completion.request_body(self.config, without_system(messages) if merged else messages)
        reply = await self.send(body, key or body, self._read)
        if merged or not isinstance(reply, Failed) or reply.reason != retry.NO_SYSTEM_ROLE:
            return reply
        if self._replied and not self.merges_system:  # it takes a system message: the refusal is about something else
            return reply
        self.merges_system = True
        again = await self.ask(messages, key or body)
        return replace(again, seconds=reply.seconds + again.seconds, attempts=reply.attempts + again.attempts)
