"""`anmi audit` as a user meets it: files and runs, the table, the JSON, one message with exit code 2 per mistake."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pyarrow.csv as pacsv
import pytest

from anmi_ray.judging import read_judgments
from anmi_ray.store import Store
from anmi_ray.tables.preferences import ANSWERS, read_preferences
from tests.commands import printed, refused

_XTERM = {**os.environ, "TERM": "xterm"}
HEAD = "query_id,doc_a,doc_b,judge,order,preference,error\n"
PAIRS = [("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")]
GOOD = "".join(
    f"q{q},{a},{b},{judge},{order},{1 if judge == 'sure' or order == 'ab' else 0},\n"
    for q in range(12)
    for a, b in PAIRS
    for judge in ("first", "sure")
    for order in ("ab", "ba")
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "answers.csv"
    path.write_text(HEAD + GOOD)
    return path


def audit(*arguments: object) -> str:
    return printed("audit", *arguments)


def columns(said: str, judge: str) -> list[str]:
    """The cells of a judge's row, intervals left out."""
    [line] = [line for line in said.splitlines() if line.startswith(judge)]
    return [cell for cell in line.split() if not cell.endswith(("]", ",")) and cell != ":"]


def test_everything_it_writes(file: Path, tmp_path: Path) -> None:
    file.write_text(HEAD + GOOD + "q0,b,d,sure,ab,,timeout\nq0,b,d,sure,ba,2,\n")
    out, rejects, grades = (tmp_path / name for name in ("o.json", "r.csv", "g.tsv"))
    grades.write_text("query-id\tcorpus-id\tscore\n" + "".join(f"q{q}\ta\t1\nq{q}\tb\t0\n" for q in range(12)))
    said = audit(file, "--out", out, "--rejects", rejects, "--grades", grades)
    found = json.loads(out.read_text())
    assert found["source"] == {
        "file": str(file),
        "rows": {"read": 194, "rejected": {"preference outside [0, 1]": 1}},
    }
    first, sure = found["judges"]["first"], found["judges"]["sure"]
    assert (first["n"], first["order_inconsistent_rate"], first["position_bias"]["probability"]) == (96, 1.0, 0.5)
    assert (sure["n"], sure["failures"], sure["cycle_rate"]) == (97, {"timeout": 1}, 0.0)
    assert sure["position_bias"]["interval"][0] < 0 < sure["position_bias"]["interval"][1]
    assert sure["accuracy_both_orders"] == 1.0
    assert sure["counts"]["accuracy_both_orders"] == 12
    assert found["panel"]["graded"] == {"comparisons": 12, "different": 12}
    for line in (
        "rows           194 read, 193 accepted, 1 rejected",
        f"               1 preference outside [0, 1] ({file}:195: 2)",
        "grades         12 comparisons of graded documents, 12 unlike",
        "failures       sure: 1 timeout",
        "agreement      Krippendorff's α ",
        "bootstrap rounds over queries",
        f"out            -> {out}",
    ):
        assert line in said
    assert "judge" in said
    assert columns(said, "first")[:4] == ["first", "96", "0.0", "0.0"]
    assert "48" in columns(said, "first")  # all pairs to the first
    assert pacsv.read_csv(rejects).to_pylist()[0]["place"] == f"{file}:195"
    assert len(list(tmp_path.iterdir())) == 4


