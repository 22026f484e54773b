"""Files of relevance grades: one grammar for every reader of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anmi_ray.core.errors import DataError, StoreError
from anmi_ray.corpus import lookup
from anmi_ray.corpus.parsing import judged_lines
from anmi_ray.tables.streams import LineError
from tests.corpus.layouts import SMALL, read, write_beir, write_jsonl, write_lines, write_trec

ROWS = [("q0", "d1", 2), ("q1", "d2", 0), ("q2", "d3", 1)]
FORMS = {
    "TREC": ["q0 0 d1 2", "q1 Q0 d2 -1", "q2\t0  d3 1"],
    "TREC with a header": ["qid iter docno rel", "q0 0 d1 2", "q1 0 d2 0", "q2 0 d3 1"],
    "TREC of tabs": ["q0\t0\td1\t2", "q1\t0\td2\t0", "q2\t0\td3\t1"],
    "BEIR": ["query-id\tcorpus-id\tscore", "q0\td1\t2", "q1\td2\t0", "q2\td3\t1"],
    "BEIR without a header": ["q0\td1\t2", "q1\td2\t0", "q2\td3\t1"],
    "BEIR in another order": ["\ufeffscore\tcorpus-id\tquery-id", "2\td1\tq0", "0\td2\tq1", "1\td3\tq2"],
    "floats": ["q0\td1\t2.0", "q1\td2\t0.", "q2\td3\t1e0"],
    "blanks": ["q0 \td1\u00a0\t2", "q1\t d2\t0 ", "\u200bq2\td3\t1"],
}


@pytest.mark.parametrize("form", FORMS)
def test_every_reader_takes_every_form(tmp_path: Path, form: str) -> None:
    """A BEIR folder, TREC's formats, tables, and a file that a command is given."""
    path = Path(write_lines(tmp_path / "grades.txt", FORMS[form]))
    assert lookup.graded_file(path) == {row[:2]: row[2] for row in ROWS}
    beir = write_beir(tmp_path / "beir", SMALL)
    for split in ("train", "test"):
        (tmp_path / "beir" / "qrels" / f"{split}.tsv").unlink()
    (tmp_path / "beir" / "qrels" / "test.tsv").write_bytes(path.read_bytes())
    own = {"qrels": {"test": str(path)}, "max_reject_fraction": 0.0}
    tsv = {"qrels": {"test": write_lines(tmp_path / "grades.tsv", FORMS[form])}, "max_reject_fraction": 0.0}
    settings: list[dict[str, Any]] = [
        beir,
        write_trec(tmp_path / "trec", SMALL) | own,
        write_jsonl(tmp_path / "table", SMALL) | own,
        *([write_jsonl(tmp_path / "tsv", SMALL) | tsv] if "header" not in form or form == "BEIR" else []),
    ]
    for one in settings:
        assert sorted(read(one).qrels["grade"].to_pylist()) == [0, 1, 2], one["reader"]


@pytest.mark.parametrize("grade", [".7", "1_0", "\uff11", "nan", "9" * 19, "3000000000", "true", "yes", "1,5"])
def test_another_grade_is_refused_and_shown(grade: str) -> None:
    rows = list(judged_lines([("x:1", b"q 0 d 1"), ("x:2", f"q 0 e {grade}".encode())], "x"))
    assert rows[0][1] == ("q", "d", 1)
    assert isinstance(rows[1][1], LineError)
    assert rows[1][1].detail == grade


def test_a_bad_grade_is_named_with_its_line_and_a_few_are_left_out(tmp_path: Path) -> None:
    path = tmp_path / "grades.txt"
    path.write_text("q 0 a 1\nq 0 b .7\n")
    with pytest.raises(DataError, match=r"grades.txt:2 \(grade is not an integer: .7\)"):
        lookup.graded_file(path)
    path.write_text("".join(f"q 0 d{at} 1\n" for at in range(200)) + "q 0 d1 2\n")
    heard: list[str] = []
    assert lookup.graded_file(path, heard.append)["q", "d1"] == 1
    assert len(heard) == 1
    path.write_bytes("q 0 caf\xe9 1".encode("latin-1"))
    with pytest.raises(DataError, match="not UTF-8"):
        lookup.graded_file(path)
    with pytest.raises(StoreError):
        lookup.graded_file(tmp_path / "none")


@pytest.mark.parametrize(
    ("header", "named"),
    [("query-id\titem\tscore", "'item'"), ("query-id,corpus-id,score", "commas"), ("query-id\tscore", "corpus-id")],
)
def test_a_header_that_lacks_a_column_is_an_error(header: str, named: str) -> None:
    with pytest.raises(DataError) as error:
        list(judged_lines([("x:1", header.encode()), ("x:2", b"q\td\t1")], "x"))
    assert error.value.place == "x:1"
    assert named in error.value.message
