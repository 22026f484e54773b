"""The service over its ASGI application, without Ray and without a model: wire formats, limits, refusals, batches."""

from __future__ import annotations

import asyncio
import base64
import contextvars
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx2
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anmi_ray.core.errors import ConfigError
from anmi_ray.evaluation.relevance import RelevanceCurve
from anmi_ray.serving import queue
from anmi_ray.serving.queue import ServiceMeters
from anmi_ray.serving.scorer import Computed, ModelInfo, Task
from anmi_ray.serving.service import RerankService
from anmi_ray.serving.settings import ServiceSettings, validated
from anmi_ray.serving.wire import RefusalError

T = TypeVar("T")
Client = httpx2.AsyncClient
DIMENSIONS = 3
MAX_TOKENS = 256


class Model:
    """Scores by a text's length, once `released`; keeps the texts of its batches."""

    def __init__(self, held: bool = False, vectors: bool = True, curve: RelevanceCurve | None = None) -> None:
        self.released = asyncio.Event()
        self.vectors = vectors
        self.model = ModelInfo(curve=curve)
        self.batches: list[list[str]] = []
        if not held:
            self.released.set()

    async def __call__(self, task: Task, queries: list[str], texts: list[str]) -> Computed:
        self.batches.append(texts)
        await self.released.wait()
        await asyncio.sleep(0)
        if any("poison" in text for text in texts):
            raise ValueError("poison")
        tokens = np.array([1 + len(text) for text in texts])
        scores = np.array([len(text) / 8 - len(query) for query, text in zip(queries, texts, strict=True)], np.float32)
        vectors = np.repeat(scores[:, None], DIMENSIONS, 1) if self.vectors else None
        return Computed(scores if task == "score" else vectors, tokens, self.model, MAX_TOKENS)


def service(model: Model | None = None, **given: Any) -> RerankService:
    return RerankService(validated({"model": "folder", "name": "tiny", **given}), model or Model())


def talk(made: RerankService, body: Callable[[Client], Awaitable[T]]) -> T:
    async def main() -> T:
        transport = httpx2.ASGITransport(made.app, raise_app_exceptions=False)
        async with Client(transport=transport, base_url="http://anmi", timeout=30) as client:
            return await body(client)

    return asyncio.run(main())


def post(made: RerankService, path: str, sent: Any = None, **more: Any) -> httpx2.Response:
    more = more if sent is None else {"json": sent, **more}
    return talk(made, lambda client: client.post(path, **more))


DOCUMENTS = ["three", "a", {"text": "the longest", "id": 7}, "three"]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank"])
def test_coheres_and_jinas_shape(path: str) -> None:
    sent = {"model": "rerank-v3.5", "query": "q", "documents": DOCUMENTS, "top_n": 3, "max_tokens_per_doc": 4096}
    found = post(service(), path, sent).json()
    assert found.keys() >= {"id", "model", "results", "meta", "usage"}
    assert found["model"] == "tiny"
    assert [row["index"] for row in found["results"]] == [2, 0, 3], "by score, then by index"
    assert [row.keys() for row in found["results"]] == [{"index", "relevance_score"}] * 3
    scores = [row["relevance_score"] for row in found["results"]]
    assert scores == pytest.approx([1 / (1 + np.exp(1 - n / 8)) for n in (11, 5, 5)])
    assert found["meta"]["billed_units"] == {"search_units": 1}
    assert found["usage"] == {"prompt_tokens": 26, "total_tokens": 26}
    shown = post(service(), path, {**sent, "return_documents": True, "raw_scores": True}).json()["results"]
    assert [row["document"] for row in shown] == [{"text": "the longest"}, {"text": "three"}, {"text": "three"}]
    assert shown[0]["relevance_score"] == 11 / 8 - 1


def test_vllms_shape_returns_documents_unless_told_not_to() -> None:
    sent = {"query": "q", "documents": ["a", "bb"]}
    first = post(service(), "/rerank", sent).json()["results"][0]
    assert first == {"index": 1, "relevance_score": first["relevance_score"], "document": {"text": "bb"}}
    assert "document" not in post(service(), "/rerank", {**sent, "return_documents": False}).json()["results"][0]


