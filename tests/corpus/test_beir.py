"""Every way in which a BEIR folder can be wrong, and what a right one gives."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.core import identity
from anmi_ray.corpus import lookup
from anmi_ray.corpus.counts import counted, examples
from tests.corpus import layouts
from tests.corpus.layouts import Reading, read_with

DOCUMENTS = [{"_id": f"d{i}", "title": f"title {i}", "text": f"text of document {i}"} for i in range(20)]
QUERIES = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(12)]
TRAIN = [(f"q{i}", f"d{i}", "1") for i in range(8)]
TEST = [(f"q{i}", f"d{i}", "1") for i in range(8, 12)]

Write = Callable[..., Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Write a small collection; any file may be replaced by raw bytes, or left out with None."""

    def _write(**files: bytes | None) -> Path:
        content = {
            "corpus.jsonl": lines(DOCUMENTS),
            "queries.jsonl": lines(QUERIES),
            "qrels/train.tsv": tsv(TRAIN),
            "qrels/test.tsv": tsv(TEST),
        }
        names = {"documents": "corpus.jsonl", "queries": "queries.jsonl"}
        for key, raw in files.items():
            content[names.get(key, f"qrels/{key}.tsv")] = raw  # pyright: ignore[reportArgumentType]
        (tmp_path / "qrels").mkdir(exist_ok=True)
        for name, raw in content.items():
            if raw is not None:
                (tmp_path / name).write_bytes(raw)
        return tmp_path

    return _write


def lines(rows: list[dict[str, Any]]) -> bytes:
    return b"".join(json.dumps(row).encode() + b"\n" for row in rows)


def tsv(rows: list[tuple[str, ...]], header: str = "query-id\tcorpus-id\tscore\n") -> bytes:
    return (header + "".join("\t".join(row) + "\n" for row in rows)).encode()


def read(path: Path, **settings: Any) -> Reading:
    """Read all, and check every record and the books."""
    settings = {"max_reject_fraction": 1.0, **settings}
    return read_with(CorpusConfig(reader="beir", path=str(path), **settings))


def check_refused(path: Path, place: str, *named: str) -> None:
    """As `layouts.check_refused`."""
    layouts.check_refused({"reader": "beir", "path": str(path)}, place, *named)


def only(rejects: pa.Table, **wanted: str) -> dict[str, str]:
    """The one reject with these values."""
    rows = [row for row in rejects.to_pylist() if all(row[key] == value for key, value in wanted.items())]
    assert len(rows) == 1, rejects.to_pylist()
    return rows[0]


def test_rejects_say_which_and_why(write: Write) -> None:
    rejects = read(write(documents=lines(DOCUMENTS) + b"broken\n" * 4 + lines(DOCUMENTS[:1]))).rejects
    assert examples(rejects) == [
        "4 rejected: broken JSON (Expecting value: line 1 column 1 (char 0)), first documents corpus.jsonl:21",
        "1 rejected: duplicate id, first documents corpus.jsonl:25",
    ]


def test_queries_without_a_qrel_are_train_queries_or_left_out(write: Write) -> None:
    extra = [{"_id": f"x{i}", "text": f"unjudged {i}"} for i in range(30)]
    folder = write(queries=lines(QUERIES + extra))
    found = read(folder, max_reject_fraction=0.0, dev_fraction=0.0)
    assert found.queries["split"].to_pylist().count("train") == 8 + 30
    assert found.rejects.num_rows == 0
    without = read(folder, max_reject_fraction=0.0, dev_fraction=0.0, unlabelled="leave-out")
    assert without.reader.left_out == 30
    assert without.rows == read(write(), dev_fraction=0.0).rows


def test_without_train_qrels_the_others_are_train_and_none_is_dev(write: Write) -> None:
    _, _, queries, qrels, _ = read(write(train=None), dev_fraction=0.5)
    assert sorted(queries["split"].to_pylist()) == ["test"] * 4 + ["train"] * 8
    assert qrels.num_rows == 4


def test_dev_comes_from_judged_train_queries_alone(write: Write) -> None:
    extra = [{"_id": f"x{i}", "text": f"unjudged {i}"} for i in range(40)]
    found = read(write(queries=lines(QUERIES + extra)), dev_fraction=0.5)
    dev = {row["external_id"] for row in found.queries.to_pylist() if row["split"] == "dev"}
    assert len(dev) == 4
    assert dev < {query for query, _, _ in TRAIN}


