"""Search over a run's documents: what a service finds is what the run found; mistakes, limits, lost indexes."""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.api.runs import Run
from anmi_ray.config.load import load
from anmi_ray.core.errors import DamagedError
from anmi_ray.core.identity import rng
from anmi_ray.core.records import DOCUMENT, RUN
from anmi_ray.models.bi_encoder import BiEncoder
from anmi_ray.pipeline.run import run
from anmi_ray.serving.queue import Computed, What
from anmi_ray.serving.scorer import ModelScorer
from anmi_ray.serving.searcher import About, FoundDocument, RunSearcher
from anmi_ray.serving.service import RerankService
from anmi_ray.serving.settings import validated
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank.ranking import document_texts
from tests.commands import refused
from tests.labelling import browser
from tests.models.tiny import WORDS, write_tiny_bert
from tests.retrieval.java import ABSENT
from tests.small import write_config

T = TypeVar("T")
KEY = "a-key-of-this-test"
READY_S = 240
DEPTH, RERANKED = 30, 12
RETRIEVERS = ["bm25", *([] if ABSENT else ["lucene"]), "dense", "late"]
HOSTILE = "<img src=x onerror=\"document.title='taken'\"> </script> \u202e word7"


def write_collection(folder: Path) -> Path:
    """90 documents and 40 queries of words that the tiny model knows; two documents have words of a query."""
    random = rng("searched")
    queries = [(f"q{i}", " ".join(random.choice(WORDS, 4))) for i in range(40)]
    documents = [(f"o{i}", "", " ".join(random.choice(WORDS, 12))) for i in range(9)]
    documents += [("hostile", HOSTILE, HOSTILE)]
    for name, text in queries:
        for i in range(2):
            words = [*random.choice(WORDS, 8), *text.split()[: 3 - i]]
            documents.append((f"{name}d{i}", f"about {words[0]}", " ".join(random.permutation(words))))
    (folder / "qrels").mkdir(parents=True)
    rows = [{"_id": name, "title": title, "text": text} for name, title, text in documents]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "queries.jsonl").write_text("".join(json.dumps({"_id": n, "text": t}) + "\n" for n, t in queries))
    for split, part in (("train", queries[:24]), ("dev", queries[24:30]), ("test", queries[30:])):
        lines = [f"{name}\t{name}d{i}\t1" for name, _ in part for i in range(2)]
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder


