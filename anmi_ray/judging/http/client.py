"""Clients of a model behind HTTP: a question in, a reply or a named failure out.

`Client` is shared by judges and rerankers; `ChatClient` asks judges. Only problems that the user must fix (key, model,
address, credit) are raised, and they stop the whole client.
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
from anmi_ray.judging.http import completion, connections, retry
from anmi_ray.judging.http.completion import Completion, Message, TokenCounts, UnreadableBody
from anmi_ray.judging.http.connections import Connections, Lost, Response
from anmi_ray.judging.http.limits import InFlight, Lease, Leases, Limiter, Pause, Rates
from anmi_ray.judging.http.retry import Trouble
from anmi_ray.judging.prompt import without_system
from anmi_ray.judging.spend import LONG_ANSWER, dollars
from anmi_ray.store.spend_log import Spend

_LOG = logging.getLogger(__name__)
_BYTES_PER_TOKEN = 4.0  # of JSON; assumed before the first answer
_HOPELESS = 3  # consecutive refusals before the first answer after which asking stops
_ODD = 8  # consecutive responses in an unknown format before the first answer after which asking stops
_AROUND = 1 << 17  # tokens that a server may add to a prompt; its own tokens are at most its bytes
_BEGINNING = 80  # characters of a body in a message
_CUT = Trouble("cancelled", again=False, transient=True, perhaps_billed=True)
_REFUSED = Trouble("refused", again=False, transient=True)


@dataclass(frozen=True)
class Failed:
    """A question without an answer.

    reason: short stable name.
    transient: a later run should ask again.
    detail: the server's message, if any, without the key.
    spend: its spend, without `requests`.
    """

    reason: str
    transient: bool
    seconds: float
    attempts: int
    detail: str = ""
    spend: Spend = field(default_factory=Spend)


class Readable(Protocol):
    """A parsed body; tokens: the server's count, None if it does not count."""

    @property
    def tokens(self) -> TokenCounts | None: ...


Answer = TypeVar("Answer", bound=Readable)
Config = TypeVar("Config", bound=ServerConfig)


@dataclass(frozen=True)
class Reply(Generic[Answer]):
    """A parsed answer; seconds from question to answer, including waits and retries; spend without `requests`."""

    answer: Answer
    seconds: float
    attempts: int
    spend: Spend = field(default_factory=Spend)


