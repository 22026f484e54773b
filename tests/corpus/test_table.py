"""Tables of documents, queries and qrels: columns, types, places, and every way in which they can be wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core.errors import DataError
from tests import s3 as endpoints
from tests.corpus.layouts import (
    SMALL,
    Settings,
    check_refused,
    read,
    write_csv,
    write_jsonl,
    write_lines,
    write_parquet,
)


def not_utf8(values: list[bytes]) -> pa.Array:
    """A column of texts that are none, as writers that check nothing leave it."""
    raw = pa.array(values, pa.binary())
    return pa.Array.from_buffers(pa.string(), len(raw), raw.buffers())


def with_documents(folder: Path, table: pa.Table, **columns: str) -> Settings:
    """The small collection with these documents."""
    settings = write_parquet(folder, SMALL)
    pq.write_table(table, folder / "own.parquet")
    return {**settings, "documents": str(folder / "own.parquet"), "columns": columns}


@pytest.mark.s3
def test_a_collection_on_s3(tmp_path: Path, s3: endpoints.S3Endpoint) -> None:
    settings = write_parquet(tmp_path, SMALL)
    for path in tmp_path.rglob("*.parquet"):
        s3.client.put_object(Bucket=endpoints.BUCKET, Key=f"mine/{path.relative_to(tmp_path)}", Body=path.read_bytes())
    s3.client.put_object(Bucket=endpoints.BUCKET, Key="mine/documents/_SUCCESS", Body=b"")
    remote = {
        **settings,
        "documents": s3.uri("mine/documents"),
        "queries": s3.uri("mine/queries.parquet"),
        "qrels": {split: s3.uri(f"mine/{split}.parquet") for split in settings["qrels"]},
    }
    here, there = read(settings), read(remote)
    assert there.rows == here.rows
    assert there.reader.content_fingerprint() == here.reader.content_fingerprint()
    with pytest.raises(DataError, match="no such file or folder") as caught:
        corpus.read(CorpusConfig(**{**remote, "queries": s3.uri("mine/none.parquet", credentials="key:word@")}))
    assert "word" not in str(caught.value)


def test_file_uris_and_folders_with_other_files(tmp_path: Path) -> None:
    settings = write_parquet(tmp_path, SMALL)
    for name in ("_SUCCESS", ".part-9.parquet", "README.md", "_temporary/part-8.parquet"):
        write_lines(tmp_path / "documents" / name, ["no table"])
    found = read({**settings, "documents": f"file://{tmp_path}/documents"})
    assert found.documents.num_rows == 20


def test_quotes_and_blank_lines_of_csv(tmp_path: Path) -> None:
    """Lines are counted as in the file; rows may be large, and a quote inside a cell is a character."""
    settings = write_csv(tmp_path, SMALL)
    records = (
        b'd0,,"a ""quoted"" word,\r\n\r\nand a blank line"\r\n\r\n',
        b"d1,too few\n",
        b'd4,,5" tall\n',
        b'd5,,"' + b"ten bytes " * 20_000 + b'"',
    )
    (tmp_path / "own.csv").write_bytes(b"\xef\xbb\xbfid,title,text\r\n" + b"".join(records))
    found = read({**settings, "documents": str(tmp_path / "own.csv"), "qrels": None})
    texts = {row["external_id"]: row["text"] for row in found.documents.to_pylist()}
    assert list(texts) == ["d0", "d4", "d5"]
    assert texts["d0"] == 'a "quoted" word,\n\nand a blank line'
    assert len(texts["d5"]) == 199_999
    assert found.only("not as many columns as the header")["place"] == "documents own.csv:6"


def test_a_quotation_mark_that_is_never_closed_is_an_error_that_says_where(tmp_path: Path) -> None:
    settings = {**write_csv(tmp_path, SMALL), "documents": str(tmp_path / "own.csv")}
    write_lines(tmp_path / "own.csv", ["id,title,text", "d0,,one", 'd1,,"two', "d2,,three"])
    check_refused(settings, "own.csv:3", "quote")


def test_types_that_are_as_good_as_text(tmp_path: Path) -> None:
    table = pa.table(
        {
            "id": pa.array([1, 2, None], pa.int64()),
            "title": pa.array(["a", "b", "c"]).dictionary_encode(),
            "text": pa.array(["x", None, "z"], pa.large_string()),
        }
    )
    settings = with_documents(tmp_path, table)
    grades = pa.table({"query_id": ["q0", "q1"], "doc_id": [1, 1], "relevance": [1.0, 1.5]})
    pq.write_table(grades, tmp_path / "test.parquet")
    found = read({**settings, "qrels": {"test": str(tmp_path / "test.parquet")}})
    assert found.documents.select(["external_id", "title"]).to_pylist() == [{"external_id": "1", "title": "a"}]
    assert found.qrels["grade"].to_pylist() == [1]
    places = {row["place"]: row["reason"] for row in found.rejects.to_pylist() if row["place"][0] != "q"}
    assert places == {"documents own.parquet row 2": "missing text", "documents own.parquet row 3": "missing doc_id"}
    assert "grade is not an integer" in found.rejects["reason"].to_pylist()


def test_bad_rows_of_parquet_are_rejects_with_file_and_row(tmp_path: Path) -> None:
    texts = not_utf8([b"good", b"\xff\xfe", b" ", b"again"])
    found = read(with_documents(tmp_path, pa.table({"_id": ["a", "b", "c", "a"], "text": texts})))
    assert found.documents["external_id"].to_pylist() == ["a"]
    places = {row["place"]: row["reason"] for row in found.rejects.to_pylist() if "own" in row["place"]}
    assert places == {
        "documents own.parquet row 2": "not UTF-8",
        "documents own.parquet row 3": "empty document",
        "documents own.parquet row 4": "duplicate id",
    }


@pytest.mark.parametrize(
    ("table", "columns", "place", "named"),
    [
        (
            {"key": ["a"], "text": ["b"]},
            {},
            "own.parquet, columns key, text",
            ("_id, id, doc_id", "corpus.columns.doc_id"),
        ),
        ({"id": ["a"], "body": ["b"]}, {}, "own.parquet, columns id, body", ("corpus.columns.text",)),
        (
            {"id": ["a"], "_id": ["a"], "text": ["b"]},
            {},
            "columns id, _id, text",
            ("_id and id", "corpus.columns.doc_id"),
        ),
        ({"id": ["a"], "text": ["b"]}, {"title": "headline"}, "id, text", ("headline", "corpus.columns.title")),
        ({"id": ["a"], "text": [["b", "c"]]}, {}, "own.parquet", ("column text (text)", "list", "corpus.columns.text")),
        ({"id": [1.5], "text": ["b"]}, {}, "own.parquet", ("column id (doc_id)", "double", "corpus.columns.doc_id")),
        ({"id": ["a"], "text": [3]}, {}, "own.parquet", ("column text (text)", "int64", "corpus.columns.text")),
    ],
)
def test_columns_that_cannot_be_used(
    tmp_path: Path, table: dict[str, list[Any]], columns: dict[str, str], place: str, named: tuple[str, ...]
) -> None:
    check_refused(with_documents(tmp_path, pa.table(table), **columns), place, *named)


def test_a_named_column_settles_which_is_meant(tmp_path: Path) -> None:
    table = pa.table({"id": ["row1"], "_id": ["a"], "text": ["b"], "title": ["t"]})
    found = read(with_documents(tmp_path, table, doc_id="_id", title="id"))
    assert found.documents.select(["external_id", "title"]).to_pylist() == [{"external_id": "a", "title": "row1"}]


def test_the_columns_of_json_lines_are_those_of_its_first_lines(tmp_path: Path) -> None:
    settings = write_jsonl(tmp_path, SMALL)
    write_lines(tmp_path / "documents" / "1.jsonl", ["broken", '{"docno": "a"}', '{"docno": "b", "body": "c"}'])
    assert "b" in read(settings).documents["external_id"].to_pylist()
    write_lines(tmp_path / "documents" / "1.jsonl", [json.dumps({"docno": "a", "text": "c"})])
    check_refused(settings, "1.jsonl, columns docno, text", "corpus.columns.text")


def test_titles_of_json_lines_may_begin_late(tmp_path: Path) -> None:
    settings = write_jsonl(tmp_path, SMALL)
    rows = [{"id": f"late{i}", "text": "some text", **({"title": f"title {i}"} if i > 100 else {})} for i in range(150)]
    write_lines(tmp_path / "late.jsonl", [json.dumps(row) for row in rows])
    found = read({**settings, "documents": str(tmp_path / "late.jsonl"), "columns": {}, "qrels": None})
    assert found.documents["title"].to_pylist() == [row.get("title", "") for row in rows]


@pytest.mark.parametrize("size", [0, 3, 300, -1])
def test_a_truncated_parquet_file_is_an_error_that_names_it(tmp_path: Path, size: int) -> None:
    settings = write_parquet(tmp_path, SMALL)
    path = tmp_path / "documents" / "part-1.parquet"
    path.write_bytes(path.read_bytes()[:size])
    check_refused(settings, "part-1.parquet")


def test_broken_pages_are_an_error_that_says_how_far_it_came(tmp_path: Path) -> None:
    keys = [f"a{i}" for i in range(4000)]
    table = pa.table({"_id": keys, "text": [f"some text {i}" for i in range(4000)]})
    settings = with_documents(tmp_path, table)
    pq.write_table(table, tmp_path / "own.parquet", row_group_size=1000, use_dictionary=False)
    group = pq.ParquetFile(tmp_path / "own.parquet").metadata.row_group(2)
    at = group.column(1).data_page_offset
    raw = bytearray((tmp_path / "own.parquet").read_bytes())
    raw[at : at + 400] = b"\xff" * 400
    (tmp_path / "own.parquet").write_bytes(raw)
    with pytest.raises(DataError, match=r"own\.parquet: cannot be read after row (1792|2000)"):
        read(settings)


def test_empty_tables_hold_nothing(tmp_path: Path) -> None:
    settings = write_parquet(tmp_path, SMALL)
    write_lines(tmp_path / "documents" / "empty.jsonl", [])
    write_lines(tmp_path / "documents" / "empty.tsv", [])
    pq.write_table(
        pa.table({"_id": pa.array([], pa.string()), "text": pa.array([], pa.null())}), tmp_path / "e.parquet"
    )
    (tmp_path / "e.parquet").rename(tmp_path / "documents" / "e.parquet")
    assert read(settings).documents.num_rows == 20


def test_a_named_title_that_no_line_has_is_an_error(tmp_path: Path) -> None:
    settings = write_jsonl(tmp_path, SMALL)
    named = {"title": "headline", "text": "body"}
    check_refused({**settings, "columns": named}, "documents", "headline", "corpus.columns.title")


def test_an_unknown_format_and_a_folder_without_tables(tmp_path: Path) -> None:
    settings = write_parquet(tmp_path, SMALL)
    (tmp_path / "bare").mkdir()
    write_lines(tmp_path / "queries.xlsx", ["id,text"])
    formats = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
    check_refused({**settings, "queries": str(tmp_path / "queries.xlsx")}, "queries.xlsx", *formats, "corpus.queries")
    check_refused({**settings, "documents": str(tmp_path / "bare")}, "bare", *formats)


def test_a_large_document_is_kept_whole(tmp_path: Path) -> None:
    text = "ten bytes " * (1 << 20)
    found = read(with_documents(tmp_path, pa.table({"_id": ["a"], "text": [text]})))
    assert found.documents["text"].to_pylist() == [text.strip()]