def test_dev_comes_from_the_train_texts_by_hash(write: Write) -> None:
    queries = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(400)]
    judged = [(f"q{i}", "d1", "1") for i in range(400)]
    folder = write(queries=lines(queries), train=tsv(judged[:300]), test=tsv(judged[300:]))
    first = read(folder, dev_fraction=0.2)[2]
    split = dict(zip(first["text"].to_pylist(), first["split"].to_pylist(), strict=True))
    assert sum(s == "dev" for s in split.values()) == pytest.approx(60, abs=20)
    assert all(split[f"question {i}"] == "test" for i in range(300, 400))
    # The same texts are dev whatever their ids, their order, and the rest of the collection.
    renamed = [{"_id": f"other{i}", "text": f"question {i}"} for i in reversed(range(200))]
    folder = write(queries=lines(renamed), train=tsv([(f"other{i}", "d1", "1") for i in range(200)]), test=None)
    (folder / "qrels/test.tsv").unlink()
    again = read(folder, dev_fraction=0.2)[2]
    assert all(split[t] == s for t, s in zip(again["text"].to_pylist(), again["split"].to_pylist(), strict=True))


def test_a_given_dev_split_is_used(write: Write) -> None:
    _, _, queries, _, _ = read(write(train=tsv(TRAIN[:6]), dev=tsv(TRAIN[6:])), dev_fraction=0.9)
    assert queries["split"].to_pylist().count("dev") == 2


def test_a_text_in_two_splits_stays_in_test_before_dev_before_train(write: Write) -> None:
    twin = [{"_id": "t1", "text": "Question  8"}, {"_id": "t2", "text": "question 0"}]
    folder = write(queries=lines(QUERIES + twin), train=tsv([*TRAIN, ("t1", "d1", "1")]), dev=tsv([("t2", "d2", "1")]))
    _, _, queries, _, rejects = read(folder, max_reject_fraction=0.0)
    assert only(rejects, reason="text in two splits", key="t1")["detail"] == "train query whose text is also in test"
    assert only(rejects, reason="text in two splits", key="q0")["detail"] == "train query whose text is also in dev"
    assert {row["key"] for row in rejects.to_pylist() if row["reason"] == "query was left out"} == {"t1 d1", "q0 d0"}
    assert {"q8", "t2"} <= set(queries["external_id"].to_pylist())


def test_a_query_judged_in_two_splits_keeps_one(write: Write) -> None:
    _, _, queries, qrels, rejects = read(write(train=tsv([*TRAIN, ("q9", "d1", "1")])), max_reject_fraction=0.0)
    assert only(rejects, reason="query belongs to another split")["key"] == "q9 d1"
    assert queries.num_rows == 12
    assert qrels.num_rows == 12


def test_grades_below_one_are_kept_as_zero(write: Write) -> None:
    _, _, _, qrels, _ = read(write(test=tsv([*TEST, ("q8", "d1", "0"), ("q8", "d2", "-1"), ("q8", "d3", "3")])))
    assert sorted(qrels["grade"].to_pylist()) == [0, 0, *[1] * 12, 3]


def test_maximum_numbers_of_queries(write: Write) -> None:
    folder = write()
    every = read(folder, dev_fraction=0.0)[2]
    reader, documents, queries, qrels, rejects = read(folder, dev_fraction=0.0, max_train_queries=3, max_test_queries=0)
    assert set(queries["split"].to_pylist()) == {"train"}
    assert set(queries["external_id"].to_pylist()) < set(every["external_id"].to_pylist())
    assert (queries.num_rows, qrels.num_rows) == (3, 3)
    assert not rejects.num_rows  # left out, not rejected
    assert reader.rows_in() == {"documents": 20, "queries": 3, "qrels": 3}
    counts = counted(reader, documents.num_rows, queries, qrels, qrels.slice(0, 0))
    said = list(counts.notices(Experiment()))
    assert said[:2] == [
        "5 train queries are left out (corpus.max_train_queries)",
        "4 test queries are left out (corpus.max_test_queries)",
    ]
    assert corpus.read(CorpusConfig(reader="beir", path=str(folder))).config.max_reject_fraction == 0.01
    read(folder, max_reject_fraction=0.0, max_train_queries=1)  # left out, not malformed


def test_numbers_as_ids_byte_order_mark_blank_lines_and_a_missing_header(write: Write) -> None:
    documents = b"\xef\xbb\xbf" + lines([{"_id": 7, "text": "seven"}]) + b"\r\n\n" + lines(DOCUMENTS)
    folder = write(documents=documents, test=tsv([*TEST, ("q8", "7", "1")], header=""))
    _, read_documents, _, qrels, rejects = read(folder)
    assert "7" in read_documents["external_id"].to_pylist()
    assert qrels.num_rows == 13
    assert rejects.num_rows == 0


