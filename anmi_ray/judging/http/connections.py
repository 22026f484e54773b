"""Connections to one server: as many as there are requests in flight, kept open between them."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Mapping
from dataclasses import dataclass

import httpx2

from anmi_ray.config.endpoint import ServerConfig
from anmi_ray.judging.http import access
from anmi_ray.judging.http.access import Key

_HEADERS = ("retry-after", "retry-after-ms", "date")
_CONNECT_S = 10.0  # a server that takes longer to open a connection is not there
_IDLE_S = 4.0  # uvicorn, which vLLM stands on, hangs up after five: a request sent at that moment would be lost


@dataclass(frozen=True)
class Response:
    """What came back, the key wiped from it; `headers` in lower case, those that say when to try again."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class Lost:
    """Nothing came back, or half of it. `unreachable`: there was no connection, so nothing was sent either."""

    reason: str
    unreachable: bool = False
    detail: str = ""


class Connections:
    """Posts bodies to the endpoint; what an answer means is the caller's business.

    Every request in flight has an HTTP client of its own, with one connection: a pool shared by n requests looks
    through all its n connections at every request, at n = 256 for most of the time that a call takes.
    """

    def __init__(self, config: ServerConfig) -> None:
        self._config = config
        self._url = f"{config.base_url}{config.endpoint}"
        self._idle: list[httpx2.AsyncClient] = []
        self._all: list[httpx2.AsyncClient] = []
        self._trust: ssl.SSLContext | None = None
        self.key = Key(None)

    async def open(self) -> None:
        """Read the key and check the address. Raises ConfigError or JudgeError."""
        self.key = access.read_key(self._config)
        await access.check_address(self._config)
        self._trust = httpx2.create_ssl_context()

    async def close(self) -> None:
        """Hang up everywhere."""
        for client in self._all:
            await client.aclose()
        self._idle = []
        self._all = []
        self._trust = None

    async def post(self, body: bytes, timeout: float) -> Response | Lost:
        """Send a body and read the whole response, a dripping one too, within `timeout` seconds.

        Errors are values: an exception would carry the request along, and that the key.
        """
        client = self._idle.pop() if self._idle else self._new()
        try:
            async with asyncio.timeout(timeout):
                response = await client.post(self._url, content=body)
        except TimeoutError:
            return Lost("timeout")
        except httpx2.RequestError as error:
            return _lost(error)
        finally:
            self._idle.append(client)
        headers = {name: response.headers[name] for name in _HEADERS if name in response.headers}
        return Response(response.status_code, headers, self.key.scrub(response.content))

    def _new(self) -> httpx2.AsyncClient:
        assert self._trust is not None, "a client is used inside `async with`"
        client = httpx2.AsyncClient(
            headers={"Content-Type": "application/json", **self.key.headers},
            # the caller's time limit holds for all of a request; these would only hold for each of its parts
            timeout=httpx2.Timeout(None, connect=_CONNECT_S),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=_IDLE_S),
            verify=self._trust,
            trust_env=self._config.allow_external,  # else a proxy would see what must stay inside
        )
        self._all.append(client)
        return client


def _lost(error: httpx2.RequestError) -> Lost:
    if isinstance(error, httpx2.ConnectError | httpx2.ConnectTimeout | httpx2.ProxyError):
        return Lost("no connection", unreachable=True, detail=str(error) or type(error).__name__)
    return Lost("unreadable body" if isinstance(error, httpx2.DecodingError) else "connection reset")
