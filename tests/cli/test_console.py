"""What commands print of others' names and ids: as it is, on one line, and to nobody without a complaint."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.text import Text

from anmi_ray.cli import console
from tests.commands import printed, refused

HOSTILE = ["[/x]", "[bold]", "[red]a[/red]", ":apple:", "\x1b[2J", "a\rb", "\x07", "\u202eb", "\ud800", "[" * 3000]
CONTROLS = {chr(code) for code in [*range(32), *range(0x7F, 0xA0)]} - {"\n"}
COMMAND = [sys.executable, "-m", "anmi_ray"]


@given(st.one_of(st.sampled_from(HOSTILE), st.text(max_size=30)))
def test_any_text_is_shown_as_it_is(name: str) -> None:
    table = console.table([{"head": name, "number": "1"}, {"head": Text(name), "number": "2"}])
    out = io.StringIO()
    shown = console.stdout(out)
    for block in (name, Text(name), f"place: {name}: reason", table):
        shown.print(block, highlight=False)
    assert not set(out.getvalue()) & CONTROLS
    out.getvalue().encode()
    if name in HOSTILE:
        assert out.getvalue().startswith(console.visible(name) + "\n")


@pytest.mark.parametrize("name", [name for name in HOSTILE if name.isascii() and not set(name) & set("\r")])
def test_commands_print_hostile_names(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("qrels").mkdir()
    Path("qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    Path("run.trec").write_text(f"q Q0 d 1 2 {name}\n")
    Path("answers.csv").write_text(f"query_id,doc_a,doc_b,preference,judge\nq,{name},b,1,{name}\nq,b,c,0.2,{name}\n")
    start = console.visible(name)[:60]
    assert start in printed("evaluate", "--collection", ".", "--ranking", "run.trec")
    assert start in printed("audit", "answers.csv")
    printed("rate", "answers.csv", "--prior", "1", "--out", "ratings.csv")
    Path("run.trec").write_text(f"q Q0 {name} 1 x t\nq Q0 {name} 1 {name} t\n")
    assert not set(refused("evaluate", "--collection", ".", "--ranking", "run.trec")) & CONTROLS


def test_what_is_said_between_stages_is_of_no_stage() -> None:
    out = io.StringIO()
    reporter = console.ConsoleReporter(console.stdout(out))
    reporter.stage("retrieve", "ranks")
    reporter.notice("one shard is small")
    reporter.finished("retrieve", 1.0, [])
    reporter.notice("rate: gaps/00001.parquet is small")
    said = [line for line in out.getvalue().splitlines() if line.startswith(" ")]
    assert said == [
        "  retrieve: one shard is small",
        "  rate: gaps/00001.parquet is small",
    ]


@pytest.mark.parametrize("arguments", [["doctor"], ["--help"], ["rate", "p.csv", "--prior", "1", "--out", "-"]])
def test_a_pipe_that_is_closed_ends_a_command_quietly(arguments: list[str], tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("query_id,doc_a,doc_b,preference\nq,a,b,1\nq,b,c,0.2\n")
    ours, closed = os.pipe()
    os.close(ours)
    done = subprocess.run([*COMMAND, *arguments], stdout=closed, stderr=subprocess.PIPE, cwd=tmp_path, timeout=120)
    os.close(closed)
    assert done.returncode == 141
    assert b"Error" not in done.stderr


def test_a_terminal_that_is_not_utf_8_ends_no_command(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text("query_id,doc_a,doc_b,preference,judge\nq,a,b,1,\u2212\n", encoding="utf-8")
    ascii_only = {**os.environ, "PYTHONIOENCODING": "ascii"}
    done = subprocess.run([*COMMAND, "audit", "p.csv"], capture_output=True, cwd=tmp_path, env=ascii_only, timeout=120)
    assert done.returncode == 0, done.stderr
    assert rb"\u2212" in done.stdout


LONG = "x" * 5000
TOO_LONG = [
    ["rate", f"{LONG}.csv", "--out", "o.csv"],
    ["audit", LONG],
    ["config", LONG],
    ["show", LONG],
    ["run", "c.yaml", "--root", LONG],
    ["run", "c.yaml", "--from", LONG],
    ["plan", "c.yaml", f"corpus={{reader: beir, path: {LONG}}}"],
    ["evaluate", "--collection", LONG, "--ranking", "run.trec"],
    ["rerank", "--model", LONG, "--collection", ".", "--ranking", "run.trec", "--out", "-"],
]


@pytest.mark.parametrize("arguments", TOO_LONG, ids=lambda words: words[0])
def test_a_name_without_end_is_one_short_message(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("c.yaml").write_text("corpus: {reader: pydocs, packages: []}\n")
    Path("run.trec").write_text("q Q0 d 1 2 t\n")
    assert len(refused(*arguments)) < 1000


@pytest.mark.parametrize("content", [b"{", b"\xff", b"[" * 100_000])
def test_a_model_whose_settings_are_no_json_is_one_message(
    content: bytes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("model").mkdir()
    Path("model/config.json").write_bytes(content)
    Path("model/tokenizer.json").write_text("{}")
    Path("corpus.jsonl").write_text('{"_id": "d", "text": "word"}\n')
    Path("queries.jsonl").write_text('{"_id": "q", "text": "word"}\n')
    Path("run.trec").write_text("q Q0 d 1 2 t\n")
    said = refused("rerank", "--model", "model", "--collection", ".", "--ranking", "run.trec", "--out", "out.trec")
    assert "model: its config.json is not JSON: " in said
