"""A server in this process that answers every POST with bytes of a test's own, headers included, and remembers them."""

from __future__ import annotations

import json
import socketserver
import ssl
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

from tests.servers import listening

Write = Callable[[bytes], object]
Answer = Callable[[Write], object]  # writes status line, headers and body
GOOD: dict[str, Any] = {"choices": [{"message": {"role": "assistant", "content": "A"}, "finish_reason": "stop"}]}


def page(body: bytes | dict[str, Any] | list[Any], kind: str = "application/json", status: str = "200 OK") -> Answer:
    """A whole answer with this body."""
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n\r\n"
    return lambda write: write(head.encode() + content)


@dataclass
class Stranger:
    """Where it listens, the headers that it was sent, and what it answers, one after the other, the last for ever."""

    answers: list[Answer]
    port: int = 0
    heard: list[bytes] = field(default_factory=list)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/v1"


class _Handler(socketserver.StreamRequestHandler):
    stranger: Stranger
    tls: ssl.SSLContext | None

    def setup(self) -> None:
        if self.tls is not None:
            self.request = self.tls.wrap_socket(self.request, server_side=True)
        super().setup()

    def handle(self) -> None:
        with suppress(OSError):  # whoever asked has left
            while head := self._head():
                size = next(
                    int(line[16:]) for line in head.split(b"\r\n") if line.lower().startswith(b"content-length:")
                )
                self.rfile.read(size)
                stranger = self.stranger
                stranger.heard.append(head)
                stranger.answers[min(len(stranger.heard), len(stranger.answers)) - 1](self.wfile.write)

    def _head(self) -> bytes:
        lines: list[bytes] = []
        while (line := self.rfile.readline()) not in (b"\r\n", b""):
            lines.append(line)
        return b"".join(lines)


class _Server(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    allow_reuse_address = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """A TLS greeting that the client ends."""


@contextmanager
def stranger(*answers: Answer, tls: ssl.SSLContext | None = None) -> Iterator[Stranger]:
    """A server of one's own; with `tls` behind https."""
    made = Stranger(list(answers))
    handler = type("Handler", (_Handler,), {"stranger": made, "tls": tls})
    server = _Server(("127.0.0.1", 0), handler)
    made.port = server.server_address[1]
    with listening(server):
        yield made