@pytest.mark.parametrize("key", ["a b", "a\tb", "a\x1b[31m", "a\u2028b", "a\x7f", "a\x00"])
def test_an_id_that_no_run_file_can_hold_is_refused_before_anything_is_paid(write: Write, key: str) -> None:
    documents = lines([*DOCUMENTS, {"_id": key, "text": "t"}])
    queries = lines([*QUERIES, {"_id": key, "text": "t"}])
    found = read(write(documents=documents, queries=queries)).rejects
    for place in ("documents corpus.jsonl:21", "queries queries.jsonl:13"):
        refused = only(found, place=place)
        assert "white space or control characters in an id: write _ or %20 in their place" in refused["reason"]
        assert refused["key"].replace(" ", "").isprintable()


@pytest.mark.parametrize("key", ["a%20b", "http://x/a?b=c#d", "[bold]", "[/x]", "é\u00a0b", "a\u200bb", "👩\u200d🔬"])
def test_other_ids_are_ids(write: Write, key: str) -> None:
    found = read(write(documents=lines([*DOCUMENTS, {"_id": key, "text": "t"}])))
    assert found.documents["external_id"].to_pylist()[-1] == key
    assert not found.rejects.num_rows


@pytest.mark.parametrize("name", ["documents", "queries"])
def test_a_missing_file_names_what_is_there(write: Write, name: str) -> None:
    folder = write(**{name: None})
    check_refused(folder, folder.name, *sorted(path.name for path in folder.iterdir()))


@pytest.mark.parametrize("labels", [("train", "dev", "test"), ("test",), ()])
def test_qrels_that_are_not_read_are_named_and_not_opened(write: Write, labels: tuple[str, ...]) -> None:
    folder = write()
    for name in ("train", "test", "validation"):
        if name not in labels:
            (folder / "qrels" / f"{name}.tsv").write_bytes(b"\xff not\ta table")
    (folder / "qrels" / "README").write_text("no grades")
    reader = read(folder, labels=labels).reader
    unread = [name for name in ("test", "train", "validation") if name not in labels]
    assert reader.unread == tuple(f"qrels/{name}.tsv" for name in unread)


def test_a_folder_without_qrels_is_a_collection(write: Write) -> None:
    folder = write(train=None, test=None)
    (folder / "qrels").rmdir()
    found = read(folder)
    assert set(found.queries["split"].to_pylist()) == {"train"}
    assert (found.queries.num_rows, found.qrels.num_rows, found.reader.unread) == (12, 0, ())


def test_a_missing_folder(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for name in ("nowhere", "file"):
        check_refused(tmp_path / name, name, "corpus.path")


def test_the_order_of_calls_is_enforced(write: Write) -> None:
    with pytest.raises(AssertionError, match="before queries"):
        corpus.read(CorpusConfig(reader="beir", path=str(write()))).queries()


def test_dev_queries_share_no_relevant_document_with_train(write: Write) -> None:
    """Three queries a document: they go to one side together, and dev has about its share."""
    queries = [{"_id": f"q{i}", "text": f"question {i}"} for i in range(300)]
    documents = [{"_id": f"d{i}", "title": "", "text": f"text {i}"} for i in range(100)]
    judged = [(f"q{i}", f"d{i // 3}", "1") for i in range(300)] + [(f"q{i}", "d0", "0") for i in range(3, 300)]
    folder = write(documents=lines(documents), queries=lines(queries), train=tsv(judged), test=None)
    (folder / "qrels/test.tsv").unlink(missing_ok=True)
    _, _, first, _, _ = read(folder, dev_fraction=0.2)
    split = dict(zip(first["external_id"].to_pylist(), first["split"].to_pylist(), strict=True))
    assert all(split[f"q{3 * d}"] == split[f"q{3 * d + 1}"] == split[f"q{3 * d + 2}"] for d in range(100))
    assert list(split.values()).count("dev") == 60
    other = read(folder, dev_fraction=0.2, split_seed=1)[2]
    assert other["split"].to_pylist() != first["split"].to_pylist()


def test_of_texts_with_one_id_the_first_is_it(write: Write) -> None:
    twice = [{**DOCUMENTS[0], "text": "another"}]
    folder = write(documents=lines(DOCUMENTS + twice), queries=lines([*QUERIES, {"_id": "q0", "text": "another"}]))
    ids = (pa.chunked_array([[of(name)]]) for of, name in ((identity.query_id, "q0"), (identity.doc_id, "d0")))
    queries, documents = lookup.read_texts(str(folder), *ids)
    assert queries["text"].to_pylist() == [QUERIES[0]["text"]]
    assert documents["text"].to_pylist() == [DOCUMENTS[0]["text"]]
