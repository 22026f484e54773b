"""Servers that are not what they should be: pages, other formats, endless bodies, redirects, wrong certificates."""

from __future__ import annotations

import asyncio
import gzip
import itertools
import json
import shutil
import ssl
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.config.endpoint import EndpointConfig, RerankEndpointConfig
from anmi_ray.config.judge import ApiJudgeConfig
from anmi_ray.config.prompt import PromptConfig
from anmi_ray.core.errors import AnmiError, ConfigError, JudgeError
from anmi_ray.judging.http.client import ChatClient, Failed, Reply
from anmi_ray.judging.http.completion import TokenCounts
from anmi_ray.judging.http.reranking import RerankClient
from anmi_ray.judging.kinds.api import ApiEngine
from anmi_ray.store.spend_log import Spend
from tests.judging.serving import Chat, ask
from tests.judging.strange_server import GOOD, Answer, Stranger, page, stranger
from tests.judging.test_questions import world


def config(server: Stranger, **settings: Any) -> EndpointConfig:
    fast = {"timeout_s": 20.0, "max_wait_s": 0.01, "retries": 2, "concurrency": 4}
    return EndpointConfig(**{"base_url": server.url, "model": "m", **fast, **settings})


def asked(settings: EndpointConfig, questions: int) -> tuple[list[Any], Spend]:
    """Results of so many questions, errors for the user among them, and what was spent."""

    async def main() -> tuple[list[Any], Spend]:
        async with ChatClient(settings) as client:
            texts = (ask(f"question {i}") for i in range(questions))
            return await asyncio.gather(*map(client.ask, texts), return_exceptions=True), client.spend

    return asyncio.run(main())


def told(error: object) -> str:
    """The message of what stopped a client; it can be printed, and is short."""
    assert isinstance(error, JudgeError), error
    message = str(error)
    assert len(message) < 600
    assert message.replace("\n  remedy: ", "").isprintable()
    return message


@pytest.mark.parametrize(
    ("body", "kind", "words"),
    [
        (b"<!DOCTYPE html>\n<title>\x1b[31mSign in</title>" + b"x" * 5000, "text/html", "'<!DOCTYPE html> <title> ["),
        (b"", "text/plain", "(text/plain, empty)"),
        (b'data: {"choices": []}\n\n', "text/event-stream", "'data: {"),
        (b"null", "application/json", "beginning 'null'"),
    ],
)
def test_a_page_in_the_servers_place_stops_with_the_first_answer(body: bytes, kind: str, words: str) -> None:
    with stranger(page(body, kind)) as server:
        results, spend = asked(config(server), 20)
        message = told(results[0])
        assert f"{server.url}: /chat/completions does not answer as a judge: invalid JSON ({kind}" in message
        assert words in message
        assert "login page" in message
        assert all(isinstance(result, JudgeError) for result in results)
        assert spend.requests == len(server.heard) == 1


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ([{"choices": []}], "no choices (application/json, beginning '[{"),
        ({"error": {"message": "out of service"}}, "error in the answer (application/json, beginning '{\"error"),
        ({**GOOD, "choices": []}, "no choices"),
        (b'{"choices": [{"mess', "invalid JSON"),
    ],
)
def test_json_of_another_shape_stops_where_no_answer_has_come(body: Any, reason: str) -> None:
    with stranger(page(body)) as server:
        results, spend = asked(config(server), 100)
        message = told(results[-1])
        assert reason in message
        assert "8 times in a row" in message
        assert spend.requests == len(server.heard) <= 8 + 3  # those in flight


def test_a_reranker_of_another_shape_is_stopped_too() -> None:
    body = page({"results": [{"index": 0, "score": 0.5}]})
    with stranger(body) as server:
        settings = RerankEndpointConfig(base_url=server.url, model="m", concurrency=1, retries=0)

        async def main() -> list[Any]:
            async with RerankClient(settings) as client:
                calls = (client.score("query", ["text"], bytes([i])) for i in range(20))
                return await asyncio.gather(*calls, return_exceptions=True)

        results = asyncio.run(main())
        assert "relevance_score" in results[0].detail
        assert "/rerank does not answer as a reranker, 8 times in a row" in told(results[-1])
        assert len(server.heard) == 8