class Client(Generic[Config, Answer]):
    """Requests to one endpoint. Use: `async with ...Client(config) as client: ...`.

    Entering reads the key and checks the address. Raises ConfigError for either, and JudgeError if the server cannot be
    reached at first contact, or refuses the key, the model or every question.
    lease: rate limits shared with other processes; None: those of `config`, for this client alone.
    answered: the server has answered such questions before, so a refusal is about one question.
    spend: requests and spend so far, in dollars if the settings have prices.
    """

    def __init__(
        self, config: Config, lease: Leases | None = None, answer_tokens: int = 0, answered: bool = False
    ) -> None:
        self.config = config
        self._answered = answered
        self._limiter = Limiter(lease or _own_limits(config))
        self._answer_tokens = answer_tokens
        zero = self._dollars(TokenCounts(0, 0, 0))  # None without prices
        self.spend = Spend(dollars=zero, unreported_dollars=zero)
        self._in_flight = InFlight(config.concurrency)
        self._pause = Pause()
        self._connections = Connections(config)
        self._contacted = self._replied = False
        self._refused = 0
        self._odd = 0
        self._stop: AnmiError | None = None
        self._bytes, self._counted = 0, 0  # of the prompts with a token count

    @property
    def answered(self) -> bool:
        """Return whether the server is known to have answered before."""
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
        """Send one body, with retries; `key` seeds the retries' jitter, `read` parses the body of a 200.

        Raises JudgeError for problems that the user must fix; all later questions raise it too.
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
        """Return the estimated tokens of a request, from the server's counts so far."""
        per_byte = self._counted / self._bytes if self._bytes else 1 / _BYTES_PER_TOKEN
        return TokenCounts(1 + int(len(body) * per_byte), 0, self._answer_tokens)

    def _back_off(self, trouble: Trouble, key: str | bytes, attempt: int) -> float:
        """Return the seconds until this question's next attempt; an overload pauses all questions instead."""
        wait = retry.backoff(self.config, key, attempt)
        if trouble.wait is not None:
            wait = min(trouble.wait, self.config.max_wait_s)
        if not trouble.overload:
            return wait
        self._pause.pause(wait)
        _LOG.debug("%s: %s, paused for %.1f s", connections.place(self.config), trouble.reason, wait)
        return 0.0

    async def _attempt(
        self, body: bytes, estimate: TokenCounts, left: float, read: Callable[[bytes], Answer | UnreadableBody]
    ) -> tuple[float, Answer | Trouble, Spend]:
        """Send one request when it may be sent; return its seconds, its outcome and its spend."""
        async with self._in_flight.slot() as epoch:
            await self._clearance(estimate)
            began = time.monotonic()
            outcome: Answer | Trouble = _CUT
            try:
                outcome = await self._exchange(body, min(left, self.config.timeout_s), epoch, read)
            except AnmiError as error:
                self._stop = self._stop or error
                outcome = replace(_REFUSED, sent=self._contacted)
                raise
            finally:
                spent = self._settle(estimate, outcome)
            return time.monotonic() - began, outcome, spent

    async def _clearance(self, estimate: TokenCounts) -> None:
        """Wait until a request may be sent, and count it."""
        while True:
            self._raise_if_stopped()
            await self._pause.passed()
            await self._limiter.reserve(estimate.total)
            if self._pause.is_open:  # else reservations from before a pause would be sent in a burst after it
                break
            self._limiter.settle(estimate.total, 0)
        self._raise_if_stopped()
        self.spend += Spend(requests=1)

    def _raise_if_stopped(self) -> None:
        if self._stop is not None:
            raise type(self._stop)(*self._stop.args)

    def _settle(self, estimate: TokenCounts, outcome: Answer | Trouble) -> Spend:
        """Record a request's spend, and correct its reservation to the server's count, if any."""
        tokens = outcome.tokens
        spent = Spend()
        if isinstance(outcome, Trouble) and not outcome.sent:
            self.spend += Spend(requests=-1)
            self._limiter.settle(estimate.total, 0)
        elif tokens is not None:
            spent = Spend(0, tokens.prompt, tokens.cached, tokens.answer, self._dollars(tokens))
            self._limiter.settle(estimate.total, tokens.total)
        elif not isinstance(outcome, Trouble) or outcome.perhaps_billed:
            spent = Spend(unreported=1, unreported_dollars=self._dollars(estimate))
        self.spend += spent
        return spent

    def _dollars(self, tokens: TokenCounts) -> float | None:
        return dollars(self.config, tokens) if isinstance(self.config, EndpointConfig) else None

    async def _exchange(
        self, body: bytes, timeout: float, epoch: int, read: Callable[[bytes], Answer | UnreadableBody]
    ) -> Answer | Trouble:
        """Send one request and process the response within `timeout` seconds."""
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
            detail = completion.shown(lost.detail)
            what = f"the server cannot be reached ({detail})"
            raise JudgeError(what, connections.place(self.config), connections.reach_remedy(detail))
        # the server went away: pause all questions
        return Trouble(lost.reason, again=True, transient=True, overload=True, sent=False)

    def _of_response(
        self, response: Response, sent_bytes: int, read: Callable[[bytes], Answer | UnreadableBody]
    ) -> Answer | Trouble:
        self._contacted = True
        if not 200 <= response.status < 300:
            status = (response.status, response.headers, response.content)
            trouble = retry.of_status(*status, self.config, self._replied, time.time(), self._answered)
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
        """Return the trouble of a body without an answer."""
        if answer.odd:
            begins = completion.shown(response.content, _BEGINNING)
            kind = completion.shown(response.headers.get("content-type", "without content-type"), _BEGINNING)
            said = f"{kind}, {f'beginning {begins!r}' if begins else 'empty'}"
            # a body that does not start as JSON was not truncated in transit
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
        """Stop if all of the first questions are refused: the settings are wrong, not the questions."""
        self._refused += not trouble.again and trouble.transient and trouble.reason not in retry.LEARNED
        if self._refused < _HOPELESS or self._replied:
            return
        if trouble.reason == completion.NO_LOGPROBS:  # such answers cost money, even if the judge has answered before
            what = f"the server returns no log-probabilities: its first {self._refused} answers have none"
            remedy = "set prompt.readout: sign, which needs none, or ask a server that returns them, such as vLLM"
        elif self._answered:  # the settings work; one refused text may be part of many questions
            return
        else:
            detail = f": {trouble.detail}" if trouble.detail else ""
            what = f"the server refuses the questions ({trouble.reason}{detail})"
            remedy = "check model, extra and the settings that are sent as fields: null (or 0) leaves one out"
        raise JudgeError(what, connections.place(self.config), remedy)

    def _count_odd(self, reason: str, detail: str, at_once: bool = False) -> None:
        """Stop if consecutive responses have an unknown format: another kind of server is at this address."""
        self._odd += 1
        most = _ODD + 2 * self.config.concurrency if self._replied else 1 if at_once else _ODD
        if self._odd >= most:
            times = f", {self._odd} times in a row" if self._odd > 1 else ""
            raise JudgeError(
                f"{self.config.endpoint} does not answer as a {self.config.role}{times}: "
                f"{reason}{f' ({detail})' if detail else ''}",
                connections.place(self.config),
                "check base_url (http or https, the port, and that it ends as in /v1), and whether a proxy or a login "
                "page answers instead of the server",
            )


