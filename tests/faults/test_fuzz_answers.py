"""Thousands of answers that no server should give, through the client: each is an answer, a failure or one message.

What is mutated is drawn from SEED, as many answers as SECONDS allow.
"""

from __future__ import annotations

import asyncio
import copy
import json
import math
import random
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.config.endpoint import RerankEndpointConfig
from anmi_ray.config.judge import ApiJudgeConfig
from anmi_ray.core.errors import AnmiError
from anmi_ray.judging import kinds
from anmi_ray.judging.http.client import Failed
from anmi_ray.judging.http.connections import Connections, Lost, Response
from anmi_ray.judging.http.reranking import RerankClient, Scores
from anmi_ray.judging.kinds.api import ApiEngine
from anmi_ray.judging.preferences import of_answers
from tests.judging.test_questions import world

pytestmark = [pytest.mark.faults, pytest.mark.timeout(120)]
SEED = 20261201
SECONDS = 8.0  # of each kind of server
TOP = [{"token": token, "logprob": value} for token, value in (("A", -0.1), (" B", -2.4), ("T", -9.0))]
CHAT: dict[str, Any] = {
    "id": "chatcmpl-1", "object": "chat.completion", "created": 1, "model": "m-0001",
    "choices": [{
        "index": 0, "message": {"role": "assistant", "content": "A", "refusal": None}, "finish_reason": "stop",
        "logprobs": {"content": [{**TOP[0], "bytes": [65], "top_logprobs": TOP}]},
    }],
    "usage": {
        "prompt_tokens": 100, "completion_tokens": 2, "total_tokens": 102, "prompt_tokens_details": {"cached_tokens": 4}
    },
}  # fmt: skip
ERROR: dict[str, Any] = {"error": {"message": "no such model", "type": "invalid_request_error", "code": "bad"}}
RANKED: dict[str, Any] = {
    "results": [{"index": 1, "relevance_score": 0.9}, {"index": 0, "relevance_score": 0.1}],
    "usage": {"total_tokens": 7},
}
ODD_NUMBERS = [0, -1, True, 10**30, -(10**400), 1e308, -1e308, 1e-320, math.nan, math.inf, -math.inf, 2.5, 1 << 40]
ODD_TEXTS = [
    "",
    " ",
    "\x00\x1b[31m\u202e",
    "\ud800",
    "B" * 3000,
    "<think>",
    "yes",
    "Score: 1e999",
    "−0,5",
    "\x85" * 90,
]
ODD_HEADERS = {
    "retry-after": ["-1", "1e9", "nan", "0.0001", "9" * 12, "Fri, 31 Dec 9999 23:59:59 GMT", "Mon, 1 Jan 1 0:0", ","],
    "retry-after-ms": ["-5", "1", "inf", "x"],
    "date": ["Thu, 01 Jan 1970 00:00:00 -0000", "never", "Fri, 31 Dec 9999 23:59:59 +9999"],
    "content-type": ["text/html", "\x1b]0;x\x07", "a" * 5000, ""],
    "location": ["http://u:p@h/?k=v", "//", "\x1b[2J", "http://[", "x" * 9000],
}  # fmt: skip


def value(rng: random.Random, depth: int = 0) -> Any:
    """Something that may stand anywhere in JSON."""
    kind = rng.randrange(7 if depth < 4 else 5)
    if kind < 5:
        return (None, rng.choice(ODD_NUMBERS), rng.choice(ODD_TEXTS), [], {})[kind]
    if kind == 5:
        return [value(rng, depth + 1)] * rng.choice((1, 2, 3, 40 if not depth else 3))  # not 40⁴
    names = ("message", "content", "text", "error", "token", "logprob", "index", "detail")
    return {rng.choice(names): value(rng, depth + 1) for _ in range(3)}


def mutated(rng: random.Random, body: Any) -> Any:
    """A body in which some places hold something else, or nothing, or themselves within a list."""
    body = copy.deepcopy(body)
    for _ in range(rng.choice((0, 1, 1, 2, 5))):
        at = body
        while True:
            keys = list(at) if isinstance(at, dict) else list(range(len(at))) if isinstance(at, list) else []
            if not keys:
                break
            key = rng.choice(keys)
            if isinstance(at[key], dict | list) and at[key] and rng.random() < 0.8:
                at = at[key]
                continue
            at[key] = rng.choice((value(rng), [at[key]], copy.deepcopy(body)))
            if rng.random() < 0.2:
                del at[key]
            break
    return body


