"""anmi queries with a writer: a real process behind HTTP that writes by a grammar, and what is made of its answers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.store import Store
from tests.cli.test_queries import rows_of
from tests.commands import anmi, printed, refused
from tests.judging.serving import Chat
from tests.models.tiny import write_tiny_bert
from tests.small import write_config

DOCUMENTS = 120


def judges(chat: Chat) -> dict[str, Any]:
    """A panel of that server alone."""
    endpoint = chat.config(max_tokens=2).model_dump(exclude_defaults=True)
    return {"judges": [{"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": {"template": "letters"}}]}


@pytest.fixture
def config(tmp_path: Path, small_collection: Path, chat: Chat, monkeypatch: pytest.MonkeyPatch) -> str:
    """Settings in the working folder: documents alone, and a writer."""
    rows = rows_of(small_collection, "corpus")
    (tmp_path / "mine").mkdir()
    lines = [json.dumps(row) + "\n" for row in rows[:240]]
    (tmp_path / "mine" / "corpus.jsonl").write_text("".join(lines), encoding="utf-8")
    (tmp_path / "own.txt").write_text("zip two lists\n" + json.dumps({"query": "parse iso dates"}) + "\n")
    endpoint = chat.config(max_tokens=300, concurrency=4, input_price=1.0, output_price=2.0)
    writer = {"kind": "api", "endpoint": endpoint.model_dump(exclude_defaults=True)}
    write_config(
        tmp_path / "c.yaml",
        tmp_path / "mine",
        queries={"writer": writer, "each": 2, "documents": DOCUMENTS, "examples": "own.txt"},
        judge=judges(chat),
        execution={"buckets": 4, "root": str(tmp_path / "root")},
    )
    monkeypatch.chdir(tmp_path)
    return "c.yaml"


def test_written_queries_are_filtered_counted_and_never_asked_for_twice(config: str, chat: Chat) -> None:
    said = printed("queries", config, "--to", "out", "--number", 60)
    asked = [entry["question"] for entry in chat.log()]
    assert len(asked) == len(set(asked)) == DOCUMENTS
    assert "2 of kind example" in asked[0]
    assert "- parse iso dates" in asked[0]
    queries = rows_of(Path("out"), "queries")
    left = rows_of(Path("out"), "queries-left-out")
    assert Counter(row["metadata"]["kind"] for row in queries) == dict.fromkeys(("keyword", "question", "example"), 20)
    assert max(Counter(row["metadata"]["source"] for row in queries).values()) <= 2
    assert rows_of(Path("out"), "corpus") == rows_of(Path("mine"), "corpus")
    assert len(queries) + len(left) == 6 * DOCUMENTS
    reasons = Counter(row["reason"] for row in left)
    assert min(reasons[name] for name in ("copies its document", "holds control characters", "is empty")) > 2
    assert reasons["near-duplicate"] + reasons["its document is not found by it"] > 0
    assert all(1 <= row["metadata"]["bm25_rank"] <= 10 for row in queries)
    assert sum(said.count(row["text"]) for row in queries) >= 18

    printed("queries", config, "corpus.shard_documents=50", "--to", "again", "--number", 60)
    assert len(chat.log()) == DOCUMENTS
    assert Path("again/queries.jsonl").read_bytes() == Path("out/queries.jsonl").read_bytes()


def test_both_ways_side_by_side(config: str, chat: Chat) -> None:
    printed("queries", config, "queries.kinds=[title,keyword]", "queries.documents=60", "--to", "out", "--number", 40)
    assert len(chat.log()) == 60
    assert Counter(r["metadata"]["kind"] for r in rows_of(Path("out"), "queries")) == {"title": 20, "keyword": 20}


def test_a_dry_run_shows_what_would_be_sent_and_sends_nothing(config: str, chat: Chat) -> None:
    said = printed("queries", config, "--dry-run")
    assert f"writer: {DOCUMENTS} calls" in said
    assert "dollars  about" in said
    assert not chat.log()
    assert not Path("root").exists()
    printed("queries", config, "--to", "out", "--number", 10)
    assert any(entry["question"] in said for entry in chat.log())
    other = "execution.buckets=16"  # the root's own number counts
    assert f"{DOCUMENTS} already bought" in printed("queries", config, other, "--dry-run")


def test_a_budget_ends_asking_and_more_goes_on(config: str, chat: Chat) -> None:
    said = printed("queries", config, "queries.budget.calls=40", "--to", "short", "--number", 20)
    assert len(chat.log()) == 40
    assert f"not asked: the budget is spent {DOCUMENTS - 40}" in " ".join(said.split())
    printed("queries", config, "queries.budget.calls=60", "--to", "longer", "--number", 20)
    assert len(chat.log()) == 60  # over all resumptions
    printed("queries", config, "--to", "whole", "--number", 20)
    assert len({entry["question"] for entry in chat.log()}) == len(chat.log()) == DOCUMENTS


def test_judges_confirm_what_is_kept(config: str, chat: Chat) -> None:
    command = ("queries", config, "queries.check=true", "--number", 30)
    printed(*command, "--to", "out")
    assert len(rows_of(Path("out"), "queries")) == 30
    checks = [entry["question"] for entry in chat.log() if "yes or no" in entry["question"]]
    assert len(set(checks)) == len(checks) > 30
    left = [row for row in rows_of(Path("out"), "queries-left-out") if row["reason"].startswith("judges say")]
    assert left
    kept = " ".join(row["text"] for row in rows_of(Path("out"), "queries"))
    assert not any(row["text"] in kept for row in left)
    before = len(chat.log())
    printed(*command, "--to", "again")
    assert len(chat.log()) == before


def test_a_check_needs_a_judge_that_reads(config: str, chat: Chat) -> None:
    panel = "judge={preset: realistic}"
    assert "queries.check: expected a judge" in refused("queries", config, panel, "queries.check=true", "--to", "out")
    assert not chat.log()


@pytest.mark.parametrize(
    ("faults", "said"),
    [({"401": 1.0}, "http 401"), ({"404": 1.0}, "has no model"), ({"429:0": 1.0}, "run the same command again")],
)
def test_a_server_that_refuses_ends_with_one_message_and_loses_nothing(
    config: str, chat: Chat, faults: dict[str, float], said: str
) -> None:
    some = "queries.documents=40"
    printed("queries", config, some, "--to", "some", "--number", 5)
    chat.setup(faults=faults)
    quick = ("queries.writer.endpoint.retries=1", "judge.retry_passes=0")
    assert said in refused("queries", config, *quick, "--to", "out")
    assert not Path("out").exists()
    chat.setup()
    printed("queries", config, *quick, "--to", "out")
    assert len(chat.log()) == DOCUMENTS - 40


def test_a_server_that_is_not_there_and_answers_that_are_no_lists(config: str, chat: Chat) -> None:
    away = "queries.writer.endpoint.base_url=http://127.0.0.1:1/v1"
    assert "cannot be reached" in refused("queries", config, away, "--to", "out")
    outside = "queries.writer.endpoint.base_url=http://8.8.8.8/v1"
    assert "allow_external" in refused("queries", config, outside, "--to", "out")
    chat.setup(faults={"wrong": 1.0})
    assert "not a list of queries" in refused("queries", config, "--to", "out")
    assert not Path("out").exists()


def test_what_cannot_be_done_is_said_before_anything_is_asked(config: str, chat: Chat) -> None:
    assert "expected --to or --dry-run" in refused("queries", config)
    assert "queries.writer" in refused("queries", config, "queries={}", "--dry-run")
    Path("own.txt").write_text("\n")
    assert "no query found" in refused("queries", config, "--to", "out")
    Path("own.txt").write_text('{"id": 3}\n')
    assert "line 1" in refused("queries", config, "--to", "out")
    assert not chat.log()


@pytest.mark.slow
def test_killed_while_asking_it_goes_on_and_asks_for_nothing_twice_that_was_kept(config: str, chat: Chat) -> None:
    chat.setup(latency_s=0.1)
    command = [sys.executable, "-m", "anmi_ray", "queries", config, "--to", "out", "--number", "60"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process:
        begun = time.monotonic()
        while not Store("root").tree("answers"):
            assert process.poll() is None
            assert time.monotonic() - begun < 60
            time.sleep(0.02)
        os.kill(process.pid, signal.SIGKILL)
    kept = 32  # answers published together
    first = [entry["question"] for entry in chat.log()]
    assert kept <= len(first) < DOCUMENTS
    done = anmi("queries", config, "--to", "out", "--number", 60)
    assert done.returncode == 0, done.stderr
    times = Counter(entry["question"] for entry in chat.log())
    assert len(times) == DOCUMENTS
    assert sum(times.values()) <= DOCUMENTS + len(first) - kept  # what had not reached the log
    chat.setup()
    printed("queries", config, "execution.root=other", "--to", "undisturbed", "--number", 60)
    assert Path("undisturbed/queries.jsonl").read_bytes() == Path("out/queries.jsonl").read_bytes()


@pytest.mark.slow
@pytest.mark.ray
@pytest.mark.timeout(1200)
@pytest.mark.usefixtures("trained_in_one_task")
def test_documents_alone_end_to_end(config: str, chat: Chat) -> None:
    corpus = Path("mine/corpus.jsonl")
    corpus.write_text("".join(corpus.read_text(encoding="utf-8").splitlines(keepends=True)[:90]), encoding="utf-8")
    printed("queries", config, "queries.documents=24", "--to", "out", "--number", 24)
    written = len(chat.log())
    assert written == 24
    model = write_tiny_bert(Path("tiny").absolute())
    small = (
        f"train.model={model}",
        "train.max_steps=2",
        "train.max_tokens=48",
        "judge.judges.0.prompt.document_tokens=64",
    )
    done = printed("run", config, *small, "corpus={reader: beir, path: out}", "mine.anchors=confirmed", "name=alone")
    assert len(chat.log()) > written
    assert "report" in done
    [page] = Path("root/reports").rglob("*.html")
    assert "nothing was measured" in page.read_text(encoding="utf-8")
