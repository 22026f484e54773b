"""Files of preferences: broken lines have their number, and nothing is swallowed."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.tables import formats, streams
from anmi_ray.tables.formats import content_hash, read_batches, read_rows
from anmi_ray.tables.preferences import ANSWERS, GAMES, PreferenceRows, Reading, read_preferences
from anmi_ray.tables.rows import Rows

HEAD = b"query_id,doc_a,doc_b,preference\n"


def write(path: Path, text: str) -> PreferenceRows:
    path.write_bytes(text.encode())
    return read_preferences(path, GAMES)


def test_broken_lines_of_csv_have_their_number(tmp_path: Path) -> None:
    lines = ["\ufeffquery_id,note,doc_a,doc_b,preference", 'q,"two, cells",a,b,1', "", "q,a,b", "q,,a,b,2", ",,,,"]
    read = write(tmp_path / "p.csv", "\r\n".join([*lines, "q,,a,c,.5", ""]))
    assert read.reasons() == {
        "not as many columns as the header": (1, [f"{tmp_path / 'p.csv'}:4: 3 columns, must be 5, separated by comma"]),
        "preference outside [0, 1]": (1, [f"{tmp_path / 'p.csv'}:5: 2"]),
    }
    assert read.rows == 4


def test_broken_lines_of_jsonl_have_their_number(tmp_path: Path) -> None:
    good = '{"query_id": 7, "doc_a": "a", "doc_b": "b", "preference": 1}'
    lines = [
        good,
        "",
        "{",
        "[1]",
        good.replace("7", "[7]"),
        good.replace(": 1", ": true"),
        good.replace('"b"', '"\\ud800"'),
    ]
    read = write(tmp_path / "p.jsonl", "\n".join([*lines, good[:-1] + ', "games": 2}']))
    places = read.rejects["place"].to_pylist()
    assert places == [f"{tmp_path / 'p.jsonl'}:{n}" for n in (3, 4, 5, 7, 6)]
    assert read.reasons()["broken JSON"][0] == 2
    assert read.reasons()["preference true or false (write 1 or 0)"] == (1, [f"{places[-1]}: true"])
    assert read.games.tolist() == [1.0, 2.0]
    assert read.query.to_pylist() == ["7", "7"]


@pytest.mark.parametrize(
    "rest",
    [
        'q,"a,b,1,\nq,a,c,1,\n',
        'q,a,"b,1,\nq,a,c,1,\n',
        'q,a,b,"1,\nq,a,c,1,\n',
        'q,a,b,"1\nq,a,c,1",\n',
        'q,b,c,,"timeout\nq,a,c,1,\nq,a,d,1,\n',
        'q,b,c,,"time\nq,a,c,1,\nq,a,d,,out"\n',
        'q,b,c,,"x\nq,a,c,1,y"z\n',
    ],
)
def test_a_quote_left_open_swallows_nothing_silently(tmp_path: Path, rest: str) -> None:
    good = "q,a,b,1,\n" * 50
    with pytest.raises(DataError, match=r"p\.csv:52.*quote"):
        write(tmp_path / "p.csv", f"query_id,doc_a,doc_b,preference,error\n{good}{rest}")


@pytest.mark.parametrize("name", ["p.json", "p.jsonl", "p.json.gz"])
@pytest.mark.parametrize("indent", [None, 2])
def test_a_json_array_is_read_as_lines_are(tmp_path: Path, name: str, indent: int | None) -> None:
    """Also where elements are cut by the pieces in which the file is read."""
    row = {"doc_a": "a,\n]{", "doc_b": "b", "note": ["[", [1]] * 30}  # larger than a piece
    rows = [{"query_id": f"q{i}", **row, "preference": i % 2} for i in range(500)]
    content = json.dumps([*rows, "no object"], indent=indent).encode()
    path = tmp_path / name
    path.write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "_PIECE", 101)
        read = read_preferences(path, GAMES)
    assert read.query.to_pylist() == [row["query_id"] for row in rows]
    assert read.rejects["place"].to_pylist() == [f"{path}:501"]
    with pytest.raises(ConfigError):
        formats.format_of(path if name != "p.jsonl" else tmp_path / "x.json")  # as output


@pytest.mark.parametrize("encoding", ["gb18030", "shift_jis", "latin-1"])
def test_a_guess_of_the_encoding_is_named(tmp_path: Path, encoding: str) -> None:
    word = {"gb18030": "自行车链条怎么上油", "shift_jis": "チェーンに油をさす", "latin-1": "café à côté où"}[encoding]
    rows = "".join(f"q,{word} {i},b,1\n" for i in range(5))
    (tmp_path / "p.csv").write_bytes(f"query_id,doc_a,doc_b,preference\n{rows}".encode(encoding))
    with pytest.raises(DataError) as error:
        read_preferences(tmp_path / "p.csv", GAMES)
    guess = {"gb18030": "gb18030", "shift_jis": "cp932", "latin-1": "cp1252"}[encoding]
    assert f"iconv -f {guess} " in str(error.value.remedy)


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("reading", [GAMES, ANSWERS], ids=["rate", "audit"])
def test_errors_may_run_over_lines(tmp_path: Path, reading: Reading, end: str) -> None:
    """A quoted cell with line breaks, commas and doubled quotes (RFC 4180); a page of HTML is longer than any id."""
    errors = [f'"HTTP 500{end}upstream, ""retry"": 1,,{end}{end}"', f'"<html>{"x" * 9000}"', f'"{end}"', "timeout"]
    rows = [f"q,a,b{number},1,{error}" for number, error in enumerate(errors)]
    path = tmp_path / "p.csv"
    path.write_bytes(end.join(["query_id,doc_a,doc_b,preference,error", *rows, ""]).encode())
    read = read_preferences(path, reading)
    assert (read.rows, read.rejects.num_rows) == (4, 0)
    first, second, *others = read.error.to_pylist()
    assert first == 'HTTP 500 upstream, "retry": 1,,'
    assert second.startswith("<html>xxx")
    assert len(second) == 200
    assert others == [None, "timeout"]
    assert np.isnan(read.preference).tolist() == [True, True, False, True]


ORDERS = {
    1: ["ab", "AB", " Ab\t", "\u00a0ab\u00a0", "A-B", "a, b", "A/B", "first", "First", "original",
        "not swapped", "doc_a"],
    -1: ["ba", "BA", "ba ", "b_a", "(B, A)", "second", "Swapped", "reversed", "flipped", "doc_b first"],
}  # fmt: skip


@pytest.mark.parametrize("reading", [GAMES, ANSWERS], ids=["rate", "audit"])
@pytest.mark.parametrize("name", ["p.csv", "p.jsonl", "p.parquet"])
def test_orders_in_words(tmp_path: Path, reading: Reading, name: str) -> None:
    words = [word for shown in ORDERS for word in ORDERS[shown]]
    bad = ["0", "1", "true", "baa", "a>b", "neither"]
    rows = [(f"d{number}", word) for number, word in enumerate([*words, *bad])]
    ends = {"query_id": ["q"] * len(rows), "doc_a": [doc for doc, _ in rows], "doc_b": ["other"] * len(rows)}
    table = pa.table({**ends, "preference": [1.0] * len(rows), "order": [word for _, word in rows]})
    formats.write_table(table, tmp_path / name)
    read = read_preferences(tmp_path / name, reading)
    assert read.shown.tolist() == [shown for shown in ORDERS for _ in ORDERS[shown]]
    assert set(read.rejects["reason"].to_pylist()) == {"order neither ab nor ba"}
    assert read.rejects["detail"].to_pylist() == bad
    assert any("true" in place for place in read.reasons()["order neither ab nor ba"][1])


@pytest.mark.parametrize("name", ["p.csv", "p.jsonl.gz", "p.parquet"])
def test_blanks_around_ids_and_names_are_removed_and_counted(tmp_path: Path, name: str) -> None:
    columns = {
        "query_id": ["q", "q ", "\u00a0q"],
        "doc_a": ["a", "a\t", "\ufeffa"],
        "doc_b": ["b", "b\u200b", "b c"],
        "judge": ["gpt ", "gpt", "\u3000"],
        "preference": [1.0, 0.0, 0.5],
    }
    formats.write_table(pa.table(columns), tmp_path / name)
    read = read_preferences(tmp_path / name, ANSWERS)
    assert read.query.to_pylist() == ["q"] * 3
    assert read.doc_a.to_pylist() == ["a"] * 3
    assert read.doc_b.to_pylist() == ["b", "b", "b c"]
    assert read.judge.to_pylist() == ["gpt", "gpt", ""]
    assert read.stripped == 7


@pytest.mark.parametrize("column", ["preference", "games"])
@pytest.mark.parametrize(("name", "value"), [("p.jsonl", "true"), ("p.csv", "False"), ("p.jsonl", '"TRUE"')])
def test_booleans_in_columns_of_numbers_are_named(tmp_path: Path, column: str, name: str, value: str) -> None:
    cells = {"query_id": '"q"', "doc_a": '"a"', "doc_b": '"b"', "preference": "1", column: value}
    text = ",".join(cells) + "\n" + ",".join(cells.values()) + "\n"
    if name == "p.jsonl":
        text = "{" + ", ".join(f'"{key}": {cell}' for key, cell in cells.items()) + "}\n"
    read = write(tmp_path / name, text)
    [(reason, (count, [place]))] = read.reasons().items()
    assert (reason, count) == (f"{column} true or false (write 1 or 0)", 1)
    assert place.endswith(f": {value.strip(chr(34))}")


@pytest.mark.parametrize(("mark", "declared"), [*((mark, no) for mark in ",\t;|" for no in (0, 1)), ("^", 1)])
@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_what_separates_cells_is_seen_in_the_header_or_declared_above_it(
    tmp_path: Path, mark: str, declared: int, end: str
) -> None:
    lines = ["query_id,doc_a,doc_b,preference", "q,a,b,1", "q,a,b", "q,a,c,.5"]
    text = f"sep={mark}{end}" * declared + "".join(line.replace(",", mark) + end for line in lines)
    for name in ("p.csv", "p.tsv"):
        read = write(tmp_path / name, text)
        assert read.preference.tolist() == [1.0, 0.5]
        assert read.rejects["place"].to_pylist() == [f"{tmp_path / name}:{3 + declared}"]


def test_a_decimal_comma_is_named(tmp_path: Path) -> None:
    read = write(tmp_path / "p.csv", "query_id;doc_a;doc_b;preference\nq;a;b;0,5\nq;a;c;1\n")
    assert read.reasons() == {"preference with a decimal comma (write a point)": (1, [f"{tmp_path / 'p.csv'}:2: 0,5"])}


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("p.csv", HEAD.decode().encode("utf-16"), "is UTF-16"),
        ("p.jsonl", '{"query_id": 1}\n'.encode("utf-16-le"), "is UTF-16"),
        ("p.csv", b"x" * streams.MAX_LINE + b"\n", "header is invalid: larger"),
        ("p.csv", b"query_id,doc_a,doc_b,preference\rq,a,b,1\r", "its header is invalid"),
        ("p.jsonl", b"query_id,doc_a\n", "no line can be read; of the first: Expecting value"),
        ("p.csv", b",".join(b"column%d" % i for i in range(9999)) + b"\n", "has no column query_id"),
        ("p.csv", HEAD + b"q,\xe9,b,1\n", r"p\.csv:2: is not UTF-8"),
        ("p.csv.gz", HEAD, "cannot be unpacked"),
        ("p.parquet", HEAD, "not a Parquet file"),
        ("p.csv", b"", "is empty"),
        ("p.csv", b"query_id,doc_a,doc_a,doc_b,preference\nq,a,b,c,1\n", "several columns doc_a"),
    ],
)
def test_files_of_another_kind_give_short_errors(tmp_path: Path, name: str, content: bytes, message: str) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        read_preferences(tmp_path / name, GAMES)
    assert len(str(caught.value)) < 600


def test_a_line_that_is_too_large_is_told_from_one_that_is_broken(tmp_path: Path) -> None:
    large = '"' + "x" * streams.MAX_LINE + '"'
    good = '{"query_id": "q", "doc_a": "a", "doc_b": "b", "preference": 1}'
    table = ["query_id,doc_a,doc_b,preference", "q,a", large, "q,a,b,1", "q,c,d,1"]
    for name, lines, numbers in (("p.jsonl", [good, "{", large, good], (2, 3)), ("p.csv", table, (2, 3))):
        read = write(tmp_path / name, "\n".join(lines))
        assert len(read.query) == 2
        assert read.rejects["place"].to_pylist() == [f"{tmp_path / name}:{number}" for number in numbers]
        assert read.rejects["reason"].to_pylist()[1] == "larger than 16 MiB"
        assert read.rejects["detail"].to_pylist()[1] == f"{streams.MAX_LINE + 3:,} bytes"


def packed(tmp_path: Path, cells: list[str], dictionary: bool) -> Path:
    """Preferences of these documents, as Parquet."""
    count = len(cells)
    columns = {"query_id": ["q"] * count, "doc_b": [f"b{at}" for at in range(count)], "preference": [1.0] * count}
    file = tmp_path / "p.parquet"
    table = pa.table({**columns, "doc_a": pa.array(cells, pa.large_string())})
    pq.write_table(table, file, compression="zstd", use_dictionary=dictionary)
    return file


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    cells=st.lists(st.sampled_from(["a", "é", "y" * 4096, "z" * 4097]), min_size=1, max_size=40),
    dictionary=st.booleans(),
)
def test_parquet_is_read_whole_whatever_its_pages_hold(tmp_path: Path, cells: list[str], dictionary: bool) -> None:
    read = read_preferences(packed(tmp_path, cells, dictionary), GAMES)
    assert read.doc_a.to_pylist() == cells
    assert read.number.tolist() == list(range(1, len(cells) + 1))


@pytest.mark.slow
def test_parquet_that_unpacks_to_more_than_any_table_is_refused_unread(tmp_path: Path) -> None:
    file = packed(tmp_path, ["a" * (300 << 20)], dictionary=False)
    assert file.stat().st_size < 1e6
    before = pa.total_allocated_bytes()
    with pytest.raises(DataError, match="column doc_a unpacks to 315 MB in one row group, over 100 times"):
        read_preferences(file, GAMES)
    assert pa.total_allocated_bytes() - before < 1e6


def test_a_column_of_parquet_that_stands_twice_is_named(tmp_path: Path) -> None:
    names = ["query_id", "query_id", "doc_a", "doc_b", "preference"]
    table = pa.Table.from_arrays([pa.array(["q"])] * 4 + [pa.array([0.5])], names=names)
    pq.write_table(table, tmp_path / "d.parquet")
    with pytest.raises(DataError, match="several columns query_id"):
        read_preferences(tmp_path / "d.parquet", GAMES)


CELLS = st.sampled_from(["q", "a", "b", "", "x y", "é", "0.5", "judge"])
RECORDS = st.lists(st.tuples(CELLS, CELLS, CELLS, CELLS, CELLS), max_size=40)
NAMES = ("query_id", "note", "doc_a", "doc_b", "preference")


def read_whole_and_parted(path: Path, block: int) -> tuple[Rows, list[Rows]]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(streams, "BLOCK", block)
        patch.setattr(formats, "_BATCH", max(1, block // 50))
        parts = list(read_batches(path, ANSWERS.texts, ANSWERS.numbers))
    return read_rows(path, ANSWERS.texts, ANSWERS.numbers), parts


def same(whole: Rows, parts: list[Rows]) -> bool:
    """Rows, where they stood, and what was refused."""
    assert parts
    known = {*ANSWERS.texts, *ANSWERS.numbers}
    assert all(known & set(part.columns) == known & set(whole.columns) for part in parts)
    tables = [part.table.select(whole.table.column_names) for part in parts]
    assert pa.concat_tables(tables).to_pylist() == whole.table.to_pylist()
    places = [place for part in parts for place in part.places(np.arange(part.table.num_rows)).to_pylist()]
    assert places == whole.places(np.arange(whole.table.num_rows)).to_pylist()
    assert pa.concat_tables([part.refused for part in parts]).to_pylist() == whole.refused.to_pylist()
    return True


@given(
    rows=RECORDS,
    broken=st.sets(st.integers(0, 45)),
    plain=st.integers(0, 40),
    block=st.integers(200, 400),
    end=st.sampled_from(["\n", "\r\n"]),
)
def test_batches_of_csv_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], broken: set[int], plain: int, block: int, end: str
) -> None:
    """Also where the first lines are `plain`, without quotes, and Arrow parses them."""
    path = tmp_path_factory.mktemp("csv") / "p.csv"
    notes = [row[1] if at < plain else f'"{row[1]}{end}, {row[1]}"' for at, row in enumerate(rows)]
    lines = [",".join([row[0], note, *row[2:]]) for row, note in zip(rows, notes, strict=True)]
    for at in sorted(broken):
        lines.insert(min(at, len(lines)), "too,few" if at % 3 else "")
    path.write_bytes(end.join(["\ufeff" + ",".join(NAMES), *lines, ""]).encode())
    assert same(*read_whole_and_parted(path, block))


@given(rows=RECORDS, broken=st.sets(st.integers(0, 45)), block=st.integers(1, 400))
def test_batches_of_jsonl_are_the_file(
    tmp_path_factory: pytest.TempPathFactory, rows: list[Any], broken: set[int], block: int
) -> None:
    """What the first object with a key stands behind is missing in those before it."""
    path = tmp_path_factory.mktemp("jsonl") / "p.jsonl.gz"
    lines = [json.dumps({n: v for n, v in zip(NAMES, row, strict=True) if v != "x y"}) for row in rows]
    for at in sorted(broken):
        lines.insert(min(at, len(lines)), "{broken" if at % 3 else "")
    path.write_bytes(gzip.compress("\n".join(lines).encode()))
    whole, parts = read_whole_and_parted(path, block)
    if whole.table.num_columns:
        assert same(whole, parts)


@given(rows=RECORDS, block=st.integers(1, 400))
def test_batches_of_parquet_are_the_file(tmp_path_factory: pytest.TempPathFactory, rows: list[Any], block: int) -> None:
    path = tmp_path_factory.mktemp("parquet") / "p.parquet"
    pq.write_table(
        pa.table({name: pa.array([row[i] for row in rows], pa.string()) for i, name in enumerate(NAMES)}), path
    )
    assert same(*read_whole_and_parted(path, block))


def test_a_key_that_one_object_lacks_is_missing_in_every_batch(tmp_path: Path) -> None:
    good = {"query_id": "q", "doc_a": "a", "doc_b": "b", "preference": 1}
    path = tmp_path / "p.jsonl"
    path.write_text("".join(json.dumps(good) + "\n" for _ in range(20)) + json.dumps({**good, "order": "ab"}))
    _, parts = read_whole_and_parted(path, 100)
    assert len(parts) > 3
    assert all(part.table["order"].null_count == part.table.num_rows for part in parts[:-1])


def test_a_files_hash_is_its_content(tmp_path: Path) -> None:
    for name, text in (("a.csv", "x"), ("b.csv", "x"), ("c.csv", "y")):
        (tmp_path / name).write_text(text)
    one, other, another = (content_hash(tmp_path / name) for name in ("a.csv", "b.csv", "c.csv"))
    assert one == other != another
