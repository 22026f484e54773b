"""Search over a run's documents: what a service finds is what the run found; mistakes, limits, lost indexes."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TypeVar

import httpx2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ray.serve.exceptions import BackPressureError

from anmi_ray.api.runs import Run
from anmi_ray.core.errors import DamagedError
from anmi_ray.core.records import DOCUMENT
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.serving import app
from anmi_ray.serving.scorer import Computed, ModelScorer, Task
from anmi_ray.serving.searcher import RunSearcher
from anmi_ray.serving.service import RerankService
from anmi_ray.serving.settings import ServiceSettings, validated
from anmi_ray.serving.wire import RefusalError, SearchBody
from anmi_ray.stages.rerank.ranking import document_texts
from tests.commands import refused
from tests.serving.searched import DEPTH, HOSTILE, RERANKED, RETRIEVERS, wanted

T = TypeVar("T")
Service = Callable[[], RerankService]


def served(searcher: RunSearcher, scorer: ModelScorer, settings: ServiceSettings) -> RerankService:
    """A service of a run's model and first stage, in this process."""

    async def systems() -> dict[str, Any]:
        return searcher.systems

    async def ranked(body: SearchBody) -> dict[str, Any]:
        return await searcher.search(body, made.scores)

    made = RerankService(settings, scorer.compute, (systems, ranked))
    return made


@pytest.fixture(scope="module")
def service(searched: Run) -> Iterator[Service]:
    """A service of the run: a new one for each event loop, around the same model and first stage."""
    settings = validated({"model": searched.name, "root": searched.root, "threads": 1})
    scorer = ModelScorer(settings)
    with closing(RunSearcher(searched.name, searched.root, 1)) as searcher:
        yield lambda: served(searcher, scorer, settings)


