"""What every request passes before its body is parsed: whether there is room, its key, its size, its time."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse

from anmi_ray.serving.refusals import RefusalError
from anmi_ray.serving.settings import ServiceSettings

Scope = Any
Receive = Any
Send = Any

MOST_INSIDE = 1024
"""Requests that may be inside at once, whatever they ask for."""

_BODIES = 16  # bodies of the greatest size that may be in memory at once
OPEN = ("/", "/health", "/docs", "/openapi.json")  # no key is asked for
_GONE = 499  # nginx's status of a request whose client left
_DISCARD_S = 10.0


class _Exchange:
    """A request and its answer: the status that was sent, and whether the request's body has come to its end."""

    def __init__(self, receive: Receive, send: Send) -> None:
        self._receive = receive
        self._send = send
        self.status = _GONE
        self.ended = False

    @property
    def answered(self) -> bool:
        """Whether the answer has begun."""
        return self.status != _GONE

    async def receive(self) -> Any:
        """The next message of the client."""
        message = await self._receive()
        self.ended = message["type"] == "http.disconnect" or not message.get("more_body", False)
        return message

    async def send(self, message: Any) -> None:
        """The next message to the client."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
        await self._send(message)

    async def discard(self, most: int) -> None:
        """Read what is left of a body that nobody wants: a client that still writes would not read its answer."""
        try:
            async with asyncio.timeout(_DISCARD_S):
                while not self.ended and most > 0:
                    most -= len((await self.receive()).get("body", b""))
        except TimeoutError:
            return


class Gate:
    """An ASGI application around another, which gets whole bodies of JSON within the limits."""

    def __init__(
        self, app: Any, settings: ServiceSettings, paths: set[str], answered: Callable[[str, int, float], None]
    ) -> None:
        self._app = app
        self._settings = settings
        self._key = settings.key()
        self._paths = paths
        self._answered = answered
        self._bytes = 0
        self.inside = 0
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.monotonic()
        exchange = _Exchange(receive, send)
        self.inside += 1
        try:
            await self._pass(scope, exchange)
        finally:
            self.inside -= 1
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._answered(path, exchange.status, time.monotonic() - begin)

    async def _pass(self, scope: Scope, exchange: _Exchange) -> None:
        has_body = scope["method"] in ("POST", "PUT", "PATCH")
        body = b""
        try:
            try:
                headers = {name.lower(): value for name, value in scope["headers"]}
                self._check(scope, headers)
                async with asyncio.timeout(self._settings.timeout_s):
                    receive = exchange.receive
                    if has_body:
                        body = await self._body(headers, receive)
                        receive = _whole(body, receive)
                    elif headers.get(b"content-length", b"0") != b"0" or b"transfer-encoding" in headers:
                        await exchange.discard(
                            _BODIES * self._settings.max_body
                        )  # else the connection is reset, unanswered
                    else:
                        exchange.ended = True
                    await self._app(scope, receive, exchange.send)
            except TimeoutError:
                late = f"no answer within {self._settings.timeout_s:g} seconds"
                raise RefusalError(503 if exchange.ended else 408, late, 1) from None
            finally:
                self._bytes -= len(body)
        except RefusalError as refusal:
            if exchange.answered:  # the client has the beginning of an answer, and is told by its end
                return
            if has_body and refusal.status != 408:
                await exchange.discard(_BODIES * self._settings.max_body)
            answer = JSONResponse(refusal.content, refusal.status, refusal.headers)
            await answer(scope, exchange.receive, exchange.send)

    def _check(self, scope: Scope, headers: dict[bytes, bytes]) -> None:
        """Raise RefusalError where a request is turned away by what stands before its body."""
        if scope["path"] in OPEN:
            return
        if self.draining:
            raise RefusalError(503, "the service is being stopped", 5)
        if self._key is not None:
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if not (kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key)):
                raise RefusalError(401, "the API key is missing or wrong: send it as Authorization: Bearer KEY")
        if self.inside > MOST_INSIDE:
            raise RefusalError(429, f"{MOST_INSIDE:,} requests are under way already", 1)

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """The whole body; what is kept counts in `_bytes`. Raises RefusalError."""
        most = self._settings.max_body
        length = headers.get(b"content-length", b"")
        if length.isdigit() and int(length[:20]) > most:
            raise self._too_long()
        kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
        if kind != b"application/json" and not kind.endswith(b"+json"):
            raise RefusalError(415, "the body must be JSON: send it with Content-Type: application/json")
        parts: list[bytes] = []
        size = 0
        try:
            more = True
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise RefusalError(400, "the client left before its body was whole")
                part = message.get("body", b"")
                more = message.get("more_body", False)
                parts.append(part)
                size += len(part)
                self._bytes += len(part)
                if size > most:
                    raise self._too_long()
                if self._bytes > _BODIES * most:
                    raise RefusalError(429, "bodies of other requests fill the service's memory", 1)
        except BaseException:
            self._bytes -= size
            raise
        return b"".join(parts)

    def _too_long(self) -> RefusalError:
        return RefusalError(413, f"the body is longer than {self._settings.max_body:,} bytes: send fewer documents")


def _whole(body: bytes, receive: Receive) -> Receive:
    """What the application receives: the body at once, then what the server says next."""
    given = False

    async def receiving() -> Any:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receiving