def test_a_page_that_comes_later_stops_before_all_questions_are_spent_on_it() -> None:
    portal = page(b"<html>session expired</html>", "text/html")
    with stranger(page(GOOD), portal, portal, page(GOOD), portal) as server:
        results, _ = asked(config(server, concurrency=2), 50)
        assert sum(isinstance(result, Reply) for result in results) == 2  # the pages between them were a hiccup
        assert "session expired" in told(results[-1])
        assert len(server.heard) <= 4 + 12 + 1


def written(*parts: bytes, head: bytes = b"", times: int | None = None) -> Answer:
    """Headers, then `parts` so many times, for ever where None."""

    def answer(write: Any) -> None:
        write(b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n" + head + b"\r\n")
        for _ in itertools.count() if times is None else range(times):
            for part in parts:
                write(part)

    return answer


def chunk(content: bytes) -> bytes:
    return f"{len(content):x}\r\n".encode() + content + b"\r\n"


BOMB = gzip.compress(b'{"choices": "' + b"a" * (1 << 28), compresslevel=1)  # of four times the memory that is allowed
CHUNKED = b"Transfer-Encoding: chunked\r\n"
PACKED = b"Content-Encoding: gzip\r\nContent-Length: %d\r\n" % len(BOMB)
BODIES = {
    "bomb": (written(BOMB, head=PACKED, times=1), "body too long"),
    "endless": (written(chunk(b" " * 65536), head=CHUNKED), "body too long"),
    "after the end": (
        written(chunk(gzip.compress(b"{}")), chunk(b" " * 65536), head=CHUNKED + b"Content-Encoding: gzip\r\n"),
        "body too long",
    ),
    "not asked for": (written(BOMB, head=PACKED.replace(b"gzip", b"br"), times=1), "unreadable body"),
    "no gzip": (page(b"{}", "text/html\r\nContent-Encoding: gzip"), "unreadable body"),
    "lists": (page(b"[" + b"[]," * (2 << 20) + b"[]]"), "invalid JSON"),
}
ASKER = """
import asyncio, resource, sys
from anmi_ray.config.endpoint import EndpointConfig
from anmi_ray.core.errors import JudgeError
from anmi_ray.judging.http.client import ChatClient
async def main():
    settings = EndpointConfig(base_url=sys.argv[1], model="m", retries=0, concurrency=4)
    async with ChatClient(settings) as client:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        asked = (client.ask([{"role": "user", "content": str(i)}]) for i in range(20))
        *_, last = await asyncio.gather(*asked, return_exceptions=True)
        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, type(last).__name__, last)
asyncio.run(main())
"""


@pytest.mark.parametrize("name", list(BODIES))
def test_a_body_without_bound_costs_no_memory_and_is_named(name: str) -> None:
    answer, reason = BODIES[name]
    with stranger(answer) as server:
        done = subprocess.run([sys.executable, "-c", ASKER, server.url], capture_output=True, text=True, timeout=120)
    kilobytes, kind, message = done.stdout.split(maxsplit=2)
    assert (kind, reason in message) == ("JudgeError", True), done.stdout + done.stderr
    assert int(kilobytes) < 64 * 1024


def test_a_packed_answer_is_read_and_its_connection_kept() -> None:
    content = gzip.compress(json.dumps(GOOD).encode())
    head = f"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nSet-Cookie: a=b\r\nContent-Length: {len(content)}\r\n\r\n"
    with stranger(lambda write: write(head.encode() + content)) as server:
        results, _ = asked(config(server, concurrency=1), 3)
    assert [type(result) for result in results] == [Reply] * 3
    assert not any(b"cookie" in heard.lower() for heard in server.heard)


def test_nobody_follows_a_redirect_with_the_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("A_KEY", "sk-of-somebody-else")
    with stranger(page(GOOD)) as other:
        there = f"http://u:p@127.0.0.1:{other.port}/v1/chat/completions?token=of-mine"
        with stranger(page(b"", f"text/html\r\nLocation: {there}", "307 Temporary Redirect")) as server:
            results, _ = asked(config(server, key_env="A_KEY"), 5)
            message = told(results[0])
        assert f"the server redirects to http://127.0.0.1:{other.port}/v1/chat/completions (http 307)" in message
        assert "of-mine" not in message
        assert len(server.heard) == 1
        assert not other.heard


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate with openssl")
def test_a_certificate_that_nobody_signed_is_named(tmp_path: Path) -> None:
    files = [str(tmp_path / name) for name in ("cert.pem", "key.pem")]
    make = f"openssl req -x509 -newkey rsa:2048 -nodes -days 1 -subj /CN=x -out {files[0]} -keyout {files[1]}"
    subprocess.run(make.split(), check=True, capture_output=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(*files)
    with stranger(page(GOOD), tls=context) as server:
        results, spend = asked(config(server, base_url=server.url.replace("http:", "https:")), 3)
    message = told(results[0])
    assert "cannot be reached" in message
    assert "self-signed certificate" in message
    assert "SSL_CERT_FILE" in message
    assert spend.requests == 0


def test_http_and_https_taken_for_each_other_are_named(chat: Chat) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with stranger(page(GOOD), tls=context) as server:
        results, _ = asked(config(server), 10)
        assert "8 times in a row: connection reset" in told(results[-1])
    results, _ = asked(chat.config(base_url=f"{chat.url}/v1".replace("http:", "https:")), 3)
    assert "begins with http or https as the server does" in told(results[0])


def test_a_name_that_does_not_resolve_and_one_that_no_address_has() -> None:
    for outside in (False, True):
        base = EndpointConfig(base_url="https://no-such-host.invalid/v1", model="m", allow_external=outside)
        results: list[Any] = []
        try:
            results, _ = asked(base, 2)
        except AnmiError as error:
            results = [error]
        assert "no-such-host.invalid" in told(results[0])
    with pytest.raises(ConfigError, match="base_url"):
        asked(EndpointConfig(base_url="https://a b\x00/v1", model="m", allow_external=True), 1)


@pytest.mark.parametrize(
    "usage",
    [
        {"prompt_tokens": 1 << 39, "completion_tokens": 1},
        {"prompt_tokens": 10**400},
        {"prompt_tokens": -5, "completion_tokens": -7},
        {"prompt_tokens": 1e308, "total_tokens": "many"},
        {"prompt_tokens": 9, "completion_tokens": 1 << 40, "total_tokens": -3},
        {"prompt_tokens": 1_000_000},
        [1],
    ],
)
def test_counts_of_tokens_that_cannot_be_neither_cost_nor_stall(usage: Any) -> None:
    prices = {"input_price": 10.0, "output_price": 10.0, "tokens_per_minute": 100_000.0}
    with stranger(page({**GOOD, "usage": usage})) as server:
        results, spend = asked(config(server, **prices), 5)
    assert all(isinstance(result, Reply) for result in results)
    assert all(result.answer.tokens in (None, TokenCounts(9, 0, 0)) for result in results)
    assert spend.dollars is not None
    assert spend.unreported_dollars is not None
    assert 0 <= spend.dollars + spend.unreported_dollars < 0.1


def test_a_server_without_log_probabilities_is_found_out_after_three_answers(chat: Chat) -> None:
    chat.setup(faults={"plain": 1.0})
    endpoint = chat.config(logprobs=20)
    prompt = PromptConfig(template="letters", readout="logprob")
    engine = ApiEngine(ApiJudgeConfig(kind="api", name="llm", endpoint=endpoint, prompt=prompt))
    questions = world([(q, a, b) for q in range(20) for a in range(5) for b in range(a)])
    handed: list[pa.Table] = []
    with pytest.raises(JudgeError) as stopped:
        engine.ask(questions, iter([np.arange(len(questions.query))]), handed.append)
    assert "first 3 answers" in told(stopped.value)
    assert "prompt.readout: sign" in str(stopped.value)
    assert 3 <= len(chat.log()) <= engine.spend.requests <= 6  # with those in flight, that may not have come
    answers = pa.concat_tables(handed)
    assert set(answers["error"].to_pylist()) == {"no log-probabilities"}
    assert all(answers["transient"].to_pylist())  # not a fact about the question


def test_one_answer_without_log_probabilities_is_a_failure_among_others() -> None:
    top = [{"token": "A", "logprob": -0.1}]
    choice = {**GOOD["choices"][0], "logprobs": {"content": [{**top[0], "top_logprobs": top}]}}
    with stranger(page({"choices": [choice]}), page(GOOD)) as server:

        async def main() -> list[Any]:
            async with ChatClient(config(server, logprobs=5), by_logprobs=True) as client:
                return [await client.ask(ask(f"question {i}")) for i in range(9)]

        first, *others = asyncio.run(main())
    assert isinstance(first, Reply)
    for other in others:
        assert isinstance(other, Failed)
        assert (other.reason, other.transient, other.attempts) == ("no log-probabilities", False, 1)