def _own_limits(config: ServerConfig) -> Leases:
    """Return the leases of a client that shares its limits with no other."""
    rates = Rates(config.requests_per_minute, getattr(config, "tokens_per_minute", None), 1)

    async def lease(requests: int, tokens: int, unused: int) -> Lease:
        return rates.lease(requests, tokens, unused)

    return lease


class ChatClient(Client[EndpointConfig, Completion]):
    """An OpenAI-compatible chat-completions endpoint.

    by_logprobs: an answer without log-probabilities is a failure.
    learned: what the server's first refusals taught (retry.LEARNED): without a system role the system message precedes
    the user's.
    """

    def __init__(
        self,
        config: EndpointConfig,
        lease: Leases | None = None,
        by_logprobs: bool = False,
        answered: bool = False,
        learned: frozenset[str] = frozenset(),
    ) -> None:
        super().__init__(config, lease, config.max_tokens or LONG_ANSWER, answered)
        self._read = completion.read_logprobs if by_logprobs else completion.read
        self.learned = learned

    async def ask(self, messages: Sequence[Message], key: str | bytes = b"") -> Reply[Completion] | Failed:
        """Ask one question, as `send` does; `key` defaults to its text."""
        known = self.learned
        field = "max_completion_tokens" if retry.NO_MAX_TOKENS in known else "max_tokens"
        sent = without_system(messages) if retry.NO_SYSTEM_ROLE in known else messages
        body = completion.request_body(self.config, sent, field)
        reply = await self.send(body, key or body, self._read)
        if not isinstance(reply, Failed) or reply.reason not in retry.LEARNED or reply.reason in known:
            return reply
        if self._replied and reply.reason not in self.learned:  # it has accepted this: the refusal has another cause
            return reply
        self.learned |= {reply.reason}
        again = await self.ask(messages, key or body)
        return replace(again, seconds=reply.seconds + again.seconds, attempts=reply.attempts + again.attempts)
