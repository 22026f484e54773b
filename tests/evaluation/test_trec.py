"""TREC files: what is written reads back equal, and a bad line is named."""

from __future__ import annotations

import gzip
from collections.abc import Sequence
from pathlib import Path

import ir_measures
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import RUN
from anmi_ray.corpus.reader import qrel_table
from anmi_ray.evaluation import measures
from anmi_ray.tables import trec

from .conftest import make_run, order

RANKINGS = {"q1": [("d1", 0.1 + 0.2), ("d2", 1e-17), ("dé\u00a03", -4.0)], "q2": [("d2", 2.5), ("d1", 2.5)]}
QUERIES = pa.table({"query_id": [identity.query_id(q) for q in ("q1", "q2")], "external_id": ["q1", "q2"]})
NAMES = ["d1", "d2", "dé\u00a03"]
DOCUMENTS = pa.table({"doc_id": [identity.doc_id(d) for d in NAMES], "external_id": NAMES})


def key(table: pa.Table) -> pa.Table:
    return table.sort_by([("system", "ascending"), ("query_id", "ascending"), ("rank", "ascending")])


def test_round_trip(tmp_path: Path):
    run = make_run("reranked+hybrid", RANKINGS)
    text = trec.format_run(run, QUERIES, DOCUMENTS)
    assert text.splitlines()[0] == "q1 Q0 d1 1 0.30000000000000004 reranked+hybrid"
    (tmp_path / "run.trec").write_text(text, encoding="utf-8")
    back = RUN.check(trec.read_run(tmp_path / "run.trec").table, "test")
    assert key(back).to_pylist() == key(run).to_pylist()
    shuffled = run.take(pa.array([4, 2, 0, 3, 1]))
    assert trec.format_run(shuffled, QUERIES, DOCUMENTS) == text
    assert trec.format_run(RUN.empty(), QUERIES, DOCUMENTS) == ""


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("a.tsv", "q\td1\t1\nq\td2\t2\n"),
        ("a.tsv.gz", "q\td1\t1\t2.5\nq\td2\t2\t1\n"),
        ("a.txt", "qid docid score\nq d2 1\nq d1 2.5\n"),
        ("a.csv", "query;query_id;doc_id;score\nwhat?;q;d2;1\nwhat?;q;d1;2.5\n"),
        ("a.jsonl", '{"qid": "q", "docid": "d1", "rank": 1}\n{"qid": "q", "docid": "d2", "rank": 2}\n'),
    ],
)
def test_runs_of_ms_marco_and_tables(tmp_path: Path, name: str, text: str):
    (tmp_path / name).write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    run = RUN.check(trec.read_run(tmp_path / name).table, "test")
    assert order(run) == {identity.query_id("q"): [identity.doc_id("d1"), identity.doc_id("d2")]}
    assert run["system"].to_pylist() == ["a", "a"]


@pytest.mark.parametrize(
    ("name", "text", "place"),
    [
        ("a.tsv", "q\td1\t1\nq\td2\t2\t3\n", "a.tsv:2"),
        ("a.csv", "query_id,doc_id\nq,d1\n", "a.csv"),
        ("a.csv", "query_id,doc_id,score\nq,d1,\n", "a.csv:2"),
        ("a.csv", "query_id,doc_id,score\n,d1,1\n", "a.csv:2"),
        ("a.csv", "query_id,doc_id,score\nq,d1,2\nq,d1,3\n", "a.csv:3"),
    ],
)
def test_a_row_that_cannot_be_read_is_named(tmp_path: Path, name: str, text: str, place: str):
    (tmp_path / name).write_text(text)
    with pytest.raises(DataError) as caught:
        trec.read_run(tmp_path / name)
    assert caught.value.place == str(tmp_path / place)


def test_reading_follows_the_score_then_the_written_rank():
    lines = ["q Q0 low 0 1.5 t", "q Q0 high 0 7 t", "", "q Q0 second 9 3 t\r", "q Q0 first 8 3 t"]
    run = RUN.check(trec.parse_run(lines, "x").table, "test")
    assert order(run)[identity.query_id("q")] == [identity.doc_id(d) for d in ("high", "first", "second", "low")]


def test_a_tag_is_a_system_in_the_order_of_the_file():
    lines = ["q Q0 a 1 2 late", "q Q0 a 1 1 early", "q Q0 b 2 0 early", "q Q0 b 2 1 late"]
    run = RUN.check(trec.parse_run(lines, "x").table, "test")
    assert run["system"].to_pylist() == ["late", "late", "early", "early"]
    assert run["rank"].to_pylist() == [1, 2, 1, 2]


