"""The study of false negatives: what is hidden and counted, what a claim is held against, and a small study whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.identity import doc_id
from anmi_ray.evaluation.replicates import contrast
from jobs.studies import collected
from jobs.studies import false_negatives as study
from jobs.studies.false_negatives import Design, at_random, count, hidden, judged_often
from tests.small import write_topics

designs = st.sampled_from(["half", "one"])


def docs(number: int) -> list[bytes]:
    return [doc_id(str(i)) for i in range(number)]


@given(st.integers(1, 40), designs, st.integers(0, 5))
def test_one_positive_is_always_shown_and_one_of_two_hidden(number: int, design: Design, seed: int) -> None:
    found = hidden(b"q", docs(number), design, seed)
    assert found < set(docs(number))
    if design == "one":
        assert len(found) == number - 1
    else:
        assert abs(len(found) - number / 2) <= 0.5
    assert found == hidden(b"q", docs(number)[::-1], design, seed)


def test_a_half_is_half_on_average_and_every_positive_has_its_turn() -> None:
    seen = [hidden(b"q", docs(3), "half", seed) for seed in range(400)]
    assert np.mean([len(one) for one in seen]) == pytest.approx(1.5, abs=0.1)
    for doc in docs(3):
        assert np.mean([doc in one for one in seen]) == pytest.approx(0.5, abs=0.1)


def test_counts_are_those_of_a_ranking_that_is_known() -> None:
    positives, related, rest = docs(6)[:4], docs(6)[4:], docs(40)[6:]
    grades = {b"q": {**dict.fromkeys(positives, 2), **dict.fromkeys(related, 1), rest[0]: 0}}
    best = [*positives, *related, *rest]
    found = count(lambda query, seed: best, grades, 2, "one", 3, (2, 5, 10, 100))
    assert found["rate"].shape == (3, 1, 4)
    assert found["related_rate"][0, 0].tolist() == [1, 1, 0.5, 5 / 39]
    assert found["unjudged_rate"][0, 0].tolist() == [0, 0, 0.4, 33 / 39]
    assert found["rate"][0, 0].tolist() == [1, 0.6, 0.3, 3 / 39]
    assert found["recall"][0, 0].tolist() == [2 / 3, 1, 1, 1]
    worst = count(lambda query, seed: best[::-1], grades, 2, "one", 3, (2, 5, 10, 100))
    assert worst["recall"][0, 0].tolist() == [0, 0, 0, 1]
    assert count(lambda query, seed: [], grades, 2, "one", 1, (2,))["rate"].tolist() == [[[0.0]]]


def test_random_documents_hold_as_many_hidden_as_the_collection_does() -> None:
    everything = docs(200)
    grades = {bytes([q]): dict.fromkeys(everything[q * 7 : q * 7 + 20], 1) for q in range(8)}
    found = count(lambda query, seed: at_random(query, everything, 150, seed), grades, 1, "half", 40, (100,))
    assert found["rate"].mean() == pytest.approx(10 / 190, rel=0.05)
    drawn = at_random(b"q", everything, 150, 3)
    assert len(set(drawn)) == 150
    assert drawn == at_random(b"q", everything, 150, 3) != at_random(b"q", everything, 150, 4)


def test_queries_with_one_positive_are_left_out() -> None:
    grades = {b"a": {docs(1)[0]: 2}, b"b": dict.fromkeys(docs(2), 2), b"c": dict.fromkeys(docs(3), 1)}
    assert list(judged_often(grades, 2)) == [b"b"]
    assert list(judged_often(grades, 1)) == [b"b", b"c"]


def test_a_collection_of_several_splits_is_tested_whole(tmp_path: Path) -> None:
    made = write_topics(tmp_path / "made", topics=4)
    assert collected.tested(str(made), tmp_path / "view") == str(made)
    head, *lines = (made / "qrels" / "test.tsv").read_text().splitlines()
    (made / "qrels" / "train.tsv").write_text("\n".join([head, *lines[:7]]) + "\n")
    (made / "qrels" / "test.tsv").write_text("\n".join([head, *lines[7:]]) + "\n")
    view = Path(collected.tested(str(made), tmp_path / "view"))
    assert collected.tested(str(made), tmp_path / "view") == str(view)
    assert sorted((view / "qrels" / "test.tsv").read_text().splitlines()) == sorted([head, *lines])
    assert [path.name for path in (view / "qrels").iterdir()] == ["test.tsv"]
    assert (view / "corpus.jsonl").read_bytes() == (made / "corpus.jsonl").read_bytes()


def test_claims_are_held_against_the_interval() -> None:
    rates = [np.array([[0.1, 0.2, 0.3, 0.2]])]
    found = contrast("bm25", "", rates)
    for bound in (False, True):
        assert study.verdict(found, (10.0, 25.0), bound) == "as said"
        assert study.verdict(found, (0.0, 1.0), bound) == "above"
    assert study.verdict(found, (40.0, 60.0), False) == "below"
    assert study.verdict(found, (40.0, 60.0), True) == "below, as a bound may be"
    named = {"bm25base_p": "bm25", "bm25base_rm3_p": "", "p_bert": "reranker", "dense": "dense", "hybrid": ""}
    assert {name: study.plays(name) for name in named} == named


def test_mistakes_name_the_option(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match=r"(?s)--runs.*give --pool FOLDER"):
        study.main(["--runs", str(tmp_path), "--root", str(tmp_path)])
    with pytest.raises(SystemExit, match="give --data NAME=FOLDER"):
        study.main(["--root", str(tmp_path)])
    assert capsys.readouterr().out == ""


@pytest.mark.ray
@pytest.mark.studies
@pytest.mark.slow
def test_a_small_study_prints_its_tables_and_retrieves_nothing_twice(tmp_path: Path) -> None:
    made, pool = write_topics(tmp_path / "made"), write_topics(tmp_path / "pool", topics=10)
    runs = tmp_path / "runs"
    runs.mkdir()
    lines = [f"q{q} Q0 t{q}d{i} {i + 1} {10 - i} bm25base" for q in range(10) for i in range(4)]
    (runs / "bm25base.trec").write_text("\n".join(lines) + "\n")
    command = [sys.executable, "-m", "jobs.studies.false_negatives", "--data", f"made={made}", "--pool", str(pool)]
    command += ["--runs", str(runs), "--root", str(tmp_path / "root"), "--out", str(tmp_path / "out")]
    command += ["--seeds", "3", "--workers", "1"]

    def ran() -> str:
        done = subprocess.run(command, capture_output=True, text=True, timeout=900, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = ran()
    for row in ("| made | hybrid |", "| trec-dl-2019 | dense |", "Table 1", "whole collection (bm25base) | 100.0"):
        assert row in first
    record = json.loads((tmp_path / "out" / "false_negatives.json").read_text())
    rates = {
        (row["collection"], row["design"], row["strategy"], row["depth"]): row
        for row in record["values"]["rates"]
        if row["quantity"] == "rate"
    }
    assert rates["made", "half", "bm25", 10]["queries"] == 12
    assert rates["made", "half", "random", 10]["value"] < rates["made", "half", "bm25", 10]["value"]
    parts = {path: path.stat().st_mtime_ns for path in (tmp_path / "root" / "artifacts").rglob("*.parquet")}
    assert ran() == first
    assert parts == {path: path.stat().st_mtime_ns for path in (tmp_path / "root" / "artifacts").rglob("*.parquet")}
