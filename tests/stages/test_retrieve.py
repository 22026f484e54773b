"""Retrieve with every retriever and index over several shards, and with texts that ask for trouble."""

from __future__ import annotations

import json
import logging
import multiprocessing
import platform
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
import ray
import torch
from ray._private import state

from anmi_ray.config.load import load
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.core.identity import doc_id, query_id
from anmi_ray.core.records import CANDIDATE, QUERY, RUN
from anmi_ray.pipeline.run import run
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Artifact, Store
from tests.models.tiny import write_tiny_bert
from tests.retrieval.java import needs_lucene
from tests.small import write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.usefixtures("ray_local")]
WORDS = [f"word{i}" for i in range(60)]
BUCKETS = 4


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_bert(tmp_path_factory.mktemp("model"))


def lines(rows: Sequence[dict[str, str]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three shards, one with ten megabytes of text; queries of stop words, of no known word, of Lucene's syntax."""
    folder = tmp_path_factory.mktemp("collection")
    (folder / "qrels").mkdir()
    texts = [" ".join(WORDS[(7 * i + j * j) % 60] for j in range(9)) for i in range(139)]
    texts.append("word1 long " * 900_000)
    documents = [{"_id": f"d{i}", "title": "", "text": text} for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text(lines(documents))
    asked = {f"q{i}": f"{WORDS[i]} {WORDS[(5 * i) % 60]} {WORDS[59 - i]}" for i in range(24)}
    asked |= {
        "stop": "the of and",
        "stops": "and or not the",
        "nothing": "zebra quagga",
        "syntax": 'word3 AND (word4 "',
    }
    (folder / "queries.jsonl").write_text(lines([{"_id": key, "text": text} for key, text in asked.items()]))
    for split, keys in (
        ("train", [*(f"q{i}" for i in range(12)), "stop", "nothing"]),
        ("dev", [f"q{i}" for i in range(12, 18)]),
        ("test", [*(f"q{i}" for i in range(18, 24)), "stops", "syntax"]),
    ):
        rows = "".join(f"{key}\td{(11 * place) % 139}\t1\n" for place, key in enumerate(keys))
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    return folder


class Notices(Reporter):
    """Collects what the user is told."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


class Retrieved:
    """What retrieve left of a run, and its notices."""

    def __init__(self, root: Path, collection: Path, model: Path, *overrides: str, shard: int = 50) -> None:
        root.mkdir(parents=True, exist_ok=True)
        config = write_config(
            root / "retrieve.yaml",
            collection,
            corpus={"reader": "beir", "path": str(collection), "shard_documents": shard},
            retrieve={"depth": 30, "candidates": 14, "random_negatives": 3, "dense": {"model": str(model)}},
            execution={"buckets": BUCKETS, "root": str(root / "results"), "threads": 1},
        )
        notices = Notices()
        record = run(load(config, overrides), notices, last="retrieve")
        self.notices = notices.texts
        store = Store(str(root / "results"))
        self.ingest, self.artifact = (
            Artifact(store, name, record["stages"][name]["fingerprint"]) for name in ("ingest", "retrieve")
        )
        self.runs, self.candidates = self.part("runs", RUN), self.part("candidates", CANDIDATE)

    def part(self, name: str, record: object, of: Artifact | None = None) -> pa.Table:
        artifact = of or self.artifact
        return pa.concat_tables([artifact.read_part(name, b, record) for b in range(BUCKETS)])  # type: ignore[arg-type]

    def query(self, name: str) -> bytes:
        table = self.part("queries", QUERY, self.ingest)
        return table.filter(pc.equal(table["external_id"], name))["query_id"][0].as_py()

    def ranked(self, system: str, query: str) -> list[bytes]:
        """The documents of a query in a run."""
        return self._run(system, query)["doc_id"].to_pylist()

    def scores(self, system: str, query: str) -> list[float]:
        """Their scores, falling."""
        return self._run(system, query)["score"].to_pylist()

    def _run(self, system: str, query: str) -> pa.Table:
        mine = pc.and_(pc.equal(self.runs["system"], system), pc.equal(self.runs["query_id"], self.query(query)))
        return self.runs.filter(mine).sort_by("rank")


@pytest.fixture(scope="module")
def usual(ray_local: None, collection: Path, model: Path, tmp_path_factory: pytest.TempPathFactory) -> Retrieved:
    return Retrieved(tmp_path_factory.mktemp("usual"), collection, model, "retrieve.bm25={stemmer: null}")


def test_queries_without_words_are_left_to_the_dense_retriever(usual: Retrieved) -> None:
    assert usual.ranked("bm25", "stops") == []
    assert len(usual.ranked("dense", "stops")) == len(usual.ranked("hybrid", "stops")) == 30
    known = set(usual.candidates["query_id"].to_pylist())
    assert {usual.query("stop"), usual.query("nothing")} <= known
    assert usual.artifact.rejects().num_rows == 0


def test_without_one_they_are_rejects(usual: Retrieved, collection: Path, model: Path, tmp_path: Path) -> None:
    alone = Retrieved(tmp_path, collection, model, "retrieve.retrievers=[bm25]", "retrieve.bm25={stemmer: null}")
    assert alone.ranked("bm25", "stops") == alone.ranked("hybrid", "stops") == []
    rejects = alone.artifact.rejects().to_pylist()
    assert sorted(row["key"] for row in rejects) == ["nothing", "stop"]
    assert {row["reason"] for row in rejects} == {"no candidates"}
    assert alone.ranked("bm25", "q20") == usual.ranked("bm25", "q20") != []


def test_a_retriever_that_finds_nothing_is_named(model: Path, tmp_path: Path) -> None:
    """Queries and documents in two languages: flows and a notice name bm25; alone it ends the run here."""
    folder = tmp_path / "two-languages"
    (folder / "qrels").mkdir(parents=True)
    (folder / "corpus.jsonl").write_text(lines([{"_id": f"d{i}", "title": "", "text": WORDS[i]} for i in range(40)]))
    asked = [{"_id": f"q{i}", "text": f"fremd{i} {WORDS[i] if i < 3 else ''}"} for i in range(12)]
    (folder / "queries.jsonl").write_text(lines(asked))
    rows = "".join(f"q{i}\td{i}\t1\n" for i in range(12))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows)
    found = Retrieved(tmp_path / "both", folder, model, "corpus.dev_fraction=0")
    flows = {flow["unit"]: flow for flow in (found.artifact.manifest() or {})["flows"]}
    assert (flows["queries of bm25"]["rows_in"], flows["queries of bm25"]["rejected"]) == (12, 9)
    assert "queries of dense" not in flows
    assert [text.split()[0] for text in found.notices if "9 of 12" in text] == ["bm25"]
    (folder / "queries.jsonl").write_text(lines([row | {"text": "fremd"} for row in asked[3:]]))
    (folder / "qrels" / "train.tsv").write_text("query-id\tcorpus-id\tscore\n" + rows[rows.index("q3") :])
    with pytest.raises(DataError) as caught:
        Retrieved(tmp_path / "alone", folder, model, "corpus.dev_fraction=0", "retrieve.retrievers=[bm25]")
    assert caught.value.place == "retrieve"


def test_own_documents_are_left_out_of_every_shard(collection: Path, model: Path, tmp_path: Path) -> None:
    """Each query is a document of its own id besides: nothing else changes but the statistics of words."""
    folder = tmp_path / "queries-too"
    folder.mkdir()
    (folder / "qrels").symlink_to(collection / "qrels")
    (folder / "queries.jsonl").symlink_to(collection / "queries.jsonl")
    asked = (json.loads(line) for line in (collection / "queries.jsonl").read_text().splitlines())
    more = lines([{"_id": row["_id"], "title": "", "text": f"{row['text'].capitalize()}?"} for row in asked])
    (folder / "corpus.jsonl").write_text((collection / "corpus.jsonl").read_text() + more)
    pairs: dict[str, set[tuple[bytes, bytes]]] = {}
    for rule in ("same-text", "keep"):
        found = Retrieved(
            tmp_path / rule, folder, model, f"corpus.own_document={rule}", "retrieve.bm25={stemmer: null}"
        )
        own = {
            (query_id(key), doc_id(key))
            for key in found.part("queries", QUERY, found.ingest)["external_id"].to_pylist()
        }
        tables = (found.runs, found.candidates)
        rows = (zip(t["query_id"].to_pylist(), t["doc_id"].to_pylist(), strict=True) for t in tables)
        pairs[rule] = own & {pair for part in rows for pair in part}
        manifest = found.ingest.manifest() or {}
        assert manifest.get("own_documents") == (28 if rule == "same-text" else None)
        assert len(found.ranked("dense", "q20")) == len(found.ranked("hybrid", "q20")) == 30
    assert not pairs["same-text"]
    assert len(pairs["keep"]) > 20


@pytest.mark.parametrize("by", ["_id", "text"])
def test_rankings_of_another_engine_are_a_retriever(
    usual: Retrieved, collection: Path, model: Path, tmp_path: Path, by: str
) -> None:
    """Named by ids or texts of queries; of documents in three shards, and of one that the collection lacks."""
    asked = {row["_id"]: row[by] for row in map(json.loads, (collection / "queries.jsonl").read_text().splitlines())}
    ranked = [f"d{(13 * i) % 140}" for i in range(40)]
    rows = [(asked[f"q{i}"], doc, 40 - at) for i in range(20) for at, doc in enumerate(ranked)]
    rows += [(asked["q3"], "unknown", 50), ("another query", "d1", 1)]
    table = pa.table([pa.array(column) for column in zip(*rows, strict=True)], ["query", "doc_id", "score"])
    pq.write_table(table, tmp_path / "engine.parquet")
    settings = (f"retrieve.engine={tmp_path / 'engine.parquet'}", "retrieve.bm25={stemmer: null}")
    found = Retrieved(tmp_path, collection, model, "retrieve.retrievers=[engine, bm25, dense]", *settings)
    assert found.ranked("engine", "q19") == [doc_id(name) for name in ranked[:30]]
    assert found.scores("engine", "q19")[:2] == [40.0, 39.0]
    assert found.ranked("engine", "q20") == []
    assert found.ranked("bm25", "q19") == usual.ranked("bm25", "q19")
    assert found.ranked("hybrid", "q20") == usual.ranked("hybrid", "q20")
    of_q3 = pc.and_(pc.equal(found.candidates["query_id"], query_id("q3")), pc.equal(found.candidates["rank"], 1))
    assert "engine" in dict(found.candidates.filter(of_q3)["retriever_ranks"][0].as_py())
    assert [text for text in found.notices if "1 of 32 documents" in text or "2 of 8 test queries" in text][1:]
    with pytest.raises(DataError) as caught:
        Retrieved(tmp_path, collection, model, "retrieve.retrievers=[engine]", f"retrieve.engine={_strange(tmp_path)}")
    assert caught.value.place == str(_strange(tmp_path))


def _strange(folder: Path) -> Path:
    """A run of none of the queries."""
    (folder / "strange.tsv").write_text("1\td1\t1\n")
    return folder / "strange.tsv"


def test_shards_change_nothing(usual: Retrieved, collection: Path, model: Path, tmp_path: Path) -> None:
    """A word weighs what it does in the whole collection, though one of three shards has the text of ten megabytes."""
    whole = Retrieved(tmp_path, collection, model, "retrieve.bm25={stemmer: null}", shard=1000)
    assert usual.runs.num_rows > 0
    assert whole.runs.equals(usual.runs)
    assert whole.candidates.equals(usual.candidates)


@needs_lucene
def test_lucene_ranks_as_the_own_bm25_does(usual: Retrieved, collection: Path, model: Path, tmp_path: Path) -> None:
    settings = ("retrieve.retrievers=[lucene, dense]", "retrieve.lucene={stemmer: null}")
    found = Retrieved(tmp_path, collection, model, *settings)
    assert set(found.runs["system"].to_pylist()) == {"lucene", "dense", "hybrid"}
    assert found.ranked("lucene", "stops") == []
    for query in ("q19", "q22", "syntax"):
        one, other = found.ranked("lucene", query), usual.ranked("bm25", query)
        assert set(one[:10]) & set(other[:10])
        assert len(one) == len(other)
    kept = tmp_path / "results" / "artifacts" / "lucene"
    assert len(list(kept.glob("*/manifest.json"))) == 3  # one of each shard
    before = {path: path.stat().st_mtime_ns for path in kept.rglob("*")}
    Retrieved(tmp_path, collection, model, *settings, "retrieve.lucene.k1=1.2", "name=other")
    assert {path: path.stat().st_mtime_ns for path in kept.rglob("*")} == before  # k1 is of searching
    whole = Retrieved(tmp_path / "whole", collection, model, *settings, shard=1000)
    for query in ("q18", "q19", "q20", "q21", "q22", "syntax"):
        assert whole.scores("lucene", query) == pytest.approx(found.scores("lucene", query), rel=1e-5)


def test_a_graph_in_the_place_of_the_flat_index(
    usual: Retrieved, collection: Path, model: Path, tmp_path: Path
) -> None:
    """Shards this small are searched exactly whatever the index, and say the same."""
    found = Retrieved(tmp_path, collection, model, "retrieve.dense.index={kind: hnsw}", "retrieve.bm25={stemmer: null}")
    assert found.runs.equals(usual.runs)
    assert found.candidates.equals(usual.candidates)


def test_without_a_gpu_they_are_refused_at_once(collection: Path, model: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"embedding actor of 1 GPU each.*\n.*set execution\.embed\.gpus: 0"):
        Retrieved(tmp_path, collection, model, "execution.embed.gpus=1")


def with_gpus(root: Path, collection: Path, model: Path) -> tuple[str, list[str]]:
    """What is said where Ray has a GPU and torch sees none, with actors that hold one; and those actors."""
    ray.init(
        address="local", num_cpus=4, num_gpus=1, include_dashboard=False, log_to_driver=False,
        logging_level=logging.ERROR, _temp_dir=str(root / "ray"),
    )  # fmt: skip
    try:
        embed = "execution.embed={gpus: 0.5, actors: [1, 2]}"
        with pytest.raises(ConfigError) as caught:
            Retrieved(root, collection, model, "retrieve.bm25={stemmer: null}", embed)
        return str(caught.value), [actor["ActorClassName"] for actor in state.actors().values()]
    finally:
        ray.shutdown()


@pytest.mark.long
@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")
def test_an_actor_that_sees_no_gpu_says_where(collection: Path, model: Path, short_temp: Path) -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:  # this process has a Ray without
        said, actors = own.submit(with_gpus, short_temp / "gpus", collection, model).result()
    assert any("_Embedder" in actor for actor in actors), actors
    assert platform.node() in said
    assert "set execution.embed.gpus: 0" in said
