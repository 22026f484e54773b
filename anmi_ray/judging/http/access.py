"""Who may be asked, and with which key: addresses are checked before anything is sent, and a key never shows itself."""

from __future__ import annotations

import asyncio
import ipaddress
import os
import socket
from contextlib import suppress
from urllib.parse import urlsplit

from anmi_ray.config.endpoint import ServerConfig
from anmi_ray.core import redaction
from anmi_ray.core.errors import ConfigError, JudgeError

_INTERNAL = [
    ipaddress.ip_network(block)
    for block in ("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "::1/128", "fc00::/7")
]


class Key:
    """A server's key, or none. It appears in no repr and no pickle, and can be wiped from what others wrote."""

    __slots__ = ("_forms", "_value")

    def __init__(self, value: str | None) -> None:
        self._value = value
        self._forms = () if value is None else tuple(form.encode() for form in redaction.keep(value))

    def __repr__(self) -> str:
        return "Key(none)" if self._value is None else "Key(***)"

    def __reduce__(self) -> str:
        raise TypeError("a key is not pickled: every process reads it from its own environment")

    @property
    def headers(self) -> dict[str, str]:
        """The header that a request carries."""
        return {} if self._value is None else {"Authorization": f"Bearer {self._value}"}

    def scrub(self, content: bytes) -> bytes:
        """`content` with *** for the key, as it is, or as JSON, a URL or base64 write it."""
        for form in self._forms:
            if form in content:
                content = content.replace(form, redaction.HIDDEN.encode())
        return content


def place(config: ServerConfig) -> str:
    """How messages name the endpoint."""
    return f"{config.role} {config.model} at {config.base_url}"


def reach_remedy(said: str) -> str:
    """What to do where no connection comes about, by what was said of it."""
    if "CERTIFICATE_VERIFY" in said:
        return (
            "check the host in base_url, or name the file of the authority that signed its certificate in SSL_CERT_FILE"
        )
    if "SSL" in said:
        return "check whether base_url begins with http or https as the server does, and its port"
    return "start the server, or check base_url, the network and its proxies"


def read_key(config: ServerConfig) -> Key:
    """The key, from the environment variable `config.key_env`. Raises ConfigError when it holds none or not a key."""
    if config.key_env is None:
        return Key(None)
    value = os.environ.get(config.key_env, "").strip()
    if not value:
        raise ConfigError(
            f"key_env: the environment variable {config.key_env} is not set",
            place(config),
            f"export {config.key_env} in the process that asks (Ray: runtime_env env_vars), "
            "or set key_env to null where the server wants no key",
        )
    if not all("!" <= character <= "~" for character in value):
        raise ConfigError(
            f"key_env: the environment variable {config.key_env} holds blanks or characters that no header may hold",
            place(config),
            "export the key alone, on one line",
        )
    return Key(value)


async def check(config: ServerConfig) -> None:
    """Look at the key and, if its name can be resolved, the address. Raises ConfigError."""
    read_key(config)
    with suppress(JudgeError):
        await check_address(config)


async def check_address(config: ServerConfig) -> None:
    """Refuse to send texts, or a key in the clear, to an address outside this machine and private networks.

    A name counts as what it resolves to. Raises ConfigError, or JudgeError when the name cannot be resolved.
    """
    url = urlsplit(config.base_url)
    if config.allow_external and url.scheme == "https":
        return  # resolved by whoever connects, a proxy perhaps
    assert url.hostname is not None  # ServerConfig saw to it
    outside = [address for address in await _addresses(url.hostname, config) if not is_internal(address)]
    if outside and not config.allow_external:
        raise ConfigError(
            f"allow_external is false, and {url.hostname} ({outside[0]}) is neither this machine nor a private network",
            place(config),
            "set allow_external: true if queries and documents may be sent there",
        )
    if outside and config.key_env is not None:
        raise ConfigError("base_url: the key would travel unencrypted", place(config), "give an https address")


def is_internal(address: str) -> bool:
    """Whether an IP address is a loopback or private one.

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
    except (OSError, UnicodeError):  # the latter: a label longer than a name may have
        found = []
    if not found:
        raise JudgeError(f"the name {host} does not resolve", place(config), "check base_url and the network")
    return [str(entry[4][0]) for entry in found]