def talk(made: RerankService, body: Callable[[httpx2.AsyncClient], Awaitable[T]]) -> T:
    async def main() -> T:
        transport = httpx2.ASGITransport(made.app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://anmi", timeout=60) as client:
            return await body(client)

    return asyncio.run(main())


def search(made: RerankService, **sent: Any) -> httpx2.Response:
    body = json.dumps(sent)  # halves of surrogate pairs too
    headers = {"Content-Type": "application/json"}
    return talk(made, lambda client: client.post("/v1/search", content=body, headers=headers))


@pytest.mark.slow
def test_every_system_ranks_the_runs_queries_as_the_run_did(searched: Run, service: Service) -> None:
    found: set[str] = set()
    for text, ranked in wanted(searched):
        names = list(ranked)
        for asked in (names[:4], names[4:]):
            answer = search(service(), query=text, systems=asked, top_n=DEPTH, candidates=RERANKED).json()
            for ranking in answer["rankings"]:
                name, results = ranking["system"], ranking["results"]
                most = RERANKED if name.startswith("reranked") else DEPTH
                assert [row["id"] for row in results] == [doc for doc, _ in ranked[name][:most]], (text, name)
                scores = [row["score"] for row in results]
                np.testing.assert_allclose(scores, [score for _, score in ranked[name][:most]], atol=1e-5)
                assert [row["rank"] for row in results] == list(range(1, len(results) + 1))
                found.add(name)
    assert found == {*RETRIEVERS, "hybrid", "reranked", "reranked+hybrid"}


@pytest.mark.slow
def test_compared_systems_say_of_each_document_where_every_stage_has_it(searched: Run, service: Service) -> None:
    text, systems = next(wanted(searched))
    answer = search(service(), query=text, systems=["hybrid", "reranked"], top_n=8).json()
    hybrid, reranked = answer["rankings"]
    assert [hybrid["system"], reranked["system"]] == ["hybrid", "reranked"]
    assert len(hybrid["results"]) == len(reranked["results"]) == 8
    for row in reranked["results"]:
        assert row["document"]["text"]
        for stage in RETRIEVERS:
            ranked = [doc for doc, _ in systems[stage]]
            place = row["why"].get(stage)
            assert (place["rank"] if place else 0) == (ranked.index(row["id"]) + 1 if row["id"] in ranked else 0)
    alone = search(service(), query=text, system="bm25", return_documents=False).json()["results"][0]
    assert alone.keys() == {"id", "rank", "score", "why"}
    assert alone["why"].keys() == {"bm25"}


@pytest.mark.slow
def test_the_student_searches_all_documents_by_its_vectors(searched: Run, service: Service) -> None:
    ingest = searched.artifact("ingest")
    documents = pa.concat_tables([ingest.read_part("documents", shard, DOCUMENT) for shard in range(2)])
    student = BiEncoder.load(str(searched.model))
    lists = student.pairs.of_documents(document_texts(documents))
    vectors = student.vectors(lists, np.arange(documents.num_rows))
    for text in ("word3 word9", "word21"):
        asked = student.vectors(student.pairs.of_queries([text]), np.arange(1))[0]
        cosines = dict(zip(documents["external_id"].to_pylist(), vectors @ asked, strict=True))
        results = search(service(), query=text, system="student").json()["results"]
        best = sorted(cosines.values(), reverse=True)[:10]
        np.testing.assert_allclose([row["score"] for row in results], best, atol=1e-5)
        np.testing.assert_allclose([cosines[row["id"]] for row in results], best, atol=1e-5)


@pytest.mark.slow
def test_indexes_that_are_missing_are_made_again_and_damaged_ones_are_named(searched: Run, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(searched.root, root)
    text, systems = next(wanted(searched))
    ids = pc.unique(searched.artifact("ingest").read_part("documents", 0, DOCUMENT)["doc_id"])
    kept = [file for file in (root / "artifacts" / "vectors").rglob("vectors.parquet") if holds(file, ids)]
    kept[0].write_bytes(kept[0].read_bytes()[:-9])
    with pytest.raises(DamagedError, match="rm -r"):
        RunSearcher(searched.name, str(root), 1)
    shutil.rmtree(root / "artifacts" / "counts")
    shutil.rmtree(kept[0].parents[1])
    with closing(RunSearcher(searched.name, str(root), 1)) as searcher:
        notes = " ".join(searcher.notes)
        assert "counts of shard 0 was missing" in notes
        assert "vectors of shard 0 was missing" in notes
        settings = validated({"model": searched.name, "root": str(root), "threads": 1})
        results = search(
            served(searcher, ModelScorer(settings), settings), query=text, system="hybrid", top_n=DEPTH
        ).json()["results"]
        assert [row["id"] for row in results] == [doc for doc, _ in systems["hybrid"]]
    (lost,) = (root / "artifacts" / "ingest").rglob("documents/00001.parquet")
    lost.unlink()
    with pytest.raises(DamagedError, match=r"00001\.parquet"):
        RunSearcher(searched.name, str(root), 1)
    shutil.rmtree(root / "artifacts" / "ingest")
    assert "the run has no documents: its ingest stage is not complete" in refused(
        "serve", "searched", "--root", root, "--port", 0
    )


def holds(file: Path, ids: pa.Array) -> bool:
    """Whether a file of vectors is of these documents."""
    return pc.unique(pq.read_table(file)["id"]).sort().equals(ids.sort())


class FirstStage:
    """Two documents, ranked alike by every system."""

    documents = 2

    def search(self, text: str, systems: set[str]) -> dict[bytes, dict[str, tuple[int, float]]]:
        return {name: {system: (rank, 1.0 / rank) for system in systems} for rank, name in enumerate((b"a", b"b"), 1)}

    def texts(self, doc_ids: list[bytes]) -> dict[bytes, tuple[str, str, str]]:
        return {b"a": ("a", "title", "long " * 9), b"b": ("b", "", HOSTILE)}


async def by_length(task: Task, queries: list[str], texts: list[str]) -> Computed:
    """Scores by a text's length."""
    lengths = np.array([len(text) for text in texts])
    return Computed(lengths.astype(np.float32), lengths)


def made(**given: Any) -> RerankService:
    """A service whose first stage has two documents and two systems."""
    searcher: Any = RunSearcher.__new__(RunSearcher)
    searcher.__dict__ |= {"systems": {}, "_first": FirstStage(), "_thread": ThreadPoolExecutor(1), "_fusion": None}
    searcher.__dict__ |= {"_depth": 50, "_candidates": 20, "_names": ["bm25", "hybrid", "reranked"]}
    scorer: Any = SimpleNamespace(compute=by_length)
    return served(searcher, scorer, validated({"model": "folder", "name": "tiny", **given}))


@pytest.mark.parametrize(
    ("status", "says", "sent"),
    [
        (422, "query: is empty", {"query": " \n"}),
        (422, "query: Field required", {}),
        (413, "query: has 31 characters", {"query": "x" * 31}),
        (422, "system: bm52 is not one of bm25, hybrid, reranked", {"query": "q", "system": "bm52"}),
        (422, "system: x is not one of", {"query": "q", "systems": ["bm25", "x"]}),
        (422, "either system or systems", {"query": "q", "system": "bm25", "systems": ["bm25"]}),
        (422, "systems", {"query": "q", "systems": []}),
        (422, "systems", {"query": "q", "systems": ["bm25"] * 5}),
        (422, "top_n", {"query": "q", "top_n": 0}),
        (422, "top_n: is 51, and the run ranks 50 documents", {"query": "q", "top_n": 51}),
        (422, "candidates: is 51", {"query": "q", "candidates": 51}),
        (422, "candidates", {"query": "q", "candidates": 0}),
    ],
)
def test_a_mistake_is_one_message_with_its_place(status: int, says: str, sent: dict[str, Any]) -> None:
    found = search(made(max_characters=30), **sent)
    assert [found.status_code, says in found.json()["message"]] == [status, True], found.text


def test_a_model_alone_searches_nothing_and_says_what_does() -> None:
    alone = RerankService(validated({"model": "folder", "name": "tiny"}), by_length)
    for method, path in (("POST", "/v1/search"), ("GET", "/v1/systems"), ("GET", "/")):
        found = talk(alone, lambda client, method=method, path=path: client.request(method, path, json={"query": "q"}))
        assert found.status_code == 404
        assert "anmi serve RUN" in found.json()["message"]


def test_the_page_is_open_and_what_it_asks_for_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sekret")
    locked = made(key_env="SOME_KEY")

    async def ask(client: httpx2.AsyncClient) -> None:
        page = await client.get("/")
        assert page.status_code == 200
        assert "default-src 'none'" in page.headers["Content-Security-Policy"]
        assert (await client.get("/v1/systems")).status_code == 401
        assert (await client.post("/v1/search", json={"query": "q"})).status_code == 401
        headers = {"Authorization": "Bearer sekret"}
        assert (await client.post("/v1/search", json={"query": "q"}, headers=headers)).status_code == 200
        metrics = (await client.get("/metrics", headers=headers)).text
        assert 'anmi_requests_total{path="/v1/search",status="401"} 1.0' in metrics

    talk(locked, ask)


def test_searches_beyond_those_that_may_wait_are_refused_at_once() -> None:
    config = app.SearchReplica._deployment_config  # pyright: ignore[reportPrivateUsage]
    assert config.max_ongoing_requests + config.max_queued_requests == 64

    async def full() -> None:
        raise BackPressureError(32, 32)

    with pytest.raises(RefusalError) as refused:
        asyncio.run(app._call(SimpleNamespace(remote=full)))  # pyright: ignore[reportPrivateUsage]
    assert [refused.value.status, refused.value.retry_after_s] == [429, 1]


@given(query=st.text() | st.just("\ud800"), system=st.sampled_from(["bm25", "reranked"]) | st.text(max_size=9))
def test_no_query_is_a_defect_of_the_service(query: str, system: str) -> None:
    found = search(made(), query=query, system=system)
    assert found.status_code in (200, 422)


@pytest.mark.slow
def test_texts_of_every_kind_are_searched(service: Service) -> None:
    for query in (
        "\x00\x1b[31m",
        "𝒳 é ﷽ \u202e",
        "\ufffe\uffff",
        "👩‍👩‍👧",
        'AND OR NOT (word1 -"',
        "词 の",
        "word1 " * 900,
    ):
        answer = search(service(), query=query, systems=["hybrid", "reranked", "student"], top_n=3)
        assert answer.status_code == 200, answer.text
        assert answer.json()["rankings"][2]["results"]
    shown = search(service(), query="word7 onerror", system="bm25", top_n=1).json()["results"][0]
    assert [shown["id"], shown["document"]] == ["hostile", {"title": HOSTILE, "text": HOSTILE}]