@pytest.fixture(scope="module")
def searched(trained_in_one_task: None, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A whole run over three shards with every retriever that is here, whose student has vectors of texts."""
    folder = tmp_path_factory.mktemp("searched")
    collection = write_collection(folder / "collection")
    model = str(write_tiny_bert(folder / "tiny"))
    config = write_config(
        folder / "searched.yaml",
        collection,
        name="searched",
        corpus={"reader": "beir", "path": str(collection), "shard_documents": 30},
        retrieve={
            "retrievers": RETRIEVERS,
            "depth": DEPTH,
            "candidates": 14,
            "random_negatives": 3,
            "dense": {"model": model, "dtype": "float32", "max_tokens": 32},
            "late": {"model": model, "dtype": "float32"},
        },
        train={"student": "bi-encoder", "model": model, "lists_per_step": 8, "max_steps": 2, "max_tokens": 48,
               "dev_points": [1.0]},
        rerank={"depth": RERANKED, "precision": "float32", "start": False},
        evaluate={"rounds": 1000, "partners": ["hybrid"]},
    )  # fmt: skip
    run(load(config, [f"execution.root={folder / 'root'}"]), last="evaluate")
    return Run("searched", folder / "root")


class Here:
    """A first stage in this process."""

    def __init__(self, searcher: RunSearcher) -> None:
        self.find = searcher.find
        self._about = searcher.about

    async def about(self) -> About:
        return self._about


@pytest.fixture(scope="module")
def service(searched: Run) -> RerankService:
    scorer = ModelScorer(str(searched.model), 1)
    first = Here(RunSearcher(searched.name, searched.root, 1))
    return RerankService(validated({"model": searched.name, "threads": 1}), scorer.compute, first)


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


def buckets(run: Run) -> range:
    return range(int((run.artifact("ingest").manifest() or {})["buckets"]))


def wanted(run: Run) -> Iterator[tuple[str, dict[str, list[tuple[str, float]]]]]:
    """Of every test query its text, and each system's documents with their scores as the run has them."""
    ingest = run.artifact("ingest")
    shards = range(int((ingest.manifest() or {})["shards"]))
    documents = pa.concat_tables([ingest.read_part("documents", shard, DOCUMENT) for shard in shards])
    names = dict(zip(documents["doc_id"].to_pylist(), documents["external_id"].to_pylist(), strict=True))
    fused = run.artifact("evaluate").read_part("fused", 0, RUN)
    for bucket in buckets(run):
        queries = queries_of(ingest, bucket, "test")
        parts = [of_queries(fused, queries)]
        parts += [
            of_queries(run.artifact(stage).read_part("runs", bucket, RUN), queries) for stage in ("retrieve", "rerank")
        ]
        every = pa.concat_tables(parts).sort_by([("system", "ascending"), ("rank", "ascending")]).to_pylist()
        for query in queries.to_pylist():
            systems: dict[str, list[tuple[str, float]]] = {}
            for row in every:
                if row["query_id"] == query["query_id"]:
                    systems.setdefault(row["system"], []).append((names[row["doc_id"]], row["score"]))
            yield query["text"], systems


@pytest.mark.ray
@pytest.mark.slow
def test_every_system_ranks_the_runs_queries_as_the_run_did(searched: Run, service: RerankService) -> None:
    found: set[str] = set()
    for text, systems in wanted(searched):
        for name, ranking in systems.items():
            depth = RERANKED if name.startswith("reranked") else DEPTH
            answer = search(service, query=text, system=name, top_n=DEPTH, candidates=RERANKED)
            results = answer.json()["results"]
            assert [row["id"] for row in results] == [doc for doc, _ in ranking[:depth]], (text, name)
            scores = [row["score"] for row in results]
            np.testing.assert_allclose(scores, [score for _, score in ranking[:depth]], atol=1e-5)
            assert [row["rank"] for row in results] == list(range(1, len(results) + 1))
            found.add(name)
    assert found == {*RETRIEVERS, "hybrid", "reranked", "reranked+hybrid"}


@pytest.mark.ray
@pytest.mark.slow
def test_compared_systems_say_of_each_document_where_every_stage_has_it(searched: Run, service: RerankService) -> None:
    text, systems = next(wanted(searched))
    answer = search(service, query=text, systems=["hybrid", "reranked"], top_n=8).json()
    hybrid, reranked = answer["rankings"]
    assert [hybrid["system"], reranked["system"]] == ["hybrid", "reranked"]
    assert len(hybrid["results"]) == len(reranked["results"]) == 8
    for row in reranked["results"]:
        assert row["document"]["text"]
        for stage in RETRIEVERS:
            ranked = [doc for doc, _ in systems[stage]]
            place = row["why"].get(stage)
            assert (place["rank"] if place else 0) == (ranked.index(row["id"]) + 1 if row["id"] in ranked else 0)
    alone = search(service, query=text, system="bm25", return_documents=False).json()["results"][0]
    assert alone.keys() == {"id", "rank", "score", "why"}
    assert alone["why"].keys() == {"bm25"}


@pytest.mark.ray
@pytest.mark.slow
def test_the_student_searches_all_documents_by_its_vectors(searched: Run, service: RerankService) -> None:
    ingest = searched.artifact("ingest")
    documents = pa.concat_tables([ingest.read_part("documents", shard, DOCUMENT) for shard in range(3)])
    student = BiEncoder.load(str(searched.model))
    lists = student.pairs.of_documents(document_texts(documents))
    vectors = student.vectors(lists, np.arange(documents.num_rows))
    for text in ("word3 word9", "word21"):
        asked = student.vectors(student.pairs.of_queries([text]), np.arange(1))[0]
        cosines = dict(zip(documents["external_id"].to_pylist(), vectors @ asked, strict=True))
        results = search(service, query=text, system="student").json()["results"]
        best = sorted(cosines.values(), reverse=True)[:10]
        np.testing.assert_allclose([row["score"] for row in results], best, atol=1e-5)
        np.testing.assert_allclose([cosines[row["id"]] for row in results], best, atol=1e-5)


@pytest.mark.ray
@pytest.mark.slow
def test_indexes_that_are_gone_or_damaged_are_made_again(searched: Run, tmp_path: Path) -> None:
    root = tmp_path / "root"
    shutil.copytree(searched.root, root)
    text, systems = next(wanted(searched))
    shutil.rmtree(root / "artifacts" / "counts")
    ids = pc.unique(searched.artifact("ingest").read_part("documents", 0, DOCUMENT)["doc_id"])
    kept = [file for file in (root / "artifacts" / "vectors").rglob("vectors.parquet") if holds(file, ids)]
    kept[0].write_bytes(kept[0].read_bytes()[:-9])
    searcher = RunSearcher(searched.name, str(root), 1)
    notes = " ".join(searcher.about.notes)
    assert "counts of shard 0 was not there" in notes
    assert "vectors of shard 0 was damaged" in notes
    made = RerankService(validated({"model": "searched"}), ModelScorer(str(searched.model), 1).compute, Here(searcher))
    results = search(made, query=text, system="hybrid", top_n=DEPTH).json()["results"]
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


ABOUT = About(
    run="made",
    documents=2,
    systems={"bm25": "words", "hybrid": "fused", "reranked": "the model"},
    depth=50,
    candidates=20,
    fusion=None,
    examples=(),
    notes=(),
)


class Made:
    """A first stage of two documents, once `released`."""

    def __init__(self, held: bool = False) -> None:
        self.released = asyncio.Event()
        if not held:
            self.released.set()

    async def about(self) -> About:
        return ABOUT

    async def find(self, query: str, deepest: dict[str, int], vector_d: Any) -> list[FoundDocument]:
        await self.released.wait()
        texts = [("a", "title", "long " * 9), ("b", "", HOSTILE)]
        places = [{name: (rank, 1.0 / rank) for name in deepest} for rank in (1, 2)]
        return [FoundDocument(*one) for one in zip(texts, places, strict=True)]


async def by_length(what: What, queries: list[str], texts: list[str]) -> Computed:
    """Scores by a text's length."""
    lengths = np.array([len(text) for text in texts])
    return Computed(lengths.astype(np.float32), lengths)


def made(first: Made | None, **given: Any) -> RerankService:
    return RerankService(validated({"model": "folder", "name": "tiny", **given}), by_length, first)


@pytest.mark.parametrize(
    ("status", "says", "sent"),
    [
        (422, "query: is empty", {"query": " \n"}),
        (422, "query: Field required", {}),
        (413, "query: has 31 characters", {"query": "x" * 31}),
        (422, "system: bm52 is not one of bm25, hybrid, reranked", {"query": "q", "system": "bm52"}),
        (422, "system: x is not one of", {"query": "q", "systems": ["bm25", "x"]}),
        (422, "one of both", {"query": "q", "system": "bm25", "systems": ["bm25"]}),
        (422, "systems", {"query": "q", "systems": []}),
        (422, "systems", {"query": "q", "systems": ["bm25"] * 5}),
        (422, "top_n", {"query": "q", "top_n": 0}),
        (422, "top_n: is 51, and the run ranks 50 documents", {"query": "q", "top_n": 51}),
        (422, "candidates: is 51", {"query": "q", "candidates": 51}),
        (422, "candidates", {"query": "q", "candidates": 0}),
    ],
)
def test_a_mistake_is_one_message_with_its_place(status: int, says: str, sent: dict[str, Any]) -> None:
    found = search(made(Made(), max_characters=30), **sent)
    assert [found.status_code, says in found.json()["message"]] == [status, True], found.text


def test_a_model_alone_searches_nothing_and_says_what_does() -> None:
    alone = made(None)
    for method, path in (("POST", "/v1/search"), ("GET", "/v1/systems"), ("GET", "/")):
        found = talk(alone, lambda client, method=method, path=path: client.request(method, path, json={"query": "q"}))
        assert found.status_code == 404
        assert "anmi serve RUN" in found.json()["message"]


def test_the_page_is_open_and_what_it_asks_for_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOME_KEY", "sekret")
    locked = made(Made(), key_env="SOME_KEY")

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
    first = Made(held=True)

    async def crowd(client: httpx2.AsyncClient) -> None:
        asked = [asyncio.create_task(client.post("/v1/search", json={"query": "q"})) for _ in range(80)]
        async with asyncio.timeout(30):
            while sum(one.done() for one in asked) < 16:
                await asyncio.sleep(0.01)
        first.released.set()
        found = await asyncio.gather(*asked)
        assert sorted(one.status_code for one in found) == [200] * 64 + [429] * 16
        assert all(one.headers["Retry-After"] for one in found if one.status_code == 429)
        assert (await client.post("/v1/search", json={"query": "q"})).status_code == 200

    talk(made(first), crowd)


@given(query=st.text() | st.just("\ud800"), system=st.sampled_from(["bm25", "reranked"]) | st.text(max_size=9))
def test_no_query_is_a_defect_of_the_service(query: str, system: str) -> None:
    found = search(made(Made()), query=query, system=system)
    assert found.status_code in (200, 422)


@pytest.mark.ray
@pytest.mark.slow
def test_texts_of_every_kind_are_searched(service: RerankService) -> None:
    for query in (
        "\x00\x1b[31m",
        "𝒳 é ﷽ \u202e",
        "\ufffe\uffff",
        "👩‍👩‍👧",
        'AND OR NOT (word1 -"',
        "词 の",
        "word1 " * 900,
    ):
        answer = search(service, query=query, systems=["hybrid", "reranked", "student"], top_n=3)
        assert answer.status_code == 200, answer.text
        assert answer.json()["rankings"][2]["results"]
    shown = search(service, query="word7 onerror", system="bm25", top_n=1).json()["results"][0]
    assert [shown["id"], shown["document"]] == ["hostile", {"title": HOSTILE, "text": HOSTILE}]


@contextmanager
def serving(run: Run, folder: Path) -> Iterator[str]:
    """The address of `anmi serve RUN`, as a user starts it, with KEY."""
    command = [sys.executable, "-m", "anmi_ray", "serve", run.name, "--root", run.root, "--port", "0"]
    environment = {**os.environ, "SERVICE_KEY": KEY}
    errors = folder / "errors"
    with errors.open("w") as sink:
        command += ["--key-env", "SERVICE_KEY"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=sink, text=True, env=environment)
    assert process.stdout is not None
    try:
        killer = threading.Timer(READY_S, process.kill)
        killer.start()
        said = process.stdout.readline() + process.stdout.readline()
        killer.cancel()
        found = re.search(r"^search its documents at (http://127\.0\.0\.1:\d+/)$", said, re.MULTILINE)
        assert found, (said, errors.read_text()[-2000:])
        yield found[1]
        process.terminate()
        assert process.wait(READY_S) == 0
        assert errors.read_text() == ""
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(READY_S)
        process.stdout.close()


def keys(tab: browser.Tab, *pressed: str) -> None:
    for key in pressed:
        tab.press(key)


SHOWN = "shown.length === {} && of('columns').getAttribute('aria-busy') === 'false' && asked === of('query').value"


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.skipif(browser.PROGRAM is None, reason="needs Chromium: none was found")
def test_the_page_compares_systems_by_keys_alone(searched: Run, tmp_path: Path) -> None:
    text, systems = next(wanted(searched))
    with serving(searched, tmp_path) as address, browser.tabs(tmp_path / "profile", 1) as (tab,):
        tab.open(address)
        tab.wait("document.activeElement?.id === 'key' && !of('unlock').hidden")
        keys(tab, *"wrong", "Enter")
        assert "key is missing or wrong" in tab.wait("of('fault').hidden ? '' : of('fault').textContent")
        keys(tab, *KEY, "Enter")
        tab.wait("document.activeElement?.id === 'query' && of('unlock').hidden")
        assert tab.value("of('first').value + ' ' + of('second').value") == "hybrid reranked+hybrid"
        keys(tab, *text, "Enter")
        tab.wait(SHOWN.format(2))
        ids = "[...one.querySelectorAll('li')].map((row) => row.dataset.id)"
        hybrid, fused = tab.value(f"[...document.querySelectorAll('.column')].map((one) => {ids})")
        assert hybrid == [doc for doc, _ in systems["hybrid"][:10]]
        assert fused == [doc for doc, _ in systems["reranked+hybrid"][:10]]
        assert tab.value("document.querySelectorAll('path').length") == len(set(hybrid) & set(fused))
        keys(tab, "ArrowDown")  # from the query to the first document, and to the same on the other side
        assert tab.value("document.activeElement.closest('li').dataset.id") == hybrid[0]
        keys(tab, "ArrowRight", "Enter")
        there = hybrid[0] if hybrid[0] in fused else fused[0]
        assert tab.value("document.activeElement.closest('li').dataset.id") == there
        stages = tab.value("[...document.querySelectorAll('.why tbody th')].map((one) => one.textContent)")
        assert stages == [*RETRIEVERS, "hybrid", "reranked", "reranked+hybrid"]
        keys(tab, "Escape")
        assert tab.value("document.querySelectorAll('li.open, .why').length") == 0
        keys(tab, "/", *"word7 onerror", "Enter")
        tab.wait(SHOWN.format(2))
        tab.value("document.querySelectorAll('.head').forEach((one) => one.click())")
        assert "onerror" in tab.value("of('columns').innerText")
        assert tab.value("document.querySelectorAll('#columns img, #columns script').length") == 0
        assert tab.value("document.title") == "word7 onerror · searched"
        assert KEY not in tab.value("location.href + document.documentElement.outerHTML + JSON.stringify(localStorage)")
        for dark in (False, True):
            tab.picture(tmp_path / "narrow.png", width=360, dark=dark)
            assert tab.value("document.documentElement.scrollWidth") <= 360
            ground = tab.value("getComputedStyle(document.body).backgroundColor")
            assert (sum(map(int, re.findall(r"\d+", ground))) < 200) == dark