def test_only_what_is_known_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "plain.csv"
    path.write_text("query_id,doc_a,doc_b,preference\nq,[a],b,1\nq,b,c,.5\n")
    said = audit(path)
    assert "(unnamed)      2       0.0    50.0" in said
    assert "position bias" not in said
    assert "agreement" not in said
    assert "longer wins" not in said


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A root with two runs: one with an audit of its judges, one that got no further than its candidates."""
    store = Store(str(tmp_path / "results"))
    bias = {"pairs": 4, "probability": 0.1, "interval": [0.0, 0.2]}  # as stored before there were counts
    judge: dict[str, Any] = {"n": 8, "answered": 7, "failures": {"timeout": 1}, "failure_rate": 0.125}
    figures = {"queries": 250, "judges": {"sim-1": {**judge, "position_bias": bias}}, "panel": {"alpha": None}}
    store.publish_json("artifacts/judge/f00/audit.json", figures)
    store.publish_json("runs/done.json", {"stages": {"judge": {"fingerprint": "f00"}}})
    store.publish_json("runs/begun.json", {"stages": {}})
    return tmp_path / "results"


def test_a_run_has_stored_its_audit(root: Path, tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    said = audit("done", "--root", root, "--out", out)
    assert "run done: its stored audit, over a sample of 250 queries" in said
    assert columns(said, "sim-1")[:4] == ["sim-1", "8", "12.5", "+10.0"]
    assert "failures       sim-1: 1 timeout" in said
    assert json.loads(out.read_text())["source"] == {"run": "done", "root": str(root)}


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["answers.csv", "--out", "answers.csv"], "would overwrite it; it is read"),
        (["answers.csv", "--grades", "other.tsv"], "other.tsv: no compared pair is graded"),
        (["answers.csv", "--grades", "broken.tsv"], "broken.tsv:2 (grade is not an integer: x)"),
        (["empty.csv"], "no answer to audit"),
        (
            ["bad.csv"],
            "2 of 2 rows cannot be used (100.0%, allowed 10.0%): 1 document compared with itself (bad.csv:2)",
        ),
        ([], "Missing argument 'RUN|FILE'"),
        (["begun"], "the run has no audit: its judge stage is not complete"),
        (["done", "--grades", "other.tsv"], "--grades needs a FILE"),
        (["done", "--rejects", "r.csv"], "--rejects needs a FILE"),
        (["done", "--out", "nowhere/o.json"], "mkdir -p"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_mistakes(file: Path, root: Path, arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    others = {
        "other.tsv": "query-id\tcorpus-id\tscore\nz\ta\t1\n",
        "broken.tsv": "query-id\tcorpus-id\tscore\nq0\ta\tx\n",
        "empty.csv": HEAD,
        "bad.csv": HEAD + "q,a,a,j,ab,1,\nq,a,b,j,ab,nan,\n",
    }
    for name, text in others.items():
        (file.parent / name).write_text(text)
    assert says in refused("audit", *arguments)
    assert {path.name for path in file.parent.iterdir()} == {file.name, root.name, *others}


def test_rejects_are_written_before_it_fails(file: Path, tmp_path: Path) -> None:
    file.write_text(HEAD + GOOD + GOOD)
    said = refused("audit", file, "--rejects", tmp_path / "r.csv")
    assert "192 of 384 rows cannot be used" in said
    assert "repeated: an earlier row has its query, documents, judge, order and round" in said
    assert pacsv.read_csv(tmp_path / "r.csv").num_rows == 192
    audit(file, "--max-reject-fraction", 0.5)


def test_a_json_object_without_an_order_is_refused_where_others_have_one(tmp_path: Path) -> None:
    path = tmp_path / "mixed.jsonl"
    row = {"query_id": 1, "doc_a": "a", "doc_b": "b", "preference": 1}
    path.write_text(json.dumps(row) + "\n" + json.dumps({**row, "order": "ba"}) + "\n")
    read = read_judgments(read_preferences(path, ANSWERS))
    assert read.reasons() == {"order missing": (1, [f"{path}:1"])}


@pytest.mark.slow
def test_a_terminal_shows_that_it_works_and_a_file_does_not(tmp_path: Path) -> None:
    (tmp_path / "answers.csv").write_text(HEAD + GOOD)
    command = [sys.executable, "-m", "anmi_ray", "audit", "answers.csv"]
    seen, terminal = pty.openpty()
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=terminal, env=_XTERM) as on_terminal:
        os.close(terminal)
        drawn = b""
        with suppress(OSError):  # what Linux says of a terminal that nobody has open any more
            while more := os.read(seen, 1 << 16):
                drawn += more
        said, _ = on_terminal.communicate()
    os.close(seen)
    assert b"auditing answers.csv" in drawn
    elsewhere = subprocess.run(command, capture_output=True, cwd=tmp_path, timeout=120, check=True)
    assert elsewhere.stdout == said != b""
    assert elsewhere.stderr == b""
