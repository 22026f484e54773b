"""Connections to one server: as many as there are requests in flight, kept open between them."""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy

import httpx2

from anmi_ray.config.endpoint import ServerConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.judging.http import access
from anmi_ray.judging.http.access import Key

MOST_BYTES = 8 << 20  # of a body, unpacked, that is read
_ECHO = 3  # and as many times what was sent: some rerankers give documents back, in JSON's escapes
_HEADERS = ("retry-after", "retry-after-ms", "date", "content-type", "location")
_CONNECT_S = 10.0  # a server that takes longer to open a connection is not there
_IDLE_S = 4.0  # uvicorn, which vLLM stands on, hangs up after five: a request sent at that moment would be lost


@dataclass(frozen=True)
class Response:
    """What came back, the key wiped from it; `headers` in lower case: when to try again, what it is, and where to."""

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

    def __init__(self, config: ServerConfig, connect_s: float = _CONNECT_S) -> None:
        self._config = config
        self._connect_s = connect_s
        self._url = f"{config.base_url}{config.endpoint}"
        self._cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # a server's cookies would pile up
        self._idle: list[httpx2.AsyncClient] = []
        self._all: list[httpx2.AsyncClient] = []
        self._trust: ssl.SSLContext | None = None
        self.key = Key(None)

    async def open(self) -> None:
        """Read the key and check the address. Raises ConfigError or JudgeError."""
        try:
            httpx2.URL(self._url)
        except httpx2.InvalidURL as error:
            raise ConfigError(f"base_url: {error}", access.place(self._config), "give a plain address") from None
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
        return await self._send("POST", self._url, body, timeout)

    async def get(self, path: str, timeout: float) -> Response | Lost:
        """Read what stands at a path below base_url, as `post` does."""
        return await self._send("GET", f"{self._config.base_url}{path}", b"", timeout)

    async def _send(self, method: str, url: str, body: bytes, timeout: float) -> Response | Lost:
        client = self._idle.pop() if self._idle else self._new()
        try:
            async with asyncio.timeout(timeout), client.stream(method, url, content=body) as response:
                content = await _content(response, MOST_BYTES + _ECHO * len(body))
        except TimeoutError:
            return Lost("timeout")
        except httpx2.RequestError as error:
            return _lost(error, self._connect_s)
        except zlib.error:
            return Lost("unreadable body")
        finally:
            self._idle.append(client)
        if isinstance(content, Lost):
            return content
        headers = {name: response.headers[name] for name in _HEADERS if name in response.headers}
        return Response(response.status_code, headers, self.key.scrub(content))

    def _new(self) -> httpx2.AsyncClient:
        assert self._trust is not None, "a client is used inside `async with`"
        client = httpx2.AsyncClient(
            headers={"Content-Type": "application/json", "Accept-Encoding": "gzip", **self.key.headers},
            cookies=self._cookies,
            # the caller's time limit holds for all of a request; these would only hold for each of its parts
            timeout=httpx2.Timeout(None, connect=self._connect_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=_IDLE_S),
            verify=self._trust,
            trust_env=self._config.allow_external,  # else a proxy would see what must stay inside
        )
        self._all.append(client)
        return client


async def _content(response: httpx2.Response, most: int) -> bytes | Lost:
    """The body, unpacked piece by piece: a library that unpacks it whole makes gigabytes of a few kilobytes."""
    packing = response.headers.get("content-encoding", "").strip().lower()
    if packing not in ("", "identity", "gzip", "x-gzip", "deflate"):
        return Lost("unreadable body", detail=f"it is packed by {packing[:20]!r}, which was not asked for")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if packing not in ("", "identity") else None
    content = bytearray()
    read = 0
    async for piece in response.aiter_raw():
        read += len(piece)
        if unpacker is None:
            content += piece
        elif not unpacker.eof:  # fed beyond its end it would keep all that follows
            content += unpacker.decompress(piece, most + 1 - len(content))
        if max(read, len(content)) > most:
            return Lost("body too long", detail=f"more than {most / 1e6:,.0f} MB")
    if unpacker and read and not unpacker.eof:
        return Lost("unreadable body", detail="its packing is cut short")
    return bytes(content)


def _lost(error: httpx2.RequestError, connect_s: float) -> Lost:
    if isinstance(error, httpx2.ConnectTimeout):
        return Lost("no connection", unreachable=True, detail=f"no connection within {connect_s:g} seconds")
    if isinstance(error, httpx2.ConnectError | httpx2.ProxyError):
        return Lost("no connection", unreachable=True, detail=str(error) or type(error).__name__)
    return Lost("connection reset")