def test_teis_shape() -> None:
    sent = {"query": "q", "texts": ["a", "bbbb"], "raw_scores": True, "truncate": True}
    assert post(service(), "/rerank", sent).json() == [{"index": 1, "score": -0.5}, {"index": 0, "score": -0.875}]
    found = post(service(), "/rerank", {**sent, "raw_scores": False, "return_text": True}).json()
    assert found == [
        {"index": 1, "score": pytest.approx(1 / (1 + np.exp(0.5))), "text": "bbbb"},
        {"index": 0, "score": pytest.approx(1 / (1 + np.exp(0.875))), "text": "a"},
    ]


def test_a_calibrated_model_answers_with_probabilities_and_leaves_out_what_is_less() -> None:
    curve = RelevanceCurve("logistic", intercept=-1.0, slope=4.0)
    made = service(Model(curve=curve))
    expected = {2: curve.of(11 / 8 - 1), 0: curve.of(5 / 8 - 1), 3: curve.of(5 / 8 - 1), 1: curve.of(1 / 8 - 1)}
    sent = {"query": "q", "documents": DOCUMENTS}

    def ranked(**more: Any) -> list[tuple[int, float]]:
        found = post(made, "/v2/rerank", {**sent, **more}).json()["results"]
        return [(row["index"], row["relevance_score"]) for row in found]

    assert ranked() == [(index, pytest.approx(float(value))) for index, value in expected.items()]
    least = float(expected[0])
    assert [index for index, _ in ranked(min_relevance=least)] == [2, 0, 3]
    assert ranked(min_relevance=least, raw_scores=True, top_n=2) == [(2, 11 / 8 - 1), (0, 5 / 8 - 1)]
    assert ranked(min_relevance=1) == []
    tei = post(made, "/rerank", {"query": "q", "texts": ["three", "the longest"], "min_relevance": 0.5}).json()
    assert tei == [{"index": 1, "score": pytest.approx(float(expected[2]))}]


def test_null_is_what_nobody_set() -> None:
    """LiteLLM's and OpenAI's clients send it; of vLLM's the default top_n is 0, which is all."""
    sent = {"query": "q", "documents": DOCUMENTS}
    unset = dict.fromkeys(("top_n", "return_documents", "raw_scores", "rank_fields", "min_relevance", "texts"))
    found = [post(service(), "/v1/rerank", {**sent, **more}).json()["results"] for more in ({}, unset)]
    assert found[0] == found[1]
    assert len(post(service(), "/rerank", {**sent, **unset, "top_n": 0}).json()["results"]) == len(DOCUMENTS)
    unset = dict.fromkeys(("encoding_format", "dimensions", "input_type"))
    found = [post(service(), "/v1/embeddings", {"input": "a", **more}).json()["data"] for more in ({}, unset)]
    assert found[0] == found[1]


def test_openais_shape() -> None:
    found = post(service(), "/v1/embeddings", {"input": ["eight ch", "a"], "model": "m"}).json()
    assert found["data"][0] == {"object": "embedding", "index": 0, "embedding": [1.0] * DIMENSIONS}
    assert [found["object"], found["model"]] == ["list", "tiny"]
    assert found["usage"] == {"prompt_tokens": 11, "total_tokens": 11}
    coded = post(service(), "/v1/embeddings", {"input": "eight ch", "encoding_format": "base64"}).json()
    written = base64.b64decode(coded["data"][0]["embedding"])
    assert np.frombuffer(written, "<f4").tolist() == [1.0] * DIMENSIONS
    refused = post(service(), "/v1/embeddings", {"input": "a", "dimensions": 2})
    assert [refused.status_code, refused.json()["error"]["code"]] == [400, 400]
    without = post(service(Model(vectors=False)), "/v1/embeddings", {"input": "a"})
    assert without.status_code == 400
    assert "tiny has no vector of a text" in without.json()["error"]["message"]


