"""Datasets of ir_datasets' catalogue: local files registered through the library's own interface."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError
from tests.corpus.layouts import SMALL, Collection, read, write_beir, write_lines


class TitledDoc(NamedTuple):
    """A document with a title, as BEIR's are in the catalogue."""

    doc_id: str
    text: str
    title: str

    def default_text(self) -> str:
        return f"{self.title} {self.text}"


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """The library with a home of its own (it makes one when it is imported)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("IR_DATASETS_HOME", str(tmp_path_factory.mktemp("home")))
        import ir_datasets

        yield ir_datasets


@pytest.fixture
def named(library: Any, tmp_path: Path, request: pytest.FixtureRequest) -> dict[str, str]:
    """The small collection in the registry, a dataset per split over shared documents and queries."""
    return register(library, tmp_path, f"anmi-{request.node.name}", SMALL)


def register(library: Any, folder: Path, name: str, collection: Collection) -> dict[str, str]:
    """Register `collection` with JSON lines for documents, tsv for queries, TREC's qrels; the ids by split."""
    import json

    rows = [json.dumps({"doc_id": key, "title": title, "text": text}) for key, title, text in collection.documents]
    local, formats = library.util.LocalDownload, library.formats
    docs = formats.JsonlDocs(local(write_lines(folder / "docs.jsonl", rows)), doc_cls=TitledDoc)
    asked = write_lines(folder / "queries.tsv", ["\t".join(row) for row in collection.queries])
    queries = formats.TsvQueries(local(asked))
    library.registry.register(name, library.Dataset(docs, queries))
    ids = {}
    for split, judged in collection.qrels.items():
        path = write_lines(folder / f"{split}.qrels", [f"{query} 0 {doc} {grade}" for query, doc, grade in judged])
        qrels = formats.TrecQrels(local(path), {})
        ids[split] = f"{name}/{split}"
        library.registry.register(ids[split], library.Dataset(docs, queries, qrels))
    return ids


def test_a_sound_dataset_gives_what_the_same_files_give(named: dict[str, str], tmp_path: Path) -> None:
    found = read({"reader": "ir_datasets", "datasets": named})
    assert found.documents["title"].to_pylist()[3] == "title 3"
    assert found.rows == read(write_beir(tmp_path / "beir", SMALL)).rows
    assert found.rejects.num_rows == 0


def test_train_queries_need_no_qrels_and_hidden_ones_are_not_read(named: dict[str, str], tmp_path: Path) -> None:
    without = {**named, "train": named["train"].removesuffix("/train")}
    found = read({"reader": "ir_datasets", "datasets": without})
    assert sorted(found.queries["split"].to_pylist()) == ["test"] * 4 + ["train"] * 8
    (tmp_path / "train.qrels").unlink()
    hidden = read({"reader": "ir_datasets", "datasets": named, "labels": ["test"]})
    assert hidden.rows == found.rows
    assert hidden.reader.unread == (f"qrels of {named['train']}",)


def test_documents_without_a_title_have_the_librarys_default_text(library: Any, tmp_path: Path) -> None:
    paths = [
        write_lines(tmp_path / "docs", ["a\tfirst text", "b\tsecond text", "c\t ", "a\tagain"]),
        write_lines(tmp_path / "queries", ["q\twhat"]),
        write_lines(tmp_path / "qrels", ["q 0 a 1", "q 0 b -2", "q 0 z 1"]),
    ]
    library.registry.register("anmi-plain", library.create_dataset(*paths))
    found = read({"reader": "ir_datasets", "datasets": {"test": "anmi-plain"}})
    rows = found.documents.select(["external_id", "title", "text"]).to_pylist()
    assert [tuple(row.values()) for row in rows] == [("a", "", "first text"), ("b", "", "second text")]
    assert sorted(found.qrels["grade"].to_pylist()) == [0, 1]
    assert {row["place"]: row["reason"] for row in found.rejects.to_pylist()} == {
        "documents anmi-plain:3": "empty document",
        "documents anmi-plain:4": "duplicate id",
        "qrels anmi-plain:3": "unknown document",
    }


def test_fingerprint_follows_ids_and_content(library: Any, named: dict[str, str], tmp_path: Path) -> None:
    def fingerprint(**datasets: str) -> str:
        return corpus.read(CorpusConfig(reader="ir_datasets", datasets=datasets)).content_fingerprint()  # pyright: ignore[reportArgumentType]

    before = fingerprint(**named)
    assert fingerprint(**named) == before
    assert fingerprint(test=named["train"], train=named["test"]) != before
    assert fingerprint(test=named["test"]) != before
    write_lines(tmp_path / "test.qrels", ["q8 0 d1 1"])
    assert fingerprint(**named) != before


def test_splits_must_be_over_one_collection(library: Any, named: dict[str, str], tmp_path: Path) -> None:
    others = register(library, tmp_path / "other", "anmi-other", SMALL)
    with pytest.raises(
        ConfigError, match=r"over the documents of anmi-test.*, anmi-other/test over those of anmi-other"
    ):
        corpus.read(CorpusConfig(reader="ir_datasets", datasets={"train": named["train"], "test": others["test"]}))  # pyright: ignore[reportArgumentType]


def test_a_query_of_two_splits_with_two_texts_is_a_reject(library: Any, named: dict[str, str], tmp_path: Path) -> None:
    docs = library.load(named["test"]).docs_handler()
    queries = library.formats.TsvQueries(library.util.LocalDownload(write_lines(tmp_path / "other", ["q0\tanother"])))
    qrels = library.load(named["test"]).qrels_handler()
    library.registry.register("anmi-conflict", library.Dataset(docs, queries, qrels))
    found = read({"reader": "ir_datasets", "datasets": {"train": named["train"], "test": "anmi-conflict"}})
    assert found.only("duplicate id")["place"] == "queries anmi-conflict:1"


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("beir/scifact/tset", r"knows no dataset 'beir/scifact/tset'\n.*did you mean beir/scifact/test"),
        ("zzz", r"corpus\.datasets\.test: ir_datasets knows no dataset 'zzz'\n.*https://ir-datasets\.com"),
        ("beir/scifact", r"beir/scifact has no qrels\n.*beir/scifact/test, beir/scifact/train"),
    ],
)
def test_ids_that_cannot_be_used(library: Any, name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        corpus.read(CorpusConfig(reader="ir_datasets", datasets={"test": name}))  # pyright: ignore[reportArgumentType]


def test_files_that_the_library_cannot_read(named: dict[str, str], tmp_path: Path) -> None:
    lines = (tmp_path / "docs.jsonl").read_text().splitlines()
    write_lines(tmp_path / "docs.jsonl", [*lines[:5], "broken"])
    with pytest.raises(DataError, match=r"gives no more docs after 5: JSONDecodeError"):
        read({"reader": "ir_datasets", "datasets": named})
    (tmp_path / "docs.jsonl").unlink()
    with pytest.raises(
        DataError, match=r"corpus anmi-.*no more docs after 0: FileNotFoundError(.|\n)*IR_DATASETS_HOME"
    ):
        read({"reader": "ir_datasets", "datasets": named})


def test_without_the_library_the_message_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ir_datasets", None)
    with pytest.raises(ConfigError, match=re.escape(environment.install("ir-datasets"))):
        corpus.read(CorpusConfig(reader="ir_datasets", datasets={"test": "beir/scifact/test"}))  # pyright: ignore[reportArgumentType]
