"""The study of retrievers: fusions as the run's own, weights that no query chose for itself, what is left out."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from anmi_ray.config.experiment import Experiment
from anmi_ray.errors import ConfigError
from anmi_ray.evaluation import measures
from anmi_ray.identity import ID, doc_id, query_id, rng
from anmi_ray.records import QREL, RUN
from jobs.studies import retrieved as shared
from jobs.studies import retrievers as study
from tests.small import write_topics

QUERIES, DOCUMENTS = 12, 20


def run_of(system: str, order: dict[bytes, list[bytes]]) -> pa.Table:
    rows = [(query, doc, at + 1) for query, docs in sorted(order.items()) for at, doc in enumerate(docs)]
    query, doc, rank = (list(column) for column in zip(*rows, strict=True))
    score = [1.0 / one for one in rank]
    return RUN.table({"query_id": query, "doc_id": doc, "system": [system] * len(rows), "rank": rank, "score": score})


@pytest.fixture(scope="module")
def opposed() -> tuple[pa.Table, pa.Table, tuple[pa.Array, pa.Array]]:
    """Runs of two retrievers, each perfect on one half of the queries and at its worst on the other; qrels; halves."""
    queries = [query_id(str(i)) for i in range(QUERIES)]
    docs = [doc_id(str(i)) for i in range(DOCUMENTS)]
    cut = study.halves(queries)
    first = set(cut[0].to_pylist())
    good, bad = docs, docs[::-1]
    a = run_of("bm25", {query: good if query in first else bad for query in queries})
    b = run_of("dense", {query: bad if query in first else good for query in queries})
    rows = [(query, doc) for query in queries for doc in docs[:3]]
    query, doc = (list(column) for column in zip(*rows, strict=True))
    return pa.concat_tables([a, b]), QREL.table({"query_id": query, "doc_id": doc, "grade": [1] * len(rows)}), cut


@given(st.integers(1, 4), st.integers(1, 5))
def test_weights_sum_to_one_and_hold_every_retriever_alone(members: int, parts: int) -> None:
    grid = study.simplex(members, parts)
    assert len(set(grid)) == len(grid)
    assert np.allclose(np.sum(grid, axis=1), 1.0)
    assert {tuple(row) for row in np.eye(members)} <= set(grid)


@given(st.sets(st.integers(0, 500), min_size=2, max_size=60))
def test_halves_are_two_and_do_not_depend_on_order(numbers: set[int]) -> None:
    ids = [query_id(str(i)) for i in sorted(numbers)]
    one, other = study.halves(ids)
    assert sorted([*one.to_pylist(), *other.to_pylist()]) == sorted(ids)
    assert abs(len(one) - len(other)) <= 1
    assert study.halves(ids[::-1])[0].equals(one)


def test_no_query_is_fused_by_weights_that_it_chose(opposed: tuple[pa.Table, pa.Table, tuple]) -> None:
    runs, qrels, (first, second) = opposed
    of = study.Rankings.of(runs, ["bm25", "dense"])
    run, choice = study.tuned(of, ("bm25", "dense"), qrels, "tuned")
    RUN.check(run, "tuned")
    assert choice.weights[0][0] < choice.weights[0][1]  # the second half likes dense, and chose for the first
    assert choice.weights[1][0] > choice.weights[1][1]
    found = measures.evaluate(run, qrels, ["nDCG@10"], ["tuned"])
    assert max(found["value"].to_pylist()) < 0.5  # tuned on its own queries each would be 1
    for half, weights in zip((first, second), choice.weights[::-1], strict=True):
        fused = of.fused(("bm25", "dense"), "own", weights)
        own = measures.evaluate(study._of(fused, half), study._of(qrels, half), ["nDCG@10"], ["own"])
        assert measures.mean(own, "own", "nDCG@10") == 1.0


def test_rankings_are_joined_by_query_and_document() -> None:
    random = rng("rankings")
    docs = [doc_id(str(i)) for i in range(30)]
    order = {
        name: {query_id(str(q)): [docs[i] for i in random.permutation(30)[:size]] for q in range(4)}
        for name, size in (("bm25", 7), ("dense", 12))
    }
    runs = pa.concat_tables([run_of(name, one) for name, one in order.items()])
    of = study.Rankings.of(runs.take(pa.array(random.permutation(runs.num_rows))), ["bm25", "dense"])
    for r, name in enumerate(of.retrievers):
        for query, doc, rank, score in zip(
            of.query_id.to_pylist(), of.doc_id.to_pylist(), of.rank_RN[r], of.score_RN[r], strict=True
        ):
            listed = order[name][query]
            assert rank == (listed.index(doc) + 1 if doc in listed else 0)
            assert score == (1.0 / rank if rank else 0.0)
    fused = RUN.check(of.fused(("bm25", "dense"), "both"), "fused")
    assert pc.max(fused["rank"]).as_py() <= 19
    alone = of.fused(("dense",), "alone").sort_by([("query_id", "ascending"), ("rank", "ascending")])
    assert alone["doc_id"].to_pylist() == [doc for _, listed in sorted(order["dense"].items()) for doc in listed]


def test_queries_of_other_splits_are_not_measured(opposed: tuple[pa.Table, pa.Table, Any]) -> None:
    runs, qrels, _ = opposed
    hybrid = study.Rankings.of(runs, ["bm25", "dense"]).fused(("bm25", "dense"), "hybrid")
    more = QREL.table({"query_id": [query_id("of train")], "doc_id": [doc_id("0")], "grade": [1]})
    ids = [*pc.unique(qrels["query_id"]).to_pylist(), query_id("of train")]
    queries = pa.table({"query_id": pa.array(ids, ID), "split": ["test"] * QUERIES + ["train"]})
    data = shared.Retrieved(queries, pa.concat_tables([qrels, more]), pa.concat_tables([runs, hybrid]), queries, [])
    assert study.measure("made", data, ["bm25", "dense"]).queries == QUERIES


def test_what_cannot_work_is_left_out_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, ...]] = []

    def retrieved(of: Experiment, console: Console | None = None) -> shared.Retrieved:
        asked.append(of.retrieve.retrievers)
        if "lucene" in of.retrieve.retrievers:
            raise ConfigError("there is no JDK", "retrieve.retrievers", "install one")
        table = pa.table({"query_id": pa.array([], ID)})
        return shared.Retrieved(table, table, table, table, [])

    monkeypatch.setattr(study, "retrieved", retrieved)
    names, folder = ["bm25", "lucene", "dense", "late"], {"made": str(tmp_path)}
    found, used, left = study.retrieved_by(names, folder, str(tmp_path / "root"), Console(stderr=True))
    assert list(found) == ["made"]
    assert used == ["bm25", "dense", "late"]
    assert list(left) == ["lucene"]
    assert "there is no JDK" in left["lucene"]
    assert asked[0] == ("bm25", "lucene", "dense", "late")
    assert ("bm25", "late") in asked
    monkeypatch.setattr(study, "works", lambda name, root: None)
    with pytest.raises(ConfigError, match="there is no JDK"):  # no retriever's own trouble: it is not hidden
        study.retrieved_by(names, folder, str(tmp_path / "root"), Console(stderr=True))


def test_the_baseline_is_needed(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="does not name bm25"):
        study.main(["--retrievers", "dense", "--data", f"made={tmp_path}", "--root", str(tmp_path)])


@pytest.mark.ray
@pytest.mark.studies
@pytest.mark.slow
def test_a_small_study_measures_what_the_run_wrote(tmp_path: Path) -> None:
    made, root = write_topics(tmp_path / "made"), tmp_path / "root"
    command = [sys.executable, "-m", "jobs.studies.retrievers", "--data", f"made={made}", "--root", str(root)]
    command += ["--retrievers", "bm25", "dense", "--out", str(tmp_path / "out")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
    assert done.returncode == 0, done.stderr
    for row in ("| bm25 |", "| dense |", "| hybrid |", "| bm25+dense, tuned |", "| bm25+dense | made |"):
        assert row in done.stdout
    assert "bm25+dense, rrf" not in done.stdout  # it is the hybrid
    data = shared.retrieved(shared.collection("retrievers-made", str(made), str(root), retrievers=["bm25", "dense"]))
    keys = [("query_id", "ascending"), ("rank", "ascending")]
    own = data.runs.filter(pc.equal(data.runs["system"], "hybrid")).sort_by(keys)
    ours = study.Rankings.of(data.runs, ["bm25", "dense"]).fused(("bm25", "dense"), "hybrid").sort_by(keys)
    assert ours.combine_chunks().equals(own.combine_chunks())
    record = json.loads((root / "studies" / "retrievers" / "study.json").read_text())
    rows = {row["system"]: row for row in record["rows"]["made"]["nDCG@10"]}
    metrics = measures.evaluate(data.runs, data.qrels, ["nDCG@10"])
    assert rows["hybrid"]["mean"] == pytest.approx(measures.mean(metrics, "hybrid", "nDCG@10"))
    assert rows["bm25"]["p"] is None
    assert (tmp_path / "out" / "retrievers.svg").read_text().count("made: 12 queries") == 1
