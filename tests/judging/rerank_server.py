"""A rerank server in this process that does to each query what its text says, and remembers what it was sent.

"script 500 429:0 ok" meets 500, then 429 with Retry-After: 0, then an answer; every other query is answered. A
document's score is the number in it.
"""

from __future__ import annotations

import json
import re
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from anmi_ray.config.endpoint import RerankEndpointConfig
from tests.servers import listening


def number(text: str) -> float:
    """What a document scores."""
    found = re.search(r"-?\d+(\.\d+)?", text)
    return float(found.group()) if found else 0.0


def results(documents: list[str], tei: bool = False) -> list[dict[str, Any]]:
    """The answer's rows, the best first, as servers sort them."""
    name = "score" if tei else "relevance_score"
    rows = [{"index": i, name: number(text)} for i, text in enumerate(documents)]
    return sorted(rows, key=lambda row: -row[name])


SPOILED: dict[str, Any] = {
    "missing": lambda rows: rows[:-1],
    "twice": lambda rows: [*rows[:-1], rows[0]],
    "outside": lambda rows: [*rows[:-1], {**rows[-1], "index": len(rows)}],
    "negative": lambda rows: [*rows[:-1], {**rows[-1], "index": -1}],
    "truth": lambda rows: [*rows[:-1], {**rows[-1], "index": True}],
    "nan": lambda rows: [*rows[:-1], {**rows[-1], "relevance_score": float("nan")}],
    "word": lambda rows: [*rows[:-1], {**rows[-1], "relevance_score": "high"}],
    "rows": lambda rows: ["row" for _ in rows],
}


@dataclass
class Served:
    """Where it listens, and what it was sent."""

    port: int = 0
    key: str | None = None
    bodies: list[dict[str, Any]] = field(default_factory=list)
    visits: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)
    spoiled: str | None = None  # this query is answered without its last document

    def config(self, **settings: Any) -> RerankEndpointConfig:
        """Settings that lead here, quick to try again."""
        fast = {"timeout_s": 20.0, "max_wait_s": 0.05, "retries": 3, "concurrency": 4}
        return RerankEndpointConfig(
            **{"base_url": f"http://127.0.0.1:{self.port}/v1", "model": "m", **fast, **settings}
        )

    def queries(self) -> list[str]:
        """The query of every request, in order of arrival."""
        return [body["query"] for body in self.bodies]


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    served: Served

    def log_message(self, format: str, *args: Any) -> None:
        pass

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        served = self.served
        with served.lock:
            served.bodies.append(asked)
            visit = served.visits[asked["query"]]
            served.visits[asked["query"]] += 1
        words = asked["query"].split()
        action = words[1:][min(visit, len(words) - 2)] if words[0] == "script" else "ok"
        if asked["query"] == served.spoiled:
            action = "missing"
        authorization = self.headers.get("Authorization", "")
        if served.key is not None and authorization != f"Bearer {served.key}":
            self._answer(401, {"message": f"no such key: {authorization}"})
            return
        if self.path != "/v1/rerank":
            self._answer(404, {"message": "not found"})
            return
        self._perform(action, asked)

    def _perform(self, action: str, asked: dict[str, Any]) -> None:
        tei = "texts" in asked
        rows = results(asked["texts" if tei else "documents"], tei)
        good = rows if tei else {"results": rows, "usage": {"total_tokens": 7}}
        kind, _, wait = action.partition(":")
        if kind == "ok":
            self._answer(200, good)
        elif kind in SPOILED:
            self._answer(200, {"results": SPOILED[kind](rows)})
        elif kind == "cut":  # the connection ends before the body does
            self._send(200, json.dumps(good).encode(), short=True)
        elif kind == "truncated":
            self._send(200, json.dumps(good).encode()[:-9])
        elif kind == "none":
            self._answer(200, {"id": "nothing"})
        else:
            self._answer(int(kind), {"message": f"injected {kind}"}, {"Retry-After": wait} if wait else {})

    def _answer(self, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
        self._send(status, json.dumps(body).encode(), headers)

    def _send(self, status: int, content: bytes, headers: dict[str, str] | None = None, short: bool = False) -> None:
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content[: len(content) // 2] if short else content)
        self.close_connection = short


@contextmanager
def serving() -> Iterator[Served]:
    """A server of one's own."""
    served = Served()
    handler = type("Handler", (_Handler,), {"served": served})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    server.daemon_threads = True
    served.port = server.server_address[1]
    with listening(server):
        yield served
