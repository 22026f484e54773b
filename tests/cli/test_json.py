"""--json: one JSON document on standard output and nothing else, of answers and of errors, with the exit code."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.test_export import write_run
from tests.commands import anmi

ANSWERS = "query_id,doc_a,doc_b,preference,judge\nq1,x,y,1,j\nq1,y,x,0,j\nq1,y,z,1,j\nq1,x,z,1,j\n"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "qrels").mkdir()
    (tmp_path / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\nq1\td1\t1\n")
    (tmp_path / "run.trec").write_text("q1 Q0 d2 1 2 x\nq1 Q0 d1 2 1 x\n")
    (tmp_path / "answers.csv").write_text(ANSWERS)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def told(*words: object, code: int = 0) -> Any:
    """What a command tells as JSON."""
    done = anmi(*words, "--json")
    assert done.returncode == code, done.stdout + done.stderr
    return json.loads(done.stdout)


def test_figures_are_numbers(folder: Path) -> None:
    measured = told("evaluate", "--collection", ".", "--ranking", "run.trec", "--measures", "RR")
    assert [(row["system"], row["mean"]) for row in measured["systems"]] == [("x", 0.5)]
    assert told("audit", "answers.csv")["judges"]["j"]["n"] == 4
    assert {check["name"] for check in told("doctor")} >= {"torch"}
    write_run(folder / "root")
    run = told("show", "r1", "--root", "root")
    (ingest,) = [stage for stage in run["stages"] if stage["stage"] == "ingest"]
    assert (ingest["complete"], ingest["flows"][0]["rows_in"], ingest["flows"][0]["rejected"]) == (True, 10, 1)
    assert {row["system"] for row in run["systems"]} == {"hybrid", "reranked"}


def test_a_plan_is_numbers_and_what_it_would_fail_at(folder: Path) -> None:
    documents = [{"_id": name, "title": "", "text": f"a text {name}"} for name in ("d1", "d2")]
    (folder / "corpus.jsonl").write_text("".join(json.dumps(row) + "\n" for row in documents))
    (folder / "queries.jsonl").write_text('{"_id": "q1", "text": "a query"}\n')
    (folder / "plan.yaml").write_text("name: p\ncorpus: {reader: beir, path: .}\n")
    planned = told("plan", "plan.yaml", code=2)
    assert {stage["stage"] for stage in planned["stages"]} >= {"ingest", "judge", "train"}
    assert all(stage["calls"] >= 0 and stage["tokens"] >= 0 for stage in planned["stages"])
    assert planned["exit_code"] == 2
    assert "no train query" in planned["error"]["message"]


def test_the_option_follows_the_command(folder: Path) -> None:
    done = anmi("--json", "show", "r1")
    assert json.loads(done.stdout)["error"]["remedy"] == "anmi show r1 --json"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["show", "nobody"], "no run of that name"),
        (["evaluate", "--collection", "."], "--ranking"),
        (["run", "any.yaml"], "No such option"),
        (["show", "r1", "--follow"], "--follow"),
        (["show", "r1", "--root", "s3://me:word@bucket/x"], "credential"),
        (["plan", 'password="x"'], "no such configuration file"),
    ],
)
def test_errors_are_json_too(folder: Path, words: list[str], says: str) -> None:
    found = told(*words, code=2)
    assert found["exit_code"] == 2
    assert set(found["error"]) == {"kind", "message", "place", "remedy"}
    assert says in found["error"]["message"]
    assert "word@" not in json.dumps(found)
