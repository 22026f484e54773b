"""Rerankers behind HTTP, against a server in this process that misbehaves as it is told."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from anmi_ray.config.endpoint import RerankEndpointConfig
from anmi_ray.core.errors import ConfigError, JudgeError
from anmi_ray.judging.http.client import Failed
from anmi_ray.judging.http.completion import UnreadableBody
from anmi_ray.judging.http.reranking import RerankClient, Scores, read, request_body
from tests.judging.rerank_server import SPOILED, Served, results, serving

DOCUMENTS = ["about 3", "about 1.5", "about -2", "about 9", "about 0"]
SCORES = (3.0, 1.5, -2.0, 9.0, 0.0)


@pytest.fixture
def server() -> Iterator[Served]:
    with serving() as served:
        yield served


def ask(config: RerankEndpointConfig, *queries: str, documents: list[str] = DOCUMENTS) -> list[Scores | Failed]:
    async def all_of() -> list[Scores | Failed]:
        async with RerankClient(config) as client:
            return [await client.score(query, documents, query.encode()) for query in queries]

    return asyncio.run(all_of())


def test_scores_come_in_the_order_of_the_documents(server: Served) -> None:
    (found,) = ask(server.config(extra={"max_tokens_per_doc": 64}), "a query")
    assert isinstance(found, Scores)
    assert found.values == SCORES
    (body,) = server.bodies
    assert body == {
        "model": "m", "query": "a query", "documents": DOCUMENTS, "top_n": len(DOCUMENTS), "max_tokens_per_doc": 64
    }  # fmt: skip


@pytest.mark.parametrize("size", [1, 2, 4, 5, 100])
def test_bounded_calls_give_the_same_scores(server: Served, size: int) -> None:
    (found,) = ask(server.config(documents_per_call=size), "a query")
    assert isinstance(found, Scores)
    assert found.values == SCORES
    sent = [len(body["documents"]) for body in server.bodies]
    assert sum(sent) == len(DOCUMENTS)
    assert max(sent) <= size
    assert len(sent) == -(-len(DOCUMENTS) // size)


def test_the_shape_of_text_embeddings_inference(server: Served) -> None:
    (found,) = ask(server.config(shape="tei"), "a query")
    assert isinstance(found, Scores)
    assert found.values == SCORES
    (body,) = server.bodies
    assert body == {"query": "a query", "texts": DOCUMENTS, "raw_scores": True, "truncate": True}


@pytest.mark.parametrize("script", ["429:0 ok", "500 500 500 ok", "cut ok", "truncated ok", "none ok", "503:0 408 ok"])
def test_what_passes_is_tried_again(server: Served, script: str) -> None:
    query = f"script {script}"
    (found,) = ask(server.config(), query)
    assert isinstance(found, Scores)
    assert found.values == SCORES
    assert server.queries() == [query] * len(script.split())


def test_a_wait_that_the_server_asks_for_is_kept(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[float] = []
    from anmi_ray.judging.http.limits import Pause

    pause = Pause.pause
    monkeypatch.setattr(Pause, "pause", lambda self, seconds: (waited.append(seconds), pause(self, seconds))[1])
    ask(server.config(max_wait_s=1.0), "script 429:0.02 ok")
    assert waited == [0.02]


@pytest.mark.parametrize(
    ("script", "reason"),
    [("500", "http 500"), ("truncated", "invalid JSON"), ("cut", "connection reset"), ("429:0", "http 429")],
)
def test_what_does_not_pass_is_a_failure_for_a_later_run(server: Served, script: str, reason: str) -> None:
    _, found = ask(server.config(), "good", f"script {script}")
    assert isinstance(found, Failed)
    assert found.transient
    assert (found.reason, found.attempts) == (reason, 4)


PLACES = {
    "missing": ("documents without a score", "1 of 5 documents have no score, the first is document 2"),
    "twice": ("document scored twice", "results[4].index is 3, which an earlier result has"),
    "outside": ("index out of range", "results[4].index is 5 of 5 documents"),
    "negative": ("index out of range", "results[4].index is -1 of 5 documents"),
    "truth": ("index out of range", "results[4].index is True of 5 documents"),
    "nan": ("score is not a finite number", "results[4].relevance_score is nan"),
    "word": ("score is not a finite number", "results[4].relevance_score is 'high'"),
    "rows": ("index out of range", "results[0].index is None of 5 documents"),
}


@pytest.mark.parametrize("kind", list(SPOILED))
def test_scores_of_other_documents_are_refused_with_their_place(server: Served, kind: str) -> None:
    _, found = ask(server.config(), "good", f"script {kind}")
    assert isinstance(found, Failed)
    assert not found.transient
    assert (found.reason, found.detail) == PLACES[kind]
    assert server.visits[f"script {kind}"] == 1


def test_one_call_that_fails_fails_its_query_alone(server: Served) -> None:
    found = ask(server.config(documents_per_call=2), "good", "script 400", "another")
    assert [type(one) for one in found] == [Scores, Failed, Scores]


def test_a_key_is_sent_and_never_said(server: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    server.key = "s3cret-of-mine"
    monkeypatch.setenv("RERANK_KEY", server.key)
    (found,) = ask(server.config(key_env="RERANK_KEY"), "a query")
    assert isinstance(found, Scores)
    monkeypatch.setenv("RERANK_KEY", "wrong-s3cret")
    with pytest.raises(JudgeError, match=r"reranker m at .* refuses the key in RERANK_KEY") as error:
        ask(server.config(key_env="RERANK_KEY"), "a query")
    assert "s3cret" not in str(error.value)
    assert "no such key: Bearer ***" in str(error.value)
    monkeypatch.delenv("RERANK_KEY")
    with pytest.raises(ConfigError, match="RERANK_KEY is not set"):
        ask(server.config(key_env="RERANK_KEY"), "a query")


def test_nothing_leaves_for_an_address_outside(server: Served) -> None:
    with pytest.raises(ConfigError, match="allow_external is false"):
        ask(server.config(base_url="http://8.8.8.8/v1"), "a query")
    assert not server.bodies


def test_a_server_that_is_not_there_or_knows_no_such_path_is_said(server: Served) -> None:
    with pytest.raises(JudgeError, match="has no model m"):
        ask(server.config(base_url=f"http://127.0.0.1:{server.port}/v7"), "a query")
    with pytest.raises(JudgeError, match="cannot be reached"):
        ask(server.config(base_url="http://127.0.0.1:1/v1"), "a query")


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"base_url": "http://h/v1/rerank"}, "must end before /rerank"),
        ({"base_url": "http://user:pw@h/v1"}, "no user, password or query"),
        ({"key_env": "sk-12345"}, "name of an environment variable"),
        ({"extra": {"top_n": 3}}, "top_n: set by this program"),
        ({"documents_per_call": 0}, "documents_per_call"),
        ({"shape": "other"}, "shape"),
    ],
)
def test_settings_that_cannot_be_meant(wrong: dict[str, object], said: str) -> None:
    with pytest.raises(ValidationError, match=said) as error:
        RerankEndpointConfig(**{"base_url": "http://h/v1", "model": "m", **wrong})  # pyright: ignore[reportArgumentType]
    assert "sk-12345" not in str(error.value)
    assert "pw@" not in str(error.value)


@given(st.lists(st.floats(-1e6, 1e6), min_size=1, max_size=12), st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_any_order_of_results_reads_alike_and_no_part_of_them_does(values: list[float], random: object) -> None:
    rows = [{"index": i, "relevance_score": value} for i, value in enumerate(values)]
    random.shuffle(rows)  # type: ignore[attr-defined]
    content = json.dumps({"results": rows}).encode()
    assert read(content, len(values), "cohere") == Scores(tuple(values))
    assert isinstance(read(json.dumps({"results": rows[1:]}).encode(), len(values), "cohere"), UnreadableBody)
    assert isinstance(read(content, len(values) + 1, "cohere"), UnreadableBody)
    for end in range(len(content) - 1):
        assert isinstance(read(content[:end], len(values), "cohere"), UnreadableBody)


def test_text_that_utf8_cannot_hold_is_sent_all_the_same() -> None:
    config = RerankEndpointConfig(base_url="http://h", model="m")
    assert json.loads(request_body(config, "\ud800", ["a"]))["query"] == "?"


@pytest.mark.parametrize("value", ["1e39", "-" + "9" * 400, "[" * 900 + "]" * 900, "{}"])
def test_a_score_that_four_bytes_cannot_hold_is_no_number(value: str) -> None:
    content = f'{{"results": [{{"index": 0, "relevance_score": {value}}}]}}'.encode()
    answer = read(content, 1, "cohere")
    assert isinstance(answer, UnreadableBody)
    assert answer.reason == "score is not a finite number"
    assert len(answer.detail) < 100


def test_the_server_sorts() -> None:
    assert [row["index"] for row in results(DOCUMENTS)] == [3, 0, 1, 4, 2]
