"""The page for people, served on this machine alone: a start page, a page a person, and answers as JSON.

Every path begins with a token that only the printed address holds, so other users of the machine and other sites that a
browser visits learn and change nothing. A name that resolves to 127.0.0.1 (DNS rebinding) is refused by the header
Host, posts from another site's page by Origin, Content-Type and Sec-Fetch-Site. The page loads nothing but its own
script and style, and writes texts as text.
"""

from __future__ import annotations

import hmac
import json
import secrets
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import resources
from typing import Any
from urllib.parse import parse_qs

from anmi_ray.core.errors import ConfigError, StoreError
from anmi_ray.labelling.desk import SCREEN_SIDES, Desk

HOST = "127.0.0.1"
_LARGEST = 4096  # bytes of a request's body
_IDLE_S = 30  # a connection that says nothing so long is closed
_FILES = {
    "": ("label.html", "text/html; charset=utf-8"),
    "label.css": ("label.css", "text/css; charset=utf-8"),
    "label.js": ("label.js", "text/javascript; charset=utf-8"),
}
_HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "base-uri 'none'; form-action 'self'; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-store",
}


class LabelServer(ThreadingHTTPServer):
    """Serves a desk at `address`. ConfigError: the port is taken."""

    daemon_threads = True
    allow_reuse_address = True

    def __init__(self, desk: Desk, port: int = 0) -> None:
        self.desk = desk
        self.token = secrets.token_urlsafe(18)
        try:
            super().__init__((HOST, port), _Handler)
        except OSError as error:
            remedy = "give another --port, or none: a free one is taken"
            raise ConfigError(f"port {port} cannot be opened: {error.strerror}", "--port", remedy) from None

    @property
    def address(self) -> str:
        """Where a browser opens it."""
        return f"http://{HOST}:{self.server_port}/{self.token}/"

    @contextmanager
    def serving(self) -> Iterator[None]:
        """Answer requests, in threads, while inside."""
        thread = threading.Thread(target=self.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True)
        thread.start()
        try:
            yield
        finally:
            self.shutdown()
            thread.join()
            self.server_close()


class _RefusedError(Exception):
    """A request that is not carried out, and what its sender is told."""

    def __init__(self, status: HTTPStatus, message: str) -> None:
        super().__init__(message)
        self.status = status


class _Handler(BaseHTTPRequestHandler):
    server: LabelServer  # type: ignore[assignment]
    protocol_version = "HTTP/1.1"
    server_version = "anmi"
    sys_version = ""
    timeout = _IDLE_S

    def do_GET(self) -> None:
        self._carry_out(self._get)

    def do_POST(self) -> None:
        self._carry_out(self._post)

    def log_message(self, format: str, *args: Any) -> None:
        """Nothing: addresses hold the token."""

    def _carry_out(self, what: Any) -> None:
        try:
            self._check_sender()
            what()
        except _RefusedError as refused:
            self.close_connection = True  # its body may not have been read
            self._json({"error": str(refused)}, refused.status)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True  # the browser has gone

    def _check_sender(self) -> None:
        port = self.server.server_port
        hosts = (f"{HOST}:{port}", f"localhost:{port}")
        if self.headers.get("Host") not in hosts:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "another host is asked for")
        origin = self.headers.get("Origin")
        if origin is not None and origin not in [f"http://{host}" for host in hosts]:
            raise _RefusedError(HTTPStatus.FORBIDDEN, "another site asks")
        token = self._parts()[0].split("/")[1:2]
        if not hmac.compare_digest("".join(token).encode(), self.server.token.encode()):
            raise _RefusedError(HTTPStatus.FORBIDDEN, "this session has another address: open the one it printed")

    def _parts(self) -> tuple[str, str]:
        """The path and the query of the address."""
        path, _, query = self.path.partition("?")
        return path, query

    def _get(self) -> None:
        path, query = self._parts()
        name = path.removeprefix(f"/{self.server.token}").removeprefix("/")
        if path == f"/{self.server.token}":
            self.send_response(HTTPStatus.MOVED_PERMANENTLY)
            self._end({"Location": f"/{self.server.token}/"}, b"")
        elif name in _FILES:
            file, kind = _FILES[name]
            self._send(resources.files("anmi_ray.labelling").joinpath("page", file).read_bytes(), kind)
        elif name == "people":
            desk = self.server.desk
            self._json({"people": desk.people, "free": desk.free})
        elif name == "pair":
            asked = {key: values[-1] for key, values in parse_qs(query).items()}
            person = self._seated(asked.get("person"))
            self._json(self.server.desk.look(person, self._place(person, asked["at"]) if "at" in asked else None))
        else:
            raise _RefusedError(HTTPStatus.NOT_FOUND, "there is no such page")

    def _post(self) -> None:
        if self._parts()[0] != f"/{self.server.token}/answer":
            raise _RefusedError(HTTPStatus.NOT_FOUND, "there is no such page")
        if self.headers.get_content_type() != "application/json":
            raise _RefusedError(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "an answer is JSON")
        if self.headers.get("Sec-Fetch-Site", "same-origin") != "same-origin":
            raise _RefusedError(HTTPStatus.FORBIDDEN, "another site asks")
        said = self._body()
        side = said.get("side")
        if side not in SCREEN_SIDES:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, f"side is one of {', '.join(SCREEN_SIDES)}")
        person = self._seated(said.get("person"))
        try:
            self._json(self.server.desk.answer(person, self._place(person, said.get("at"), last=False), side))
        except StoreError as error:
            raise _RefusedError(HTTPStatus.INTERNAL_SERVER_ERROR, f"the answer is not kept: {error}") from None

    def _seated(self, name: object) -> str:
        """A person who has a seat now."""
        fault = self.server.desk.join(name) if isinstance(name, str) else "a name is missing"
        if not isinstance(name, str) or fault is not None:
            raise _RefusedError(HTTPStatus.FORBIDDEN, str(fault))
        return name

    def _place(self, person: str, at: object, last: bool = True) -> int:
        """The number of one of a person's pairs; behind the last, where that may be, all is answered."""
        size = self.server.desk.size(person) + last
        if isinstance(at, str) and at.isascii() and at.isdigit() and len(at) < 10:
            at = int(at)
        if not isinstance(at, int) or isinstance(at, bool) or not 0 <= at < size:
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "there is no such pair")
        return at

    def _body(self) -> dict[str, Any]:
        length = self.headers.get("Content-Length", "")
        if not (length.isascii() and length.isdigit()) or int(length) > _LARGEST:
            raise _RefusedError(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"an answer has at most {_LARGEST} bytes")
        try:
            said = json.loads(self.rfile.read(int(length)))
        except (ValueError, RecursionError):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "an answer is JSON") from None
        if not isinstance(said, dict):
            raise _RefusedError(HTTPStatus.BAD_REQUEST, "an answer is a JSON object")
        return said

    def _json(self, content: Any, status: HTTPStatus = HTTPStatus.OK) -> None:
        self._send(json.dumps(content).encode(), "application/json", status)

    def _send(self, data: bytes, kind: str, status: HTTPStatus = HTTPStatus.OK) -> None:
        self.send_response(status)
        self._end({"Content-Type": kind}, data)

    def _end(self, headers: dict[str, str], data: bytes) -> None:
        for name, value in {**_HEADERS, **headers, "Content-Length": str(len(data))}.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)