@pytest.mark.parametrize(
    ("ranks", "said"),
    [
        ((1, 2, 3, 1), []),
        ((0, 0, 0, 0), []),  # who does not count writes one number
        ((2, 1, 3, 1), []),  # of equal scores any may be first
        ((1, 3, 2, 1), ["x:3: the written ranks of 1 ranking contradict the scores: the scores decide"]),
    ],
)
def test_ranks_that_contradict_the_scores_are_told_of_once(ranks: tuple[int, ...], said: list[str]):
    docs = zip(("q Q0 a", "q Q0 b", "q Q0 c", "p Q0 a"), ranks, (2, 2, 1, 5), strict=True)
    heard: list[str] = []
    trec.parse_run([f"{doc} {rank} {score} t" for doc, rank, score in docs], "x", say=heard.append)
    assert heard == said


PLACED = st.tuples(st.sampled_from("pq"), st.sampled_from(["a", "b", "B", "b0", "\u00e9", "z", "\u4e00"]))
# pairs that 64 bits tell apart and 32 do not
SCORES = st.sampled_from([0.0, -0.0, 1.0, 1.0 + 1e-9, -1e-50, 16777216.0, 16777217.0])


@given(st.dictionaries(PLACED, st.tuples(SCORES, st.integers(0, 3)), min_size=1), st.sets(PLACED, min_size=1))
def test_ties_go_as_in_trec_eval(placed: dict[tuple[str, str], tuple[float, int]], relevant: Sequence[tuple[str, str]]):
    names = ("AP", "nDCG@2", "P@1", "RR")
    lines = [f"{query} Q0 {doc} {rank} {score!r} t" for (query, doc), (score, rank) in placed.items()]
    run = RUN.check(trec.parse_run(lines, "x", "trec_eval").table, "test")
    values = measures.evaluate(run, qrel_table({(query, doc): len(doc) for query, doc in relevant}), names)
    theirs = ir_measures.pytrec_eval.iter_calc(
        [ir_measures.parse_measure(name) for name in names],
        [ir_measures.Qrel(query, doc, len(doc)) for query, doc in relevant],
        [ir_measures.ScoredDoc(query, doc, score) for (query, doc), (score, _) in placed.items()],
    )
    known = {(identity.query_id(value.query_id), str(value.measure)): value.value for value in theirs}
    ranked = {query for query, _ in placed}
    for row in values.filter(pc.is_in(values["query_id"], pa.array(map(identity.query_id, ranked)))).to_pylist():
        assert row["value"] == pytest.approx(known[row["query_id"], row["measure"]], abs=1e-12)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("q Q0 d 1 2.0", r"run.trec:2: 5 fields, must be 6"),
        ("q Q0 d 1 2.0 my tag", r"run.trec:2: 7 fields"),
        ("q,Q0,d,1,2.0,t", r"run.trec:2: 1 fields, must be 6, but columns separated by commas"),
        ("q Q0 d 1 high t", r"run.trec:2: score 'high' is not a finite number"),
        ("q Q0 d 1 7,6 t", r"score '7,6' is not a finite number\n.*number, with a point for its comma"),
        ("q Q0 d 1 nan t", r"run.trec:2: score 'nan'"),
        ("q Q0 d 1.5 2.0 t", r"run.trec:2: rank '1.5' is not a whole number"),
        ("q Q0 d 1 inf t", r"run.trec:2: score 'inf'"),
        ("q Q0 d 1 1e400 t", r"run.trec:2: score '1e400'"),
        ("q Q0 d 1 1_0.5 t", r"run.trec:2: score '1_0.5'"),
        ("q Q0 d 1 \uff11 t", r"run.trec:2: score '\uff11'"),
        ("q Q0 d 1_0 2.0 t", r"run.trec:2: rank '1_0'"),
        ("q Q0 d \u0663 2.0 t", r"run.trec:2: rank '\u0663'"),
        ("q Q0 a 2 2.0 t", r"run.trec:2: document 'a' is repeated .* first in line 1"),
    ],
)
def test_bad_lines(line: str, message: str):
    with pytest.raises(DataError, match=message) as error:
        trec.parse_run(["q Q0 a 1 9 t", line], "run.trec")
    assert error.value.remedy


def test_names_that_the_format_cannot_hold():
    run = make_run("t", {"q1": [("d1", 1)]})
    spaced = DOCUMENTS.set_column(1, "external_id", pa.array(["d 1", "d2", "d3"]))
    with pytest.raises(DataError, match="white space"):
        trec.format_run(run, QUERIES, spaced)
    with pytest.raises(DataError, match="no external id"):
        trec.format_run(make_run("t", {"q9": [("d1", 1)]}), QUERIES, DOCUMENTS)
