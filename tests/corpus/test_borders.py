"""What readers normalize: blanks around ids, headers of tsv, encodings, JSON arrays, separators, logs of queries."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import DataError
from anmi_ray.corpus.counts import counted
from tests.corpus.layouts import (
    LAYOUTS,
    SMALL,
    Collection,
    Reading,
    Write,
    read,
    write_beir,
    write_csv,
    write_jsonl,
    write_lines,
    write_trec,
)
from tests.corpus.test_limits import bomb, peak_of

BLANKS = (" ", "\u00a0", "\u200b", "\u3000")


def notices(found: Reading) -> list[str]:
    counts = counted(found.reader, found.documents.num_rows, found.queries, found.qrels, found.qrels.slice(0, 0))
    return list(counts.notices(Experiment()))


@pytest.mark.parametrize("write", LAYOUTS)
def test_blanks_around_ids_are_removed_and_counted(tmp_path: Path, write: Write) -> None:
    spaced = Collection(
        [
            (f"{key}{BLANKS[i % 4] if i < 8 else ''}", title, text)
            for i, (key, title, text) in enumerate(SMALL.documents)
        ],
        [(f"{BLANKS[i % 4]}{key}", text) for i, (key, text) in enumerate(SMALL.queries)],
        {split: [(f"{q}\u00a0", d, grade) for q, d, grade in rows] for split, rows in SMALL.qrels.items()},
    )
    found = read(write(tmp_path / "spaced", spaced), max_reject_fraction=0.0)
    assert found.rows == read(write(tmp_path / "plain", SMALL)).rows
    documents, queries = (2, 3) if write is write_trec else (8, 12)  # SGML's own form has white space around ids
    assert found.reader.trimmed == {"documents": documents, "queries": queries, "qrels": 12}
    assert sum("white space or invisible characters" in text for text in notices(found)) == 3


@pytest.mark.parametrize(
    ("header", "row"),
    [
        ("id\ttext", "{0}\t{1}"),
        ("pid\tpassage", "{0}\t{1}"),
        ('"DocID"\t"Text"', "{0}\t{1}"),
        ("docid\turl\ttitle\tbody", "{0}\thttp://x\t\t{1}"),
    ],
)
def test_a_header_of_tsv_is_no_document_and_no_query(tmp_path: Path, header: str, row: str) -> None:
    settings = write_trec(tmp_path, SMALL)
    plain = read(settings)
    documents = [row.format(key, f"{title} {text}".replace("\n", " ")) for key, title, text in SMALL.documents]
    settings["documents"] = write_lines(tmp_path / "d.tsv", [header, *documents])
    settings["queries"] = write_lines(tmp_path / "q.tsv", ["qid\tquery", *map("\t".join, SMALL.queries)])
    found = read(settings, max_reject_fraction=0.0)
    assert found.documents["external_id"].to_pylist() == plain.documents["external_id"].to_pylist()
    assert found.rows[1:] == plain.rows[1:]
    assert not found.rejects.num_rows


@pytest.mark.parametrize("first", ["text\tmusic", "id0\ttext", "query\thow to query", "d9\tid"])
def test_a_first_row_that_is_not_all_names_of_columns_is_data(tmp_path: Path, first: str) -> None:
    settings = write_trec(tmp_path, SMALL)
    settings["queries"] = write_lines(tmp_path / "q.tsv", [first, *map("\t".join, SMALL.queries)])
    assert read(settings).queries.num_rows == 13


def test_a_header_of_other_columns_is_refused(tmp_path: Path) -> None:
    settings = write_trec(tmp_path, SMALL)
    settings["documents"] = write_lines(tmp_path / "d.tsv", ["text\tid", "some text\td0"])
    with pytest.raises(DataError, match="reader: table"):
        read(settings)


ENCODED = Collection(
    [(f"d{i}", "发酵" * 3, f"文档 {i}：怎样喂养酸面团酵头，每天两次并且保持温暖。自行车链条上油。") for i in range(20)],
    [(f"q{i}", f"自行车链条每 {i} 百公里怎么上油") for i in range(12)],
    SMALL.qrels,
)


@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-le", "gb18030", "utf-8-sig"])
@pytest.mark.parametrize("write", [write_beir, write_trec, write_jsonl, write_csv])
def test_every_reader_of_text_takes_an_encoding_and_names_a_guess(tmp_path: Path, write: Write, encoding: str) -> None:
    plain = read(write(tmp_path, ENCODED))
    for path in tmp_path.rglob("*"):
        if path.is_file():
            text = path.read_bytes().decode()
            if "\\u" in text:  # JSON wrote ASCII alone
                text = "\n".join(json.dumps(json.loads(line), ensure_ascii=False) for line in text.splitlines()) + "\n"
            path.write_bytes(text.encode(encoding))
    settings = write(tmp_path / "other", ENCODED)
    paths = json.loads(json.dumps(settings).replace(str(tmp_path / "other"), str(tmp_path)))
    assert read({**paths, "encoding": encoding}).rows == plain.rows
    if encoding != "utf-8-sig":
        with pytest.raises(DataError) as error:
            read(paths, max_reject_fraction=0.01)
        assert f"corpus.encoding: {encoding[:6]}" in str(error.value.remedy)


def test_bytes_that_an_encoding_cannot_hold_are_a_reject_with_their_line(tmp_path: Path) -> None:
    settings = write_csv(tmp_path, SMALL)
    rows = ["id,text", "a,日本語", "b,bad", "c,日本"]
    content = "\n".join(rows).encode("shift_jis").replace(b"bad", b"\x81")
    (tmp_path / "own.csv").write_bytes(content)
    found = read({**settings, "documents": str(tmp_path / "own.csv"), "encoding": "shift_jis"})
    assert found.documents["text"].to_pylist() == ["日本語", "日本"]
    refused = [row for row in found.rejects.to_pylist() if "own.csv" in row["place"]]
    assert [(row["place"], row["reason"]) for row in refused] == [
        ("documents own.csv:3", "not shift_jis, see corpus.encoding")
    ]


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("packed", [False, True])
def test_a_json_array_is_a_table(tmp_path: Path, indent: int | None, packed: bool) -> None:
    settings = write_jsonl(tmp_path, SMALL)
    plain = read(settings)
    for path in [*tmp_path.rglob("*.jsonl")]:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        content = json.dumps(rows, indent=indent).encode()
        path.unlink()
        path = path.with_suffix(".json.gz" if packed else ".json")
        path.write_bytes(gzip.compress(content) if packed else content)
    named = json.loads(json.dumps(settings).replace(".jsonl", ".json.gz" if packed else ".json"))
    assert read(named, max_reject_fraction=0.0).rows == plain.rows


@pytest.mark.parametrize("tail", ["", "]x", '{"_id": 1}]', ", tru]"])
def test_a_broken_array_is_an_error_that_says_where(tmp_path: Path, tail: str) -> None:
    settings = write_jsonl(tmp_path, SMALL)
    (tmp_path / "d.json").write_text('[{"id": "a", "text": "x"}, {"id": "b", "text": "y"}' + tail)
    with pytest.raises(DataError) as error:
        read({**settings, "documents": str(tmp_path / "d.json"), "columns": {}})
    assert str(error.value.place).endswith("d.json")
    assert error.value.remedy


def test_an_element_without_end_takes_no_memory(tmp_path: Path) -> None:
    name = bomb(tmp_path / "one.json.gz", b'[{"id": "d", "text": "t"}, {"id": "', tail=b'"}]')
    taken, said = peak_of(reader="table", documents=str(name), queries=write_csv(tmp_path / "small", SMALL)["queries"])
    assert "element 2" in said[0]
    assert "larger than 16 MiB" in said[0]
    assert taken < 200


@pytest.mark.parametrize("mark", [";", ",", "\t", "|", "^"])
def test_a_first_line_of_sep_declares_the_separator(tmp_path: Path, mark: str) -> None:
    settings = write_csv(tmp_path, SMALL)
    rows = [f"sep={mark}", f"id{mark}text", f'a{mark}"one, two; three"', f"b{mark}two"]
    if mark == "\t":
        rows[2] = rows[2].replace('"', "")
    (tmp_path / "own.csv").write_bytes(b"\xef\xbb\xbf" + "\r\n".join(rows).encode())
    found = read({**settings, "documents": str(tmp_path / "own.csv")})
    assert found.documents["text"].to_pylist() == ["one, two; three", "two"]


@pytest.mark.parametrize("name", ["log.csv", "log.txt", "log.jsonl"])
def test_a_log_of_queries_gets_ids_by_hash_and_reads_repeats_once(tmp_path: Path, name: str) -> None:
    settings = {**write_csv(tmp_path, SMALL), "qrels": None}
    texts = ["open a file", "sort a list", "Open  a file", "open a file"]
    lines = {
        "log.csv": ["query,clicks", *(f"{text},1" for text in texts)],
        "log.txt": texts,
        "log.jsonl": [json.dumps({"query": text}) for text in texts],
    }
    found = read({**settings, "queries": write_lines(tmp_path / name, lines[name])}, max_reject_fraction=0.0)
    other = read({**settings, "queries": write_lines(tmp_path / "one.txt", texts[1:3])})
    assert sorted(found.queries["text"].to_pylist()) == sorted(texts[:2])
    assert set(found.queries["external_id"].to_pylist()) == set(other.queries["external_id"].to_pylist())
    assert found.reader.repeated == 2
    assert any(text.startswith("2 ") for text in notices(found))
    assert found.reader.rows_in()["queries"] == 2


def test_queries_without_ids_cannot_be_judged(tmp_path: Path) -> None:
    settings = write_csv(tmp_path, SMALL)
    with pytest.raises(DataError, match="no column for the query_id"):
        read({**settings, "queries": write_lines(tmp_path / "log.csv", ["query", "open a file"])})
