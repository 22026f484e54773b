"""Files of preferences: broken lines have their number, and nothing is swallowed."""

from __future__ import annotations

from pathlib import Path

import pytest

from anmi_ray.errors import DataError
from anmi_ray.files import read_rows
from anmi_ray.rating.preferences import NUMBERS, OPTIONAL, TEXTS, read_preferences
from anmi_ray.rows import Rows


def write(path: Path, text: str) -> Rows:
    path.write_bytes(text.encode())
    return read_rows(path, TEXTS, NUMBERS, OPTIONAL)


def test_broken_lines_of_csv_have_their_number(tmp_path: Path) -> None:
    lines = ["\ufeffquery_id,note,doc_a,doc_b,preference", 'q,"two, cells",a,b,1', "", "q,a,b", "q,,a,b,2", ",,,,"]
    rows = write(tmp_path / "p.csv", "\r\n".join([*lines, "q,,a,c,.5", ""]))
    read = read_preferences(rows)
    assert read.reasons() == {
        "broken line": (1, [f"{tmp_path / 'p.csv'}:4"]),
        "preference outside [0, 1]": (1, [f"{tmp_path / 'p.csv'}:5"]),
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
    read = read_preferences(write(tmp_path / "p.jsonl", "\n".join([*lines, good[:-1] + ', "games": 2}'])))
    assert read.reasons()["broken line"][0] == 5
    assert read.reasons()["broken line"][1] == [f"{tmp_path / 'p.jsonl'}:{n}" for n in (3, 4, 5)]
    assert read.outcomes.strength.tolist() == [1.0, 2.0]
    assert read.queries.to_pylist() == ["7"]


@pytest.mark.parametrize(
    "text",
    ['q,"a,b,1\nq,a,c,1\n', 'q,a,"b,1\nq,a,c,1\n', 'q,a,b,"1\nq,a,c,1\n', 'q,a,b,"1\nq,a,c,1"\n'],
)
def test_a_quote_left_open_swallows_nothing_silently(tmp_path: Path, text: str) -> None:
    good = "q,a,b,1\n" * 50
    with pytest.raises(DataError, match=r"p\.csv:52.*quote"):
        write(tmp_path / "p.csv", f"query_id,doc_a,doc_b,preference\n{good}{text}")


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    head = "query_id,doc_a,doc_b,preference\n"
    (tmp_path / "l.csv").write_bytes(head.encode() + b"q,\xe9,b,1\n")
    with pytest.raises(DataError, match="UTF8"):
        read_rows(tmp_path / "l.csv", TEXTS)
    with pytest.raises(DataError, match="cannot be unpacked"):
        write(tmp_path / "p.csv.gz", head)
    with pytest.raises(DataError, match="no Parquet file"):
        write(tmp_path / "p.parquet", head)
    with pytest.raises(DataError, match="its columns are none"):
        read_preferences(write(tmp_path / "e.csv", ""))
    with pytest.raises(DataError, match="several columns doc_a"):
        read_preferences(write(tmp_path / "d.csv", "query_id,doc_a,doc_a,doc_b,preference\nq,a,b,c,1\n"))
