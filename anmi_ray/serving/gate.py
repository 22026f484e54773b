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
OPEN = ("/health", "/docs", "/openapi.json")  # no key is asked for
_STARTED = "anmi.started"  # in a scope: the answer has begun
_GONE = 499  # nginx's status of a request whose client left


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
        status = _GONE

        async def noting(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                scope[_STARTED] = True
            await send(message)

        self.inside += 1
        try:
            await self._pass(scope, receive, noting)
        finally:
            self.inside -= 1
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._answered(path, status, time.monotonic() - begin)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = {name.lower(): value for name, value in scope["headers"]}
        body = b""
        try:
            try:
                self._check(scope, headers)
                async with asyncio.timeout(self._settings.timeout_s):
                    if scope["method"] in ("POST", "PUT", "PATCH"):
                        body = await self._body(headers, receive)
                        receive = _whole(body, receive)
                    await self._app(scope, receive, send)
            except TimeoutError:
                raise RefusalError(
                    503 if body else 408, f"no answer within {self._settings.timeout_s:g} seconds", 1
                ) from None
            finally:
                self._bytes -= len(body)
        except RefusalError as refusal:
            if not scope.get(_STARTED):  # else the client has the beginning of an answer, and is told by its end
                answer = JSONResponse(refusal.content, refusal.status, refusal.headers)
                await answer(scope, receive, send)

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