def test_vllms_scores_are_those_of_rerank_in_the_order_of_the_pairs() -> None:
    found = post(service(), "/v1/score", {"text_1": "q", "text_2": ["a", "bbbb"], "raw_scores": True}).json()
    assert [(row["index"], row["object"], row["score"]) for row in found["data"]] == [
        (0, "score", -0.875),
        (1, "score", -0.5),
    ]
    assert [found["object"], found["model"], found["usage"]["total_tokens"]] == ["list", "tiny", 7]
    paired = post(service(), "/score", {"text_1": ["q", "qq"], "text_2": ["a", "bbbb"]}).json()["data"]
    assert [row["score"] for row in paired] == pytest.approx([1 / (1 + np.exp(0.875)), 1 / (1 + np.exp(1.5))])
    assert post(service(), "/v1/score", {"text_1": ["q", "qq"], "text_2": ["a"]}).status_code == 422


def test_teis_vectors_and_limits_and_openais_list_of_models() -> None:
    assert post(service(), "/embed", {"inputs": ["eight ch", "a"]}).json() == [[1.0] * DIMENSIONS, [0.125] * DIMENSIONS]
    assert post(service(), "/embed", {"inputs": "a", "normalize": False}).status_code == 422
    info = talk(service(max_documents=7), lambda client: client.get("/info")).json()
    assert [info[name] for name in ("model_id", "max_input_length", "max_client_batch_size")] == ["tiny", MAX_TOKENS, 7]
    models = talk(service(), lambda client: client.get("/v1/models")).json()
    assert [(one["id"], one["object"]) for one in models["data"]] == [("tiny", "model")]
    assert talk(service(), lambda client: client.head("/health")).status_code == 200


def test_only_pages_of_named_origins_may_send_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sekret")
    made = service(cors_origins="https://a.example,http://localhost:3000", key_env="SOME_KEY")

    async def asked(origin: str) -> tuple[int, str | None]:
        transport = httpx2.ASGITransport(made.asgi)
        asks = {"Origin": origin, "Access-Control-Request-Method": "POST"}
        async with Client(transport=transport, base_url="http://anmi") as client:
            found = await client.options("/v1/rerank", headers=asks)
        return found.status_code, found.headers.get("access-control-allow-origin")

    assert asyncio.run(asked("https://a.example")) == (200, "https://a.example")
    assert asyncio.run(asked("https://b.example"))[1] is None
    with pytest.raises(ConfigError, match="cors_origins"):
        validated({"model": "folder", "cors_origins": "a.example"})


RERANK = {"query": "q", "documents": ["a"]}
LIMITS = {"max_documents": 5, "max_characters": 20, "max_body_mb": 0.001}


@pytest.mark.parametrize(
    ("status", "says", "sent"),
    [
        (400, "not JSON", {"content": b'{"query": "q", ', "headers": {"Content-Type": "application/json"}}),
        (400, "", {"content": b'"\xff\xfe', "headers": {"Content-Type": "application/json"}}),
        (400, "", {"content": b"[" * 900, "headers": {"Content-Type": "application/json"}}),
        (415, "application/json", {"content": b"query=q", "headers": {"Content-Type": "application/x-www-form"}}),
        (413, "longer than 1,000 bytes", {"json": {**RERANK, "more": "x" * 1000}}),
        (413, "documents: are 6", {"json": {"query": "q", "documents": ["a"] * 6}}),
        (413, "documents.1: has 21 characters", {"json": {"query": "q", "documents": ["a", "x" * 21]}}),
        (413, "query: has 21 characters", {"json": {"query": "x" * 21, "documents": ["a"]}}),
        (422, "query: is empty", {"json": {"query": " \n", "documents": ["a"]}}),
        (422, "documents: is empty", {"json": {"query": "q", "documents": []}}),
        (422, "documents.1: expected a string", {"json": {"query": "q", "documents": ["a", 5]}}),
        (422, "documents.0: expected a string", {"json": {"query": "q", "documents": [{"title": "a"}]}}),
        (422, "documents", {"json": {"query": "q"}}),
        (422, "query", {"json": {"documents": ["a"], "query": None}}),
        (422, "top_n", {"json": {**RERANK, "top_n": 0}}),
        (422, "rank_fields", {"json": {**RERANK, "rank_fields": ["title"]}}),
        (422, "documents.0: contains half", {"content": b'{"query": "q", "documents": ["\\ud800"]}'}),
        (422, "query: contains half", {"content": b'{"query": "\\udc00", "documents": ["a"]}'}),
    ],
)
def test_a_mistake_is_one_message_with_its_place(status: int, says: str, sent: dict[str, Any]) -> None:
    headers = {"Content-Type": "application/json"} if "content" in sent else {}
    found = post(service(**LIMITS), "/v1/rerank", **{"headers": headers, **sent})
    assert found.status_code == status
    told = found.json()
    assert says in told["message"]
    assert told["detail"] == told["message"] == told["error"]["message"]


