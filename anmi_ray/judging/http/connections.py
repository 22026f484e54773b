"""Connections to one server, its key, and a check of its address before anything is sent."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
import ssl
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from http.cookiejar import CookieJar, DefaultCookiePolicy
from urllib.parse import urlsplit

import httpx2

from anmi_ray.config.endpoint import ServerConfig
from anmi_ray.core import redaction
from anmi_ray.core.errors import ConfigError, JudgeError

MOST_BYTES = 8 << 20  # maximum unpacked size of a body
_ECHO = 3  # plus this multiple of the request's size: some rerankers return documents, with JSON escapes
_HEADERS = ("retry-after", "retry-after-ms", "date", "content-type", "location")
_CONNECT_S = 10.0
_IDLE_S = 4.0  # uvicorn, which vLLM uses, closes idle connections after 5 s, and a request sent then would be lost
_REACH_S = 3.0
_NOT_READY = (502, 503, 504)  # from a proxy without its server, or a server that is loading its model
_OFFLINE = "anmi run and anmi plan skip this check with --offline"
_INTERNAL = [
    ipaddress.ip_network(block)
    for block in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
]


class Key:
    """A server's key, or none. It is excluded from repr and pickle, and can be removed from responses."""

    __slots__ = ("_forms", "_value")

    def __init__(self, value: str | None) -> None:
        self._value = value
        self._forms = () if value is None else tuple(form.encode() for form in redaction.keep(value))

    def __repr__(self) -> str:
        return "Key(none)" if self._value is None else "Key(***)"

    def __reduce__(self) -> str:
        raise TypeError("keys are not pickled: every process reads its own environment")

    @property
    def headers(self) -> dict[str, str]:
        """Request headers."""
        return {} if self._value is None else {"Authorization": f"Bearer {self._value}"}

    def scrub(self, content: bytes) -> bytes:
        """Return `content` with the key replaced by ***, including its forms in JSON, URLs and base64."""
        for form in self._forms:
            if form in content:
                content = content.replace(form, redaction.HIDDEN.encode())
        return content


def place(config: ServerConfig) -> str:
    """Return the name of the endpoint in messages."""
    return f"{config.role} {config.model} at {config.base_url}"


def reach_remedy(message: str) -> str:
    """Return the remedy for a failed connection, by its error message."""
    if "CERTIFICATE_VERIFY" in message:
        return (
            "check the host in base_url, or set SSL_CERT_FILE to the certificate of the authority that signed its own"
        )
    if "SSL" in message:
        return "check whether base_url begins with http or https as the server does, and its port"
    return "start the server, or check base_url, the network and its proxies"


def read_key(config: ServerConfig) -> Key:
    """Read the key from the environment variable `config.key_env`. Raises ConfigError if it is missing or malformed."""
    if config.key_env is None:
        return Key(None)
    value = os.environ.get(config.key_env, "").strip()
    if not value:
        raise ConfigError(
            f"key_env: the environment variable {config.key_env} is not set",
            place(config),
            f"export {config.key_env} in the process that asks (Ray: runtime_env env_vars), "
            "or set key_env to null if the server requires no key",
        )
    if not all("!" <= character <= "~" for character in value):
        raise ConfigError(
            f"key_env: the environment variable {config.key_env} holds blanks or characters not allowed in headers",
            place(config),
            "export the key alone, on one line",
        )
    return Key(value)


async def check_address(config: ServerConfig) -> None:
    """Refuse addresses outside this machine and private networks, unless they are allowed and the key is encrypted.

    Names are resolved. Raises ConfigError, or JudgeError if the name cannot be resolved.
    """
    url = urlsplit(config.base_url)
    if config.allow_external and url.scheme == "https":
        return  # the name may only be known to a proxy
    assert url.hostname is not None  # checked by ServerConfig
    outside = [address for address in await _addresses(url.hostname, config) if not is_internal(address)]
    if outside and not config.allow_external:
        raise ConfigError(
            f"allow_external is false, and {url.hostname} ({outside[0]}) is outside this machine and private networks",
            place(config),
            "set allow_external: true if queries and documents may be sent there",
        )
    if outside and config.key_env is not None:
        raise ConfigError("base_url: the key would travel unencrypted", place(config), "give an https address")


def is_internal(address: str) -> bool:
    """Return whether an IP address is a loopback or private address.

    >>> is_internal("127.0.0.1"), is_internal("192.168.1.5"), is_internal("8.8.8.8"), is_internal("169.254.169.254")
    (True, True, False, False)
    """
    parsed = ipaddress.ip_address(address.partition("%")[0])
    if isinstance(parsed, ipaddress.IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return any(parsed.version == block.version and parsed in block for block in _INTERNAL)


async def _addresses(host: str, config: ServerConfig) -> list[str]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):  # UnicodeError: a label that is too long
        found = []
    if not found:
        raise JudgeError(f"the name {host} does not resolve", place(config), "check base_url and the network")
    return [str(entry[4][0]) for entry in found]


@dataclass(frozen=True)
class Response:
    """A server's response without the key; `headers` in lower case, those about retries, type and redirects."""

    status: int
    headers: Mapping[str, str]
    content: bytes


