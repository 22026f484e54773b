"""BEIR folders: which queries are in which split, which labels are read, and what may be missing or malformed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core import identity
from anmi_ray.corpus import lookup
from anmi_ray.corpus.beir import BeirFiles
from anmi_ray.corpus.counts import counted, examples
from tests.corpus.layouts import SMALL, Collection, Settings, check_refused, read, write_beir

MANY = [(f"q{i}", f"question {i}") for i in range(400)]


@pytest.fixture
def small(tmp_path: Path) -> Settings:
    """Settings of the small collection in this test's folder."""
    return write_beir(tmp_path, SMALL)


def add(path: Path, *rows: Mapping[str, object]) -> None:
    """Append JSON lines to a file."""
    with path.open("a") as file:
        file.writelines(json.dumps(row) + "\n" for row in rows)


def splits(folder: Path, collection: Collection, **settings: object) -> dict[str, str]:
    """The split of every query text."""
    queries = read(write_beir(folder, collection), **settings).queries
    return dict(zip(queries["text"].to_pylist(), queries["split"].to_pylist(), strict=True))


def test_rejects_say_which_and_why(small: Settings, tmp_path: Path) -> None:
    with (tmp_path / "corpus.jsonl").open("a") as file:
        file.write("broken\n" * 4 + '{"_id": "d0", "text": "again"}\n')
    assert examples(read(small).rejects) == [
        "4 rejected: broken JSON (Expecting value: line 1 column 1 (char 0)), first documents corpus.jsonl:21",
        "1 rejected: duplicate id, first documents corpus.jsonl:25",
    ]


def test_dev_comes_from_the_train_texts_by_hash(tmp_path: Path) -> None:
    judged = [(query, "d1", 1) for query, _ in MANY]
    collection = Collection(SMALL.documents, MANY, {"train": judged[:300], "test": judged[300:]})
    first = splits(tmp_path / "one", collection, dev_fraction=0.2)
    assert list(first.values()).count("dev") == pytest.approx(60, abs=20)
    assert all(first[f"question {i}"] == "test" for i in range(300, 400))
    # The same texts are dev whatever their ids, their order, and the rest of the collection.
    renamed = [(f"other{i}", f"question {i}") for i in reversed(range(200))]
    others = Collection(SMALL.documents, renamed, {"train": [(query, "d1", 1) for query, _ in renamed]})
    again = splits(tmp_path / "two", others, dev_fraction=0.2)
    assert again == {text: first[text] for text in again}


def test_dev_queries_share_no_relevant_document_with_train(tmp_path: Path) -> None:
    """Three queries a document: they go to one side together, and dev has about its share."""
    documents = [(f"d{i}", "", f"text {i}") for i in range(100)]
    judged = [(f"q{i}", f"d{i // 3}", 1) for i in range(300)] + [(f"q{i}", "d0", 0) for i in range(3, 300)]
    collection = Collection(documents, MANY[:300], {"train": judged})
    first = splits(tmp_path, collection, dev_fraction=0.2)
    split = [first[text] for _, text in MANY[:300]]
    assert split[::3] == split[1::3] == split[2::3]
    assert split.count("dev") == 60
    assert splits(tmp_path, collection, dev_fraction=0.2, split_seed=1) != first


def test_texts_and_queries_of_two_splits_stay_in_test_before_dev_before_train(tmp_path: Path) -> None:
    twins = replace(
        SMALL,
        queries=[*SMALL.queries, ("t1", "Question  8"), ("t2", "question 0")],
        qrels={
            **SMALL.qrels,
            "train": [*SMALL.qrels["train"], ("t1", "d1", 1), ("q9", "d1", 1)],
            "dev": [("t2", "d2", 1)],
        },
    )
    found = read(write_beir(tmp_path, twins), max_reject_fraction=0.0)
    refused = {(row["reason"], row["key"], row["detail"]) for row in found.rejects.to_pylist()}
    assert refused == {
        ("text in two splits", "t1", "train query whose text is also in test"),
        ("text in two splits", "q0", "train query whose text is also in dev"),
        ("query was left out", "t1 d1", ""),
        ("query was left out", "q0 d0", ""),
        ("query belongs to another split", "q9 d1", "test"),
    }
    assert {"q8", "t2"} <= set(found.queries["external_id"].to_pylist())