RERANKS = ("/v1/rerank", "/v2/rerank", "/rerank")
EMBEDDINGS = "/v1/embeddings"
DOCUMENTED = (*RERANKS, EMBEDDINGS)


@pytest.mark.parametrize(
    ("paths", "field", "accepted", "refused"),
    [
        (RERANKS, "max_tokens_per_doc", (0, MAX_TOKENS, 4096), (4, MAX_TOKENS - 1, -1, "4 tokens")),
        (RERANKS, "max_tokens_per_query", (0, MAX_TOKENS), (4,)),
        (RERANKS, "max_chunks_per_doc", (1,), (10,)),
        (RERANKS, "top_k", (1,), (-1,)),
        (RERANKS, "relevant_spans", (), ({}, True)),
        (RERANKS, "use_activation", (), (False, True)),
        (RERANKS, "instruction", (), ("find errors",)),
        (RERANKS, "chat_template_kwargs", (), ({},)),
        (DOCUMENTED, "truncate_prompt_tokens", (-1, 0, MAX_TOKENS, 8192), (4, -2)),
        (DOCUMENTED, "truncation_side", ("right",), ("left",)),
        (DOCUMENTED, "truncation_direction", ("right", "Right"), ("Left",)),
        (DOCUMENTED, "truncate", (True,), (False, "END")),
        (DOCUMENTED, "truncation", (True,), (False,)),
        (DOCUMENTED, "mm_processor_kwargs", (), ({},)),
        (DOCUMENTED, "tpo_n", (), (1,)),
        (DOCUMENTED, "priority", (0, 5), ()),
        (DOCUMENTED, "user", ("someone",), ()),
        ((EMBEDDINGS,), "task", (), ("retrieval.query",)),
        ((EMBEDDINGS,), "output_dimension", (), (2,)),
    ],
)
def test_a_field_that_would_change_the_answer_is_honored_or_refused(
    paths: Iterable[str], field: str, accepted: tuple[Any, ...], refused: tuple[Any, ...]
) -> None:
    for path in paths:
        sent = {"input": "a"} if path == EMBEDDINGS else RERANK
        for value in (*accepted, None):
            found = post(service(), path, {**sent, field: value})
            assert found.status_code == 200, found.text
        for value in refused:
            found = post(service(), path, {**sent, field: value})
            assert found.status_code == 422
            assert found.json()["message"].startswith(f"{field}: ")


def test_top_k_is_voyages_name_of_top_n() -> None:
    for path in RERANKS:
        found = post(service(), path, {"query": "q", "documents": DOCUMENTS, "top_k": 2}).json()["results"]
        assert [row["index"] for row in found] == [2, 0]
    found = post(service(), "/rerank", {"query": "q", "texts": ["a", "bb", "ccc"], "top_k": 2}).json()
    assert [row["index"] for row in found] == [2, 1]


@pytest.mark.parametrize(
    ("says", "sent"),
    [
        ("return_documents: ", {"texts": ["a"], "return_documents": True}),
        ("return_text: ", {"documents": ["a"], "return_text": True}),
        ("documents or texts", {}),
        ("documents or texts", {"texts": ["a"], "documents": ["a"]}),
        ("top_k", {"documents": ["a"], "top_n": 1, "top_k": 2}),
    ],
)
def test_fields_of_two_shapes_are_refused(says: str, sent: dict[str, Any]) -> None:
    found = post(service(), "/rerank", {"query": "q", **sent})
    assert found.status_code == 422
    assert says in found.json()["message"]