@dataclass(frozen=True)
class Lost:
    """A missing or incomplete response. unreachable: no connection was made, so nothing was sent."""

    reason: str
    unreachable: bool = False
    detail: str = ""


class Connections:
    """Sends requests to a server.

    Each request in flight has its own HTTP client with one connection: a shared pool searches all its connections at
    every request, which takes most of the time of a call at 256 in flight.
    """

    def __init__(self, config: ServerConfig, connect_s: float = _CONNECT_S) -> None:
        self._config = config
        self._connect_s = connect_s
        self._url = f"{config.base_url}{config.endpoint}"
        self._cookies = CookieJar(DefaultCookiePolicy(allowed_domains=[]))  # cookies would accumulate
        self._idle: list[httpx2.AsyncClient] = []
        self._all: list[httpx2.AsyncClient] = []
        self._trust: ssl.SSLContext | None = None
        self.key = Key(None)

    async def open(self) -> None:
        """Read the key and check the address. Raises ConfigError or JudgeError."""
        try:
            httpx2.URL(self._url)
        except httpx2.InvalidURL as error:
            raise ConfigError(f"base_url: {error}", place(self._config), "give a plain address") from None
        self.key = read_key(self._config)
        await check_address(self._config)
        self._trust = httpx2.create_ssl_context()

    async def close(self) -> None:
        """Close all connections."""
        for client in self._all:
            await client.aclose()
        self._idle = []
        self._all = []
        self._trust = None

    async def post(self, body: bytes, timeout: float) -> Response | Lost:
        """Send a body and read the whole response within `timeout` seconds.

        Errors are returned: exceptions would hold the request and thus the key.
        """
        return await self._send("POST", self._url, body, timeout)

    async def get(self, path: str, timeout: float) -> Response | Lost:
        """Read a path below base_url, as `post` does."""
        return await self._send("GET", f"{self._config.base_url}{path}", b"", timeout)

    async def _send(self, method: str, url: str, body: bytes, timeout: float) -> Response | Lost:
        client = self._idle.pop() if self._idle else self._new()
        try:
            async with asyncio.timeout(timeout), client.stream(method, url, content=body) as response:
                content = await _content(response, MOST_BYTES + _ECHO * len(body))
        except TimeoutError:
            return Lost("timeout")
        except httpx2.ConnectTimeout:
            return Lost("no connection", unreachable=True, detail=f"no connection within {self._connect_s:g} seconds")
        except (httpx2.ConnectError, httpx2.ProxyError) as error:
            return Lost("no connection", unreachable=True, detail=str(error) or type(error).__name__)
        except httpx2.RequestError:
            return Lost("connection reset")
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
            # these limits hold per read; the caller's limit holds for the whole request
            timeout=httpx2.Timeout(None, connect=self._connect_s),
            limits=httpx2.Limits(max_connections=None, max_keepalive_connections=1, keepalive_expiry=_IDLE_S),
            verify=self._trust,
            trust_env=self._config.allow_external,  # otherwise a proxy could see internal texts
        )
        self._all.append(client)
        return client


async def _content(response: httpx2.Response, most: int) -> bytes | Lost:
    """Unpack the body piece by piece, with a limit: a few kilobytes may unpack to gigabytes."""
    packing = response.headers.get("content-encoding", "").strip().lower()
    if packing not in ("", "identity", "gzip", "x-gzip", "deflate"):
        return Lost("unreadable body", detail=f"content-encoding {packing[:20]!r} was not requested")
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 32) if packing not in ("", "identity") else None
    content = bytearray()
    read = 0
    async for piece in response.aiter_raw():
        read += len(piece)
        if unpacker is None:
            content += piece
        elif not unpacker.eof:  # it would buffer everything after its end
            content += unpacker.decompress(piece, most + 1 - len(content))
        if max(read, len(content)) > most:
            return Lost("body too long", detail=f"more than {most / 1e6:,.0f} MB")
    if unpacker and read and not unpacker.eof:
        return Lost("unreadable body", detail="incomplete compressed body")
    return bytes(content)


async def check(config: ServerConfig) -> None:
    """Check the key and, if its name can be resolved, the address. Raises ConfigError."""
    read_key(config)
    with suppress(JudgeError):
        await check_address(config)


async def check_reachable(config: ServerConfig) -> None:
    """Request a server's list of models; any response except a refused key or "not ready" is accepted.

    Raises ConfigError for an unusable key or address, JudgeError if the server does not respond.
    """
    connections = Connections(config, connect_s=_REACH_S)
    try:
        await connections.open()
        response = await connections.get("/models", _REACH_S)
    finally:
        await connections.close()
    if isinstance(response, Lost):
        message = response.detail or response.reason
        raise JudgeError(f"cannot be reached: {message}", place(config), f"{reach_remedy(message)}; {_OFFLINE}")
    if response.status == 401:
        what = "requires a key" if config.key_env is None else f"refuses the key in {config.key_env}"
        raise JudgeError(f"{what} (HTTP 401)", place(config), f"check key_env and the key; {_OFFLINE}")
    if response.status in _NOT_READY:
        what = f"not ready (HTTP {response.status})"
        raise JudgeError(what, place(config), f"wait until the model is loaded; {_OFFLINE}")
