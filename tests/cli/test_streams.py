"""Commands on files as parts of a pipe, and files whose columns are called otherwise or that are not what they seem."""

from __future__ import annotations

import gzip
import io
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

import anmi_ray
from anmi_ray.core.errors import ConfigError, DataError
from tests.commands import anmi, printed, refused

TABLE = {"query_id": ["q"] * 3, "doc_a": ["x", "y", "z"], "doc_b": ["y", "z", "x"], "preference": [0.9, 0.6, 0.2]}
OTHERS = {"query_id": "qid", "preference": "better"}
RENAMED = "query_id=qid, preference=better"


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def content(suffix: str, table: Mapping[str, Sequence[object]] | None = None) -> bytes:
    """A table in a format."""
    rows = pa.table(dict(table or TABLE))
    sink = io.BytesIO()
    if suffix == ".parquet":
        pq.write_table(rows, sink)
    elif suffix.startswith(".jsonl"):
        sink.write("\n".join(map(json.dumps, rows.to_pylist())).encode())
    else:
        pacsv.write_csv(rows, sink)
    return gzip.compress(sink.getvalue(), mtime=0) if suffix.endswith(".gz") else sink.getvalue()


def send(monkeypatch: pytest.MonkeyPatch, text: bytes) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))


@pytest.mark.parametrize("suffix", [".csv", ".csv.gz", ".jsonl", ".jsonl.gz", ".parquet"])
def test_ratings_go_through_a_pipe(suffix: str, monkeypatch: pytest.MonkeyPatch) -> None:
    Path("file.csv").write_bytes(content(".csv"))
    printed("rate", "file.csv", "--prior", "1", "--out", "out.csv")
    send(monkeypatch, content(suffix))
    done = anmi("rate", "-", "--prior", "1", "--out", "-")
    assert done.stdout == Path("out.csv").read_text()
    assert "3 read, 3 accepted" in done.stderr
    assert not Path("-").exists()


def test_an_audit_goes_through_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    send(monkeypatch, content(".jsonl", {**TABLE, "preference": [0.9, 0.6, 7]}))
    done = anmi("audit", "-", "--out", "-", "--max-reject-fraction", "0.5")
    assert json.loads(done.stdout)["source"]["file"] == "standard input"
    assert "1 preference outside [0, 1] (standard input:3: 7.0)" in done.stderr


def test_a_ranking_comes_through_a_pipe(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("qrels").mkdir()
    Path("qrels/test.tsv").write_text("query-id\tcorpus-id\tscore\nq\td\t1\n")
    Path("run.trec.gz").write_bytes(gzip.compress(b"q Q0 d 1 2 packed\n", mtime=0))
    send(monkeypatch, "\ufeffq Q0 d 1 2 sent\n".encode())
    said = printed("evaluate", "--collection", ".", "--ranking", "-", "--ranking", "run.trec.gz")
    assert [line.split()[0] for line in said.splitlines()] == ["system", "sent", "packed"]


@pytest.mark.parametrize("suffix", [".csv", ".jsonl", ".parquet"])
def test_columns_may_be_called_otherwise(suffix: str) -> None:
    table = {OTHERS.get(name, name): values for name, values in TABLE.items()}
    decoy = {"preference": [3.0] * 3}  # its place is taken
    Path(f"file{suffix}").write_bytes(content(suffix, {**table, **decoy}))
    Path("plain.csv").write_bytes(content(".csv"))
    for command in (["rate", "--prior", "1", "--out", "-"], ["audit", "--out", "-"]):
        named = anmi(*command, f"file{suffix}", "--columns", RENAMED)
        assert named.stdout.replace(f"file{suffix}", "plain.csv") == anmi(*command, "plain.csv").stdout != ""
    ours = anmi_ray.rate({**table, **decoy}, prior=1.0, columns=OTHERS)
    assert ours.ratings.equals(anmi_ray.rate(TABLE, prior=1.0).ratings)


@pytest.mark.parametrize(
    ("name", "text", "arguments", "says"),
    [
        ("f.csv", content(".csv"), ["--columns", "query=qid"], "did you mean query_id?"),
        ("f.csv", content(".csv"), ["--columns", "loser=better"], "unknown column 'loser'"),
        ("f.csv", content(".csv"), ["--columns", "query_id"], "expected NAME=COLUMN"),
        ("f.csv", content(".csv"), ["--columns", "doc_a=x,doc_b=x"], "expected NAME=COLUMN"),
        ("f.csv", content(".csv"), ["--columns", RENAMED], "f.csv: has no column qid, better; its columns are 'query_"),
        ("f.csv", content(".csv.gz"), [], "f.csv: is compressed, and its name does not say so"),
        ("-", b"", [], "standard input: is empty"),
        ("-", b"query_id,doc_a\n", [], "standard input: has no column doc_b, preference"),
        ("-", b"PAR1", [], "standard input: is not a Parquet file"),
        ("-", b"\x1f\x8b\x08", [], "standard input: cannot be unpacked"),
        ("-", content(".csv"), ["--anchors", "-"], "standard input can be read once"),
        ("f.csv", content(".csv"), ["--gaps", "-"], "it is written by --out"),
        ("f.csv", content(".csv"), ["--fits", "dir.csv"], "--fits: is a folder"),
        ("f.csv", content(".csv"), ["--fits", "f.csv/fits.csv"], "remedy: name a folder"),
    ],
)
def test_mistakes(
    name: str, text: bytes, arguments: list[str], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "dir.csv").mkdir()
    if name == "-":
        send(monkeypatch, text)
    else:
        Path(name).write_bytes(text)
    said = refused("rate", name, "--out", "-", *arguments)
    assert says in said
    assert "--root" not in said


def test_mistakes_in_columns_of_a_table() -> None:
    with pytest.raises(ConfigError, match="unknown column query"):
        anmi_ray.rate(TABLE, columns={"query": "qid"})
    with pytest.raises(DataError, match="has no column qid"):
        anmi_ray.audit(TABLE, columns=OTHERS)


@pytest.mark.parametrize(("text", "says"), [("q Q0 d 1 2 a\nq Q0 d 1 2 b\n", "holds 2 systems"), ("", "no ranking")])
def test_what_is_reranked_is_one_ranking(text: str, says: str) -> None:
    Path("run.trec").write_text(text)
    Path("model").mkdir()
    Path("model/config.json").write_text("{}")
    command = ["rerank", "--model", "model", "--collection", ".", "--ranking", "run.trec"]
    assert says in refused(*command, "--out", "out.trec")
    assert "--out would overwrite it" in refused(*command, "--out", "run.trec")
    assert "--out: its folder does not exist" in refused(*command, "--out", "none/out.trec")
    assert Path("run.trec").read_text() == text