def test_maximum_numbers_of_queries(small: Settings) -> None:
    every = read(small).queries
    limits = {"max_train_queries": 3, "max_test_queries": 0, "max_reject_fraction": 0.0}  # left out, not malformed
    reader, documents, queries, qrels, rejects = read(small, **limits)
    assert set(queries["split"].to_pylist()) == {"train"}
    assert set(queries["external_id"].to_pylist()) < set(every["external_id"].to_pylist())
    assert (queries.num_rows, qrels.num_rows, rejects.num_rows) == (3, 3, 0)
    assert reader.rows_in() == {"documents": 20, "queries": 3, "qrels": 3}
    counts = counted(reader, documents.num_rows, queries, qrels, qrels.slice(0, 0))
    assert list(counts.notices(Experiment()))[:2] == [
        "5 train queries are left out (corpus.max_train_queries)",
        "4 test queries are left out (corpus.max_test_queries)",
    ]


def test_numbers_as_ids_byte_order_mark_and_blank_lines(small: Settings, tmp_path: Path) -> None:
    path = tmp_path / "corpus.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"_id": 7, "text": "seven"}\r\n\n' + path.read_bytes())
    with (tmp_path / "qrels" / "test.tsv").open("a") as file:
        file.write("q8\t7\t1\n")
    found = read(small)
    assert "7" in found.documents["external_id"].to_pylist()
    assert (found.qrels.num_rows, found.rejects.num_rows) == (13, 0)


def test_ids_that_no_run_file_can_hold_are_refused_before_anything_is_paid(small: Settings, tmp_path: Path) -> None:
    keys = ["a b", "a\tb", "a\x1b[31m", "a\u2028b", "a\x7f", "a\x00"]
    for name in ("corpus.jsonl", "queries.jsonl"):
        add(tmp_path / name, *({"_id": key, "text": "t"} for key in keys))
    rejects = read(small).rejects.to_pylist()
    places = [f"documents corpus.jsonl:{21 + at}" for at in range(6)]
    assert [row["place"] for row in rejects] == [*places, *(f"queries queries.jsonl:{13 + at}" for at in range(6))]
    for row in rejects:
        assert "white space or control characters in an id: write _ or %20 in their place" in row["reason"]
        assert row["key"].replace(" ", "").isprintable()


def test_other_ids_are_ids(small: Settings, tmp_path: Path) -> None:
    keys = ["a%20b", "http://x/a?b=c#d", "[bold]", "[/x]", "é\u00a0b", "a\u200bb", "👩\u200d🔬"]
    add(tmp_path / "corpus.jsonl", *({"_id": key, "text": "t"} for key in keys))
    found = read(small)
    assert found.documents["external_id"].to_pylist()[20:] == keys
    assert not found.rejects.num_rows


@pytest.mark.parametrize("name", ["corpus.jsonl", "queries.jsonl"])
def test_a_missing_file_names_what_is_there(small: Settings, tmp_path: Path, name: str) -> None:
    (tmp_path / name).unlink()
    check_refused(small, tmp_path.name, *sorted(path.name for path in tmp_path.iterdir()))


@pytest.mark.parametrize("labels", [("train", "dev", "test"), ("test",), ()])
def test_qrels_that_are_not_read_are_named_and_not_opened(
    small: Settings, tmp_path: Path, labels: tuple[str, ...]
) -> None:
    unread = [name for name in ("test", "train", "validation") if name not in labels]
    for name in unread:
        (tmp_path / "qrels" / f"{name}.tsv").write_bytes(b"\xff not\ta table")
    (tmp_path / "qrels" / "README").write_text("no grades")
    assert read(small, labels=labels).reader.unread == tuple(f"qrels/{name}.tsv" for name in unread)


def test_a_folder_without_qrels_is_a_collection(tmp_path: Path) -> None:
    found = read(write_beir(tmp_path, replace(SMALL, qrels={})))
    assert set(found.queries["split"].to_pylist()) == {"train"}
    assert (found.queries.num_rows, found.qrels.num_rows, found.reader.unread) == (12, 0, ())


def test_a_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("nowhere", "file"):
        check_refused({"reader": "beir", "path": str(tmp_path / name)}, name, "corpus.path")


def test_the_order_of_calls_is_enforced(small: Settings) -> None:
    with pytest.raises(AssertionError, match="before queries"):
        corpus.read(CorpusConfig(**small)).queries()


def test_the_first_of_several_texts_with_one_id_is_used(small: Settings, tmp_path: Path) -> None:
    for name, key in (("corpus.jsonl", "d0"), ("queries.jsonl", "q0")):
        add(tmp_path / name, {"_id": key, "text": "another"})
    ids = (pa.chunked_array([[of(name)]]) for of, name in ((identity.query_id, "q0"), (identity.doc_id, "d0")))
    queries, documents = lookup.read_texts(BeirFiles(str(tmp_path)), *ids)
    assert queries["text"].to_pylist() == ["question 0"]
    assert documents["text"].to_pylist() == [SMALL.documents[0][2]]
