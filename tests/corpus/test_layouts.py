"""The same small collection in every layout: what is right, and every way in which rows and files can be wrong."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from tests.corpus.layouts import LAYOUTS, SMALL, Write, read, write_beir, write_csv, write_jsonl, write_trec

TEXT_FILES: list[tuple[Write, str]] = [  # a layout and one of its files
    (write_beir, "corpus.jsonl"),
    (write_beir, "queries.jsonl"),
    (write_beir, "qrels/train.tsv"),
    (write_trec, "disk/part1"),
    (write_trec, "topics.txt"),
    (write_trec, "qrels.test"),
    (write_jsonl, "documents/1.jsonl"),
    (write_csv, "queries.csv"),
]

JSON_DOCUMENTS = [
    (b"not json", "broken JSON"),
    (b'{"_id": "x", "text": "cut', "broken JSON"),
    (b'["a list"]', "broken JSON"),
    (b"[" * 100_000, "broken JSON"),
    (b'{"text": "no id"}', "missing _id"),
    (b'{"_id": null, "text": "no id"}', "missing _id"),
    (b'{"_id": "x", "title": "only a title"}', "missing text"),
    (b'{"_id": "x", "text": ["a", "b"]}', "missing text"),
    (b'{"_id": "x", "title": 3, "text": "a"}', "missing title"),
    (b'{"_id": "x", "title": " ", "text": "\\n"}', "empty document"),
    (b'{"_id": "d3", "text": "again"}', "duplicate id"),
    (b'{"_id": "d3\\u00a0", "text": "again"}', "duplicate id"),
    (b'{"_id": "x", "text": "\xff\xfe"}', "not UTF-8"),
    (b'{"_id": "x", "text": "half a pair \\ud800"}', "not valid Unicode"),
]
JSON_QUERIES = [
    (b"not json", "broken JSON"),
    (b'{"text": "no id"}', "missing _id"),
    (b'{"_id": "x"}', "missing text"),
    (b'{"_id": "x", "text": "  "}', "empty query"),
    (b'{"_id": "q3", "text": "again"}', "duplicate id"),
]
BEIR_QRELS = [
    (b"q0\td5", "not the 3 columns of a grade"),
    (b"q0\t0\td5\t1", "not the 3 columns of a grade"),
    (b"q0\td5\tyes", "grade is not an integer"),
    (b"q0\td5\t1.5", "grade is not an integer"),
    (b"q0\td5\t99999999999", "grade is not an integer"),
    (b"q99\td5\t1", "unknown query"),
    (b"q0\td99\t1", "unknown document"),
    (b"q0\td0\t2", "pair judged twice"),
    (b"q0\t\xff\t2", "not UTF-8"),
]
TREC_DOCUMENTS = [
    (b"\n<DOC>\n<TEXT>a</TEXT>\n</DOC>", "missing DOCNO"),
    (b"\n<DOC>\n<DOCNO> </DOCNO>a</DOC>", "missing DOCNO"),
    (b"\n<DOC>\n<DOCNO>x</DOCNO>\n<TEXT>\n</TEXT>\n</DOC>", "empty document"),
    (b"\n<DOC>\n<DOCNO>d3</DOCNO>\nagain</DOC>", "duplicate id"),
    (b"\n<DOC>\n<DOCNO>x</DOCNO>\n\xff\xfe</DOC>", "not UTF-8"),
    (b"\n<DOC>\n<DOCNO>x</DOCNO>\ncut off", "no </DOC>"),
    (b"\nsome words\nand more", "text outside <DOC>"),
    (b"\n</DOC>", "</DOC> without <DOC>"),
]
TOPICS = [
    (b"\n<top>\n<title> no number\n</top>", "missing num"),
    (b"\n<top>\n<num> Number: 7\n<desc> Description: only this\n</top>", "missing title"),
    (b"\n<top>\n<num> Number: q3\n<title> again\n</top>", "duplicate id"),
    (b"\n<top>\n<num> Number: 7\n<title> cut off", "no </top>"),
    (b"\n7 no topic", "text outside <top>"),
]
TREC_QRELS = [
    (b"q0 0 d5 1 extra", "not the 4 columns of a grade"),
    (b"q0\td5\t1", "not the 4 columns of a grade"),
    (b"q0 0 d5 yes", "grade is not an integer"),
    (b"q99 0 d5 1", "unknown query"),
    (b"q0 0 d99 1", "unknown document"),
    (b"q0 0 d0 2", "pair judged twice"),
]

CSV_DOCUMENTS = [
    (b"x,too few", "not as many columns as the header"),
    (b'x,,"closed"too early', "broken CSV"),
    (b",,no id", "missing doc_id"),
    (b"x,, ", "empty document"),
    (b"d3,,again", "duplicate id"),
    (b"x,,\xff\xfe", "not UTF-8"),
]
CSV_QRELS = [
    (b"q0,d5", "not as many columns as the header"),
    (b"q0,d5,yes", "grade is not an integer"),
    (b"q0,,1", "missing qrels_doc_id"),
    (b"q0,d0,2", "pair judged twice"),
]


def named_as_jsonl(row: bytes) -> bytes:
    """A document of BEIR with the columns of `write_jsonl`."""
    for name, other in ((b'"_id"', b'"docno"'), (b'"title"', b'"head"'), (b'"text"', b'"body"')):
        row = row.replace(name, other)
    return row


MALFORMED = [  # a layout, the file that gets a row more, the row, its place, and why it is refused
    *((write_beir, "corpus.jsonl", row, "documents corpus.jsonl:21", why) for row, why in JSON_DOCUMENTS),
    *((write_beir, "queries.jsonl", row, "queries queries.jsonl:13", why) for row, why in JSON_QUERIES),
    *((write_beir, "qrels/train.tsv", row, "qrels qrels/train.tsv:10", why) for row, why in BEIR_QRELS),
    *((write_trec, "disk/part2", row, "documents part2:2", why) for row, why in TREC_DOCUMENTS),
    *((write_trec, "topics.txt", row, "queries topics.txt:158", why) for row, why in TOPICS),
    *((write_trec, "qrels.train", row, "qrels qrels.train:9", why) for row, why in TREC_QRELS),
    *((write_jsonl, "documents/1.jsonl", named_as_jsonl(row), "documents 1.jsonl:11", why.replace("_id", "doc_id"))
      for row, why in JSON_DOCUMENTS),
    *((write_csv, "documents/1.csv", row, "documents 1.csv:32", why) for row, why in CSV_DOCUMENTS),
    *((write_csv, "train.csv", row, "qrels train.csv:10", why) for row, why in CSV_QRELS),
]  # fmt: skip


@pytest.mark.parametrize("write", LAYOUTS)
def test_a_sound_collection(tmp_path: Path, write: Write) -> None:
    found = read(write(tmp_path, SMALL))
    assert found.documents["external_id"].to_pylist() == [row[0] for row in SMALL.documents]
    assert found.documents["doc_id"].to_pylist()[0] == identity.doc_id("d0")
    split = dict(zip(found.queries["external_id"].to_pylist(), found.queries["split"].to_pylist(), strict=True))
    assert split == {f"q{i}": "train" if i < 8 else "test" for i in range(12)}
    assert (found.qrels.num_rows, found.rejects.num_rows) == (12, 0)


@pytest.mark.parametrize(("write", "name", "row", "place", "reason"), MALFORMED)
def test_a_malformed_row_is_a_reject_with_its_place(
    tmp_path: Path, write: Write, name: str, row: bytes, place: str, reason: str
) -> None:
    settings = write(tmp_path, SMALL)
    with (tmp_path / name).open("ab") as file:
        file.write(row + b"\n")
    found = read(settings)
    assert found.only(reason)["place"] == place
    assert (found.documents.num_rows, found.queries.num_rows, found.qrels.num_rows) == (20, 12, 12)


@pytest.mark.parametrize(
    ("write", "name", "row", "place"),
    [
        (write_beir, "corpus.jsonl", "broken\n", "corpus.jsonl:{}"),
        (write_jsonl, "documents/1.jsonl", "broken\n", "1.jsonl:{}"),
        (write_trec, "disk/part2", "<DOC></DOC>\n", "part2:{}"),
    ],
)
def test_too_many_malformed_rows_are_an_error_with_the_first_places(
    tmp_path: Path, write: Write, name: str, row: str, place: str
) -> None:
    settings = write(tmp_path, SMALL)
    before = len((tmp_path / name).read_text().splitlines()) if (tmp_path / name).exists() else 0
    with (tmp_path / name).open("a") as file:
        file.write(row * 4)
    with pytest.raises(DataError) as caught:
        read(settings, max_reject_fraction=0.01)
    named = [place.format(before + number) + " (" in str(caught.value) for number in (1, 2, 3, 4)]
    assert named == [True, True, True, False]
    assert "4 of 24" in caught.value.message
    assert "0.167" in str(caught.value.remedy)
    read(settings, max_reject_fraction=0.167)


@pytest.mark.parametrize("write", LAYOUTS)
def test_shards_hold_at_most_so_many_documents(tmp_path: Path, write: Write) -> None:
    """They are filled across files and row groups."""
    reader = corpus.read(CorpusConfig(**write(tmp_path, SMALL), shard_documents=8))
    assert [table.num_rows for table in reader.documents()] == [8, 8, 4]


@pytest.mark.parametrize(("write", "name"), TEXT_FILES)
def test_packed_files_and_those_that_end_too_early(tmp_path: Path, write: Write, name: str) -> None:
    settings = write(tmp_path, SMALL)
    plain = read(settings)
    raw, packed = (tmp_path / name).read_bytes(), tmp_path / f"{name}.gz"
    (tmp_path / name).unlink()

    def moved(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: moved(one) for key, one in value.items()}
        return str(packed) if value == str(tmp_path / name) else value

    settings = moved(settings)
    packed.write_bytes(gzip.compress(raw[:100]) + gzip.compress(raw[100:]))  # of two members, as old archives are
    assert read(settings).rows == plain.rows
    for content in (gzip.compress(raw)[:-20], raw):
        packed.write_bytes(content)
        with pytest.raises(DataError) as caught:
            read(settings)
        assert packed.name in str(caught.value.place)


def test_files_packed_by_zstandard(tmp_path: Path) -> None:
    settings = write_beir(tmp_path, SMALL)
    plain = read(settings)
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv"):
        packed = pa.compress((tmp_path / name).read_bytes(), codec="zstd", asbytes=True)
        (tmp_path / f"{name}.zst").write_bytes(packed)
        (tmp_path / name).unlink()
    assert read(settings).rows == plain.rows


@pytest.mark.parametrize("write", LAYOUTS)
def test_a_fingerprint_follows_the_content_and_no_place(tmp_path: Path, write: Write) -> None:
    def fingerprint(folder: Path) -> str:
        return corpus.read(CorpusConfig(**write(folder, SMALL))).content_fingerprint()

    before = fingerprint(tmp_path / "here")
    assert fingerprint(tmp_path / "there") == before
    settings = write(tmp_path / "more", SMALL)
    others = Path(settings["documents"] if settings["reader"] == "table" else tmp_path / "more")
    (others / "README.md").write_text("no part of it")
    assert corpus.read(CorpusConfig(**settings)).content_fingerprint() == before
    path = next(path for path in (tmp_path / "more").rglob("*") if path.is_file() and "test" in path.name)
    path.write_bytes(path.read_bytes()[:-2])
    assert corpus.read(CorpusConfig(**settings)).content_fingerprint() != before
