"""A hard trial of `anmi serve`: requests that no client should send, a crowd.

What is malformed is drawn from SEED.
"""

from __future__ import annotations

import http.client
import json
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from anmi_ray.models.late_interaction import LateInteraction
from tests.models.tiny import write_tiny_bert
from tests.serving.running import KEY, READY_S, Served, serving

pytestmark = [pytest.mark.faults, pytest.mark.timeout(400)]
SEED = 20261201
CLIENTS = 8
EACH = 32  # requests of a client in a block
# A leak grows in every block. A process that keeps its largest buffers grows until they have all been large once, which
# takes longer on a busy machine: blocks go on until QUIET of them in a row add no more than GROWN bytes.
BLOCKS = 8, 40
QUIET = 3
GROWN = 25e6
PATHS = ("/v1/rerank", "/v2/rerank", "/rerank", "/v1/embeddings", "/metrics", "/", "/%00", "/v1/rerank?x=%E9")
KEYS = ("query", "documents", "texts", "input", "top_n", "return_documents", "raw_scores", "encoding_format", "model")
HEADERS = {"Content-Type": "application/json", "Authorization": f"Bearer {KEY}"}
LONG = 10_000_000  # bytes of a body beyond the limit


def textual(rng: random.Random) -> str:
    return rng.choice(("", " ", "a", "\x00\x1b[31m\u202e", "𝒳 ﷽", "\ud800", "word1 " * 90, "x" * 120_000, "</script>"))


def valued(rng: random.Random, depth: int = 0) -> Any:
    kind = rng.randrange(9 if depth < 3 else 6)
    if kind < 6:
        return (None, True, rng.choice((0, -1, 10**40, 1e308, float("nan"), 2.5)), textual(rng), [], {})[kind]
    if kind == 6:
        return [valued(rng, depth + 1)] * (1 if depth else rng.choice((1, 2, 40, 1200)))
    return {rng.choice((*KEYS, "text")): valued(rng, depth + 1) for _ in range(3)}


def body_of(rng: random.Random) -> bytes:
    """A request's body, mostly nearly right."""
    sent: Any = {"query": textual(rng), rng.choice(KEYS[1:4]): [textual(rng) for _ in range(rng.randrange(5))]}
    for _ in range(rng.randrange(3)):
        sent[rng.choice(KEYS)] = valued(rng)
    kind = rng.randrange(12)
    if kind == 0:
        return b"[" * 100_000
    if kind == 1:
        return rng.randbytes(rng.randrange(300))
    if kind == 2:
        sent = valued(rng)
    body = json.dumps(sent).encode()
    return body[: rng.randrange(len(body) + 1)] if kind == 3 else body


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("service")
    model = LateInteraction.load(str(write_tiny_bert(folder / "bert", 0))).export(folder / "late")
    with serving(model, folder / "errors", "--most-replicas", "2", "--max-waiting", "3000") as found:
        yield found


def test_a_process_more_scores_while_requests_wait(served: Served) -> None:
    sent = {"query": "word1", "documents": ["word2 word3 " * 20] * 900}
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            served.post("/v1/rerank", sent)

    with ThreadPoolExecutor(6) as pool:
        for _ in range(6):
            pool.submit(ask)
        end = time.monotonic() + READY_S
        while len(served.processes()) < 2 and time.monotonic() < end:
            time.sleep(0.2)
        ended.set()
    assert len(served.processes()) == 2


def sizes(served: Served) -> dict[int, int]:
    """Bytes of the service's processes that no other process shares."""
    found = {}
    for child in psutil.Process(served.process.pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):  # a scorer that is no longer needed
            if any(name in " ".join(child.cmdline()) for name in (":Front", ":ScoringReplica", "ProxyActor")):
                found[child.pid] = child.memory_full_info().uss
    return found


def grows(measured: list[dict[int, int]]) -> dict[int, list[int]]:
    """Sizes of the processes that have grown in every QUIET blocks in a row so far."""
    found: dict[int, list[int]] = {}
    for pid in set.intersection(*map(set, measured)):
        sized = [each[pid] for each in measured]
        if (
            min((after - before for before, after in zip(sized, sized[QUIET:], strict=False)), default=GROWN + 1)
            > GROWN
        ):
            found[pid] = sized
    return found


def test_thousands_of_malformed_requests_are_answered(served: Served) -> None:
    host = urlsplit(served.address).netloc
    statuses: Counter[int] = Counter()

    def ask(client: int) -> None:
        rng = random.Random(f"{SEED}-{client}")
        with closing(http.client.HTTPConnection(host, timeout=120)) as connection:
            for _ in range(EACH):
                method = rng.choice(("POST", "POST", "POST", "POST", "PUT", "GET", "DELETE"))
                headers = HEADERS | ({"Content-Type": "text/plain"} if rng.random() < 0.05 else {})
                body = b" " * LONG if rng.random() < 0.01 else body_of(rng)
                connection.request(method, rng.choice(PATHS), body, headers)
                answer = connection.getresponse()
                content = answer.read()
                statuses[answer.status] += 1
                assert answer.status < 500 or answer.status == 503, content

    measured = [sizes(served)]
    growing = grows(measured)
    with ThreadPoolExecutor(CLIENTS) as pool:
        for block in range(BLOCKS[1]):
            list(pool.map(ask, range(CLIENTS * block, CLIENTS * (block + 1))))
            measured.append(sizes(served))
            growing = grows(measured)
            if block + 1 >= BLOCKS[0] and not growing:
                break
    assert sum(statuses.values()) == CLIENTS * EACH * (len(measured) - 1)
    assert set(statuses) >= {200, 400, 404, 405, 413, 415, 422}, statuses
    assert growing == {}
    assert served.post("/rerank", {"query": "q", "texts": ["a"]})[0] == 200


def raw(served: Served, sent: bytes, pause_s: float = 0.0) -> bytes:
    """The first bytes of what is answered to these, the last of them sent late."""
    place = urlsplit(served.address)
    with socket.create_connection((place.hostname, place.port), timeout=120) as connection:
        connection.sendall(sent[:-1])
        time.sleep(pause_s)
        connection.sendall(sent[-1:])
        return connection.recv(200)


def test_what_is_no_request_costs_its_connection_alone(served: Served) -> None:
    request = (
        f"POST /v1/rerank HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
    )
    body = b'{"query": "a", "documents": ["b"]}'
    whole = request.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    assert raw(served, whole, pause_s=1.0).startswith(b"HTTP/1.1 200")
    for broken in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # TLS
        b"GET / HTTP/9.9\r\n\r\n",
        b"BREW /v1/rerank HTTP/1.1\r\n\r\n",
        b"POST /v1/rerank HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        request.encode() + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ):
        answer = raw(served, broken)
        assert answer == b"" or answer.startswith(b"HTTP/1.1 4"), (broken[:40], answer)
    place = urlsplit(served.address)
    with ExitStack() as stack:
        for _ in range(50):  # begun, and never ended
            slow = stack.enter_context(socket.create_connection((place.hostname, place.port)))
            slow.sendall(whole[:-5])
        assert served.post("/rerank", {"query": "q", "texts": ["a"]})[0] == 200
    assert served.post("/rerank", {"query": "q", "texts": ["a"]})[0] == 200
    assert "Traceback" not in served.errors.read_text()
