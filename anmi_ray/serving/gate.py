"""Check the key, the size and the content type of a request before its body is parsed, and bound its time."""

from __future__ import annotations

import asyncio
import hmac
import time
from collections.abc import Callable
from typing import Any

from starlette.responses import JSONResponse
from starlette.types import Receive, Scope, Send

from anmi_ray.serving.settings import ServiceSettings
from anmi_ray.serving.wire import RefusalError

MAX_INSIDE = 1024
"""Maximum number of concurrent requests."""

OPEN = ("/", "/health", "/docs", "/openapi.json")  # paths without a key
_CLIENT_LEFT = 499  # nginx's status of a request whose client left
_DISCARDED_BODIES = 16  # bodies of the maximum size to read and discard, so that the client reads its answer


class Gate:
    """An ASGI application around another, which gets complete JSON bodies within the limits."""

    def __init__(
        self, app: Any, settings: ServiceSettings, paths: set[str], answered: Callable[[str, int, float], None]
    ) -> None:
        self._app = app
        self._settings = settings
        self._key = settings.key()
        self._paths = paths
        self._answered = answered
        self.inside = 0
        self.draining = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        begin = time.monotonic()
        status = _CLIENT_LEFT

        async def sending(message: Any) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        body: bytes | None = None
        self.inside += 1
        try:
            async with asyncio.timeout(self._settings.timeout_s):
                refusal = self._refusal(scope)
                body = await self._body(receive, 0 if refusal else self._settings.max_body)
                if refusal is not None:
                    raise refusal
                await self._app(scope, _once(body, receive), sending)
        except (TimeoutError, RefusalError) as error:
            if isinstance(error, TimeoutError):
                late = f"no answer within {self._settings.timeout_s:g} seconds"
                error = RefusalError(408 if body is None else 503, late, 1)
            if status == _CLIENT_LEFT:  # else the answer has begun
                await JSONResponse(error.content, error.status, error.headers)(scope, receive, sending)
        finally:
            self.inside -= 1
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._answered(path, status, time.monotonic() - begin)

    def _refusal(self, scope: Scope) -> RefusalError | None:
        """Check a request by its path and headers."""
        headers = {name.lower(): value for name, value in scope["headers"]}
        if scope["path"] not in OPEN:
            if self.draining:
                return RefusalError(503, "the service is being stopped", 5)
            kind, _, given = headers.get(b"authorization", b"").partition(b" ")
            if self._key is not None and not (
                kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key)
            ):
                return RefusalError(401, "the API key is missing or wrong: send it as Authorization: Bearer KEY")
            if self.inside > MAX_INSIDE:
                return RefusalError(429, f"{MAX_INSIDE:,} requests are under way already", 1)
        if scope["method"] in ("POST", "PUT", "PATCH"):
            length = headers.get(b"content-length", b"")
            if length.isdigit() and int(length[:20]) > self._settings.max_body:
                return self._too_long()
            kind = headers.get(b"content-type", b"").partition(b";")[0].strip().lower()
            if kind != b"application/json" and not kind.endswith(b"+json"):
                return RefusalError(415, "the body must be JSON: send it with Content-Type: application/json")
        return None

    async def _body(self, receive: Receive, most: int) -> bytes:
        """Read the whole body, at most `most` bytes; 0: discard it. Raises RefusalError if it is longer."""
        parts: list[bytes] = []
        size = 0
        more = True
        while more and size <= _DISCARDED_BODIES * self._settings.max_body:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise RefusalError(400, "the client left before its body was complete")
            more = message.get("more_body", False)
            size += len(message.get("body", b""))
            if size <= most:
                parts.append(message.get("body", b""))
        if most and size > most:
            raise self._too_long()
        return b"".join(parts)

    def _too_long(self) -> RefusalError:
        return RefusalError(413, f"the body is longer than {self._settings.max_body:,} bytes: send fewer documents")


def _once(body: bytes, receive: Receive) -> Receive:
    """Give the application the body at once, then the server's messages."""
    pending = [{"type": "http.request", "body": body, "more_body": False}]

    async def receiving() -> Any:
        return pending.pop() if pending else await receive()

    return receiving