def test_other_paths_and_methods_are_told_what_there_is() -> None:
    made = service()
    for method, path, status in (("GET", "/v1/rerank", 405), ("POST", "/v3/rerank", 404), ("GET", "/x", 404)):
        found = talk(made, lambda client, method=method, path=path: client.request(method, path, json=RERANK))
        assert found.status_code == status
        assert "/v1/rerank" in found.json()["message"]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.just("\ud800"),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=8,
)
KEYS = ["model", "query", "documents", "texts", "top_n", "return_documents", "raw_scores", "rank_fields", "input"]
KEYS += ["encoding_format", "dimensions", "input_type", "truncate", "return_text", "top_k", "max_tokens_per_doc"]
LIKELY = st.fixed_dictionaries(
    {"query": st.text() | JSON, "documents": st.lists(st.text() | JSON, max_size=7) | JSON},
    optional={key: JSON for key in KEYS if key not in ("query", "documents")},
)


@pytest.mark.slow
@settings(max_examples=400, suppress_health_check=[HealthCheck.too_slow, HealthCheck.large_base_example])
@given(
    path=st.sampled_from(DOCUMENTED),
    body=LIKELY.map(lambda sent: json.dumps(sent).encode())
    | st.dictionaries(st.sampled_from(KEYS), JSON).map(lambda sent: json.dumps(sent).encode())
    | JSON.map(lambda sent: json.dumps(sent).encode())
    | st.binary(max_size=200),
    cut=st.integers(0, 400),
    kind=st.sampled_from(
        ["application/json", "application/json; charset=utf-16", "text/plain", "", "a/b+json", "\xff"]
    ),
)
def test_no_request_is_a_defect_of_the_service(path: str, body: bytes, cut: int, kind: str) -> None:
    sent = body[: len(body) - cut if cut < 50 else len(body)]
    found = talk(
        service(**LIMITS),
        lambda client: client.post(path, content=sent, headers=[(b"content-type", kind.encode("latin-1"))]),
    )
    assert found.status_code < 500
    assert found.status_code == 200 or found.json()["message"]