def spoiled(rng: random.Random, content: bytes) -> bytes:
    """Bytes that are cut, exchanged, repeated or put in front of others."""
    for _ in range(rng.choice((0, 0, 0, 1, 3))):
        place = rng.randrange(len(content) + 1)
        junk = rng.choice(
            (b"", b"\x00", b"\xff\xfe", b"<html>", b"[" * 3000, b'"', b"1" * 5000, b"\xef\xbb\xbf", b"\n")
        )
        content = rng.choice((content[:place], content[:place] + junk + content[place + 1 :], junk + content, b""))
    return content


def answers(rng: random.Random, good: Any) -> Callable[..., Any]:
    """What stands in the place of Connections.post: nothing is sent, and answers are mutations of good ones."""
    honest = rng.random() < 0.7  # a server that has answered once is another to the client than one that never did
    count = 0

    async def post(_: Connections, body: bytes, timeout: float) -> Response | Lost:
        nonlocal count
        count += 1
        if honest and count % 3 == 1:
            return Response(200, {}, json.dumps(good).encode())
        if rng.random() < 0.02:
            return Lost(rng.choice(("timeout", "connection reset", "body too long")))
        status = rng.choice((200, 200, 200, 200, 400, 403, 422, 429, 500, 503, 599, 204, 999))
        status = rng.choice((307, 401, 402, 404)) if rng.random() < 0.01 else status
        content = spoiled(rng, json.dumps(mutated(rng, rng.choice((good, good, ERROR)))).encode())
        headers = {name: rng.choice(some) for name, some in ODD_HEADERS.items() if rng.random() < 0.3}
        return Response(status, headers, content)

    return post


def check_message(text: str) -> None:
    assert len(text) < 600, text
    assert text.replace("\n  remedy: ", "").isprintable(), repr(text)


@pytest.mark.parametrize("readout", ["sign", "logprob"])
def test_no_answer_breaks_a_judge(readout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"{SEED} {readout}")
    endpoint = {
        "base_url": "http://127.0.0.1:9/v1", "model": "m", "logprobs": 5, "retries": 1, "max_wait_s": 1e-3,
        "concurrency": 4, "input_price": 1.0, "output_price": 2.0, "tokens_per_minute": 1e9,
    }  # fmt: skip
    prompt = {"template": "letters", "readout": readout}
    config = ApiJudgeConfig.model_validate({"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": prompt})
    questions = world([(q, a, b) for q in range(4) for a in range(4) for b in range(a)])
    every = np.arange(len(questions.query))
    until = time.monotonic() + SECONDS
    read = rounds = 0
    while time.monotonic() < until:
        rounds += 1
        handed: list[pa.Table] = []
        engine = ApiEngine(config)
        monkeypatch.setattr(Connections, "post", answers(rng, CHAT))
        try:
            engine.ask(questions, iter([every]), handed.append)
            assert sum(table.num_rows for table in handed) == len(every)
        except AnmiError as error:
            check_message(str(error))
        for table in handed:
            p, errors = of_answers(table, kinds.of(config).read_reply())
            assert np.isnan(p)[errors.is_valid().to_numpy(zero_copy_only=False)].all()
            assert ((p >= 0) & (p <= 1) | np.isnan(p)).all()
            assert all(0 <= dollars < 3 for dollars in table["dollars"].drop_null().to_pylist())
            read += table.num_rows
        spend = engine.spend
        assert min(spend.requests, spend.prompt_tokens, spend.cached_tokens, spend.answer_tokens, spend.unreported) >= 0
        assert 0 <= (spend.dollars or 0.0) + (spend.unreported_dollars or 0.0) < 3 * (1 + spend.requests)
    print(f"{read:,} answers")
    assert read > 200
    assert rounds > 10


@pytest.mark.parametrize("shape", ["cohere", "tei"])
def test_no_answer_breaks_a_reranker(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = random.Random(f"{SEED} {shape}")
    rows = [{"index": row["index"], "score": row["relevance_score"]} for row in RANKED["results"]]
    settings: dict[str, Any] = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "retries": 1, "max_wait_s": 1e-3}
    config = RerankEndpointConfig.model_validate({**settings, "shape": shape, "concurrency": 4})

    async def scored(queries: int) -> list[Any]:
        async with RerankClient(config) as client:
            calls = (client.score("query", ["one", "two"], bytes([i])) for i in range(queries))
            return await asyncio.gather(*calls, return_exceptions=True)

    until = time.monotonic() + SECONDS / 2
    read = 0
    while time.monotonic() < until:
        monkeypatch.setattr(Connections, "post", answers(rng, RANKED if shape == "cohere" else rows))
        for result in asyncio.run(scored(40)):
            if isinstance(result, Scores):
                assert np.isfinite(np.array(result.values, np.float32)).all()
            elif isinstance(result, Failed):
                check_message(result.reason + result.detail)
            else:
                assert isinstance(result, AnmiError), repr(result)
                check_message(str(result))
            read += 1
    print(f"{read:,} answers")
    assert read > 200