def test_a_key_is_asked_for_everywhere_but_at_the_door(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", " sekret\n")
    made = service(key_env="SOME_KEY")
    sent: tuple[tuple[dict[str, Any], int], ...] = (
        ({}, 401),
        ({"Authorization": "Bearer wrong"}, 401),
        ({"Authorization": "Basic sekret"}, 401),
        ({"Authorization": "Bearer"}, 401),
        ({"Authorization": b"Bearer \xff\xfe"}, 401),
        ({"Authorization": "Bearer sekret"}, 200),
        ({"Authorization": "bearer sekret"}, 200),
    )

    async def ask(client: Client) -> None:
        for headers, status in sent:
            found = await client.post("/v1/rerank", json=RERANK, headers=headers)
            assert found.status_code == status
            assert "sekret" not in found.text
            assert (await client.get("/metrics", headers=headers)).status_code == status
        for path in ("/health", "/docs", "/openapi.json"):
            assert (await client.get(path)).status_code == 200

    talk(made, ask)
    monkeypatch.delenv("SOME_KEY")
    with pytest.raises(ConfigError, match="key SOME_KEY: the environment variable is not set"):
        service(key_env="SOME_KEY")


def posts(client: Client, count: int, documents: int) -> list[asyncio.Task[httpx2.Response]]:
    sent = {"query": "q", "documents": ["a"] * documents}
    return [asyncio.create_task(client.post("/v1/rerank", json=sent)) for _ in range(count)]


def statuses(found: Iterable[httpx2.Response]) -> set[int]:
    return {one.status_code for one in found}


def test_requests_share_batches_within_their_bound() -> None:
    model = Model()
    made = service(model, batch_texts=16)

    async def mixed(client: Client) -> list[Any]:
        lengths = [[3, 1, 4], list(range(40)), [1, 5], [9], [2, 6]]
        sent = [{"query": "q" * (1 + at), "documents": ["x" * n for n in one]} for at, one in enumerate(lengths)]
        asked = [{**one, "raw_scores": True} for one in sent]
        answers = await asyncio.gather(*(client.post("/v1/rerank", json=one) for one in asked))
        for at, (one, answer) in enumerate(zip(lengths, answers, strict=True)):
            by_index = {row["index"]: row["relevance_score"] for row in answer.json()["results"]}
            assert [by_index[index] for index in range(len(one))] == [n / 8 - 1 - at for n in one]
        return answers

    talk(made, mixed)
    assert max(map(len, model.batches)) == 16
    assert len(model.batches) < 8, "five requests of 48 texts"


def test_a_text_that_cannot_be_read_fails_its_own_request_alone() -> None:
    made = service()

    async def mixed(client: Client) -> list[int]:
        documents = (["a"], ["poison"], ["b"], ["c", "poison"])
        sent = [{"query": "q", "documents": one} for one in (["first"], *documents)]
        return [found.status_code for found in await asyncio.gather(*(client.post("/rerank", json=o) for o in sent))]

    assert talk(made, mixed) == [200, 200, 500, 200, 500]


def test_a_request_whose_parts_met_different_models_is_computed_by_one() -> None:
    names = iter("aabcd")
    sizes: list[int] = []

    async def compute(task: Task, queries: list[str], texts: list[str]) -> Computed:
        sizes.append(len(texts))
        one_N = np.ones(len(texts), np.int64)
        return Computed(one_N.astype(np.float32), one_N, ModelInfo(next(names)))

    async def ask() -> list[str]:
        batches = queue_of(compute)
        return [(await batches.computed("score", "q", ["a"] * 20)).model.name for _ in range(2)]

    assert asyncio.run(ask()) == ["a", "d"]
    assert sizes == [10, 10, 10, 10, 20]


def test_overload_is_refused_at_once_and_over_at_once() -> None:
    model = Model(held=True)
    made = service(model, max_waiting=100, batch_texts=20)
    most = (100 + 2 * 20) // 10  # requests that wait, and those of two batches under way

    async def crowd(client: Client) -> None:
        asked = posts(client, 50, 10)
        async with asyncio.timeout(30):
            while sum(one.done() for one in asked) < 50 - most:
                await asyncio.sleep(0.01)
        model.released.set()
        found = await asyncio.gather(*asked)
        served = [one for one in found if one.status_code == 200]
        refused = [one for one in found if one.status_code == 429]
        assert len(served) + len(refused) == 50
        assert 10 <= len(served) <= most
        assert all(int(one.headers["Retry-After"]) >= 1 for one in refused)
        assert statuses(await asyncio.gather(*posts(client, 10, 10))) == {200}
        assert statuses(await asyncio.gather(*posts(client, 1, 500))) == {200}, "who comes alone is served"
        page = (await client.get("/metrics")).text
        assert f'anmi_requests_total{{path="/v1/rerank",status="429"}} {len(refused)}.0' in page
        assert f"anmi_texts_total {10 * len(served) + 100 + 500}.0" in page
        assert "anmi_waiting_texts 0.0" in page

    talk(made, crowd)


def queue_of(compute: queue.Compute, **given: Any) -> queue.BatchQueue:
    """A queue of batches of ten texts and one worker."""
    settings = validated({"model": "folder", "batch_texts": 10, **given})
    return queue.BatchQueue(compute, settings, 1, ServiceMeters(lambda: 0, lambda: 0))


def test_who_would_wait_most_of_the_time_limit_is_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten texts a second and a limit of ten seconds: sixty texts may wait, and those of one batch are under way."""
    now = [0.0]
    monkeypatch.setattr(queue, "time", SimpleNamespace(monotonic=lambda: now[0]))
    model = Model()

    async def compute(task: Task, queries: list[str], texts: list[str]) -> Computed:
        now[0] += len(texts) / 10
        return await model(task, queries, texts)

    async def crowd() -> list[Any]:
        batches = queue_of(compute, timeout_s=10)
        await asyncio.gather(*(batches.computed("score", "q", ["text"] * 10) for _ in range(2)))
        model.released.clear()
        asked = [asyncio.create_task(batches.computed("score", "q", ["text"] * 10)) for _ in range(20)]
        await asyncio.sleep(0.01)
        model.released.set()
        return await asyncio.gather(*asked, return_exceptions=True)

    found = asyncio.run(crowd())
    refused = [one.status for one in found if isinstance(one, RefusalError)]
    assert refused in ([429] * 14, [429] * 13)  # the first is in a batch before the others come, or is not


def test_who_waits_too_long_is_told_and_forgotten() -> None:
    model = Model(held=True)
    made = service(model, timeout_s=1.0, batch_texts=10)

    async def late(client: Client) -> None:
        found = await asyncio.gather(*posts(client, 10, 10))
        assert statuses(found) == {503}
        assert found[0].headers["Retry-After"] == "1"
        assert (await client.get("/health")).json()["waiting_texts"] == 0
        model.released.set()
        assert statuses(await asyncio.gather(*posts(client, 1, 10))) == {200}
        assert len(model.batches) == 3, "two were under way, and one is new"

    talk(made, late)


def test_what_a_batch_asks_for_is_no_part_of_the_request_that_came_first() -> None:
    """Else it ends with it: Ray Serve cancels what is asked for in the context of a request whose client has left."""
    asked_for: list[str] = []
    request = contextvars.ContextVar("request", default="none")

    async def compute(task: Task, queries: list[str], texts: list[str]) -> Computed:
        asked_for.append(request.get())
        return await Model()(task, queries, texts)

    async def ask() -> None:
        request.set("first")
        await queue_of(compute).computed("score", "q", ["a"])

    asyncio.run(ask())
    assert asked_for == ["none"]


def test_nobody_waits_for_a_batch_that_was_cancelled() -> None:
    cancelled = [True, False, True, False]

    async def compute(task: Task, queries: list[str], texts: list[str]) -> Computed:
        if len(texts) == 3:
            raise ValueError("each request's text alone")
        if cancelled.pop(0):
            raise asyncio.CancelledError
        return await Model()(task, queries, texts)

    async def ask(client: Client) -> None:
        async with asyncio.timeout(20):
            assert statuses(await asyncio.gather(*posts(client, 3, 1))) == {503}
            assert statuses(await asyncio.gather(*posts(client, 1, 1))) == {200}
            assert statuses(await asyncio.gather(*posts(client, 1, 2))) == {503}
            assert statuses(await asyncio.gather(*posts(client, 1, 1))) == {200}

    talk(RerankService(validated({"model": "folder", "name": "tiny"}), compute), ask)


@pytest.mark.parametrize("method", ["GET", "POST"])
def test_what_waits_for_the_service_is_no_fault_of_the_client(method: str) -> None:
    async def slow(*given: Any) -> Any:
        await asyncio.sleep(30)

    made = RerankService(validated({"model": "folder", "timeout_s": 0.2}), Model(), search=(slow, slow))
    path = {"GET": "/v1/systems", "POST": "/v1/search"}[method]
    found = talk(made, lambda client: client.request(method, path, json={"query": "q"} if method == "POST" else None))
    assert [found.status_code, found.headers["Retry-After"]] == [503, "1"]


def test_a_body_that_does_not_come_ends_in_time() -> None:
    async def slow() -> AsyncIterator[bytes]:
        yield b'{"query"'
        await asyncio.sleep(30)

    made = service(timeout_s=0.2)
    headers = {"Content-Type": "application/json"}
    found = talk(made, lambda client: client.post("/v1/rerank", content=slow(), headers=headers))
    assert found.status_code == 408


def test_a_service_that_is_stopped_says_so() -> None:
    made = service()
    made.app.draining = True
    found = post(made, "/v1/rerank", RERANK)
    assert [found.status_code, found.headers["Retry-After"]] == [503, "5"]
    assert talk(made, lambda client: client.get("/health")).status_code == 503


def test_settings_of_a_config_file_are_checked() -> None:
    with pytest.raises(ConfigError, match=r"service, replica.*\n.*there are model, root"):
        validated({"model": "m", "replica": 2})
    assert validated({"model": "m", "threads": 3}).threads_each == 3
    assert [validated({"model": one}).called for one in ("/some/where/m", "org/m", "run")] == ["m", "org/m", "run"]
    assert ServiceSettings(model="m", replicas=1000).threads_each == 1
