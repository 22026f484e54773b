"""`anmi evaluate`: run files of anyone's, as a user has them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.commands import anmi, printed, refused

FILES = {
    "qrels/test.tsv": "query-id\tcorpus-id\tscore\nq1\td1\t1\nq2\td2\t1\n",
    "two.trec": "q1 Q0 d1 1 2 x\nq1 Q0 d2 2 1 x\nq1 Q0 d2 1 2 y\nq1 Q0 d1 2 1 y\n",
    "one.trec": "q1 Q0 d1 1 2 x\n",
    "sub/one.trec": "q1 Q0 d2 1 2 x\n",
    "stranger.trec": "q9 Q0 d1 1 2 x\n",
    "empty.trec": "",
    "tags.trec": "q1 Q0 d1 1 2 x\nq9 Q0 d1 1 2 y\n",
}


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)


def evaluate(*runs: str) -> list[str]:
    return ["evaluate", "--collection", ".", "--measures", "RR", *(word for run in runs for word in ("--ranking", run))]


@pytest.mark.parametrize(
    ("runs", "systems"),
    [
        (["two.trec"], {"x": ".500", "y": ".250"}),
        (["two.trec", "one.trec"], {"two:x": ".500", "y": ".250", "one:x": ".500"}),
        (["one.trec", "sub/one.trec"], {"one.trec:x": ".500", "sub/one.trec:x": ".000"}),
    ],
)
def test_each_tag_is_a_system(runs: list[str], systems: dict[str, str]) -> None:
    rows = [line.split() for line in printed(*evaluate(*runs)).splitlines()]
    assert rows[0][-3:] == ["−", next(iter(systems)), "p"] or len(systems) == 1
    assert {row[0]: row[1].removeprefix("0") for row in rows[1:]} == systems


def test_a_query_s_own_document_is_left_out(tmp_path: Path) -> None:
    texts = {"q1": "sort a list", "q2": "open a file"}
    documents = {**texts, "d1": "sorted() returns a list", "d2": "open() returns a file"}
    for name, rows in (("queries", texts), ("corpus", documents)):
        lines = (json.dumps({"_id": key, "text": text}) for key, text in rows.items())
        (tmp_path / f"{name}.jsonl").write_text("\n".join(lines))
    own = "".join(f"{q} Q0 {q} 1 3 x\n{q} Q0 d{q[1]} 2 2 x\n" for q in texts)
    (tmp_path / "own.trec").write_text(own)
    done = anmi(*evaluate("own.trec"))
    assert "1.000" in done.stdout
    assert done.stderr.startswith("2 queries are documents under their own id")
    assert "0.500" in printed(*evaluate("own.trec"), "--own-document", "keep")


def test_malformed_qrels_are_counted_and_the_first_of_a_repeated_pair_counts(tmp_path: Path) -> None:
    lines = [f"p{i}\td1\t0" for i in range(199)]
    path = tmp_path / "qrels" / "test.tsv"
    path.write_text("\n".join(["query-id\tcorpus-id\tscore", "q1\td1\t1", *lines, "q1\td1\t0", "q1\td2\t1.5\n"]))
    done = anmi(*evaluate("one.trec"))
    for said in ("2 of 202 qrels are malformed", "test.tsv:202 (pair judged twice)", "test.tsv:203 (grade is not an"):
        assert said in done.stderr
    assert "1.000" in done.stdout
    path.write_text(path.read_text() + "q1\td3\n")
    assert "3 of 203 qrels are malformed (1.5%, allowed 1.0%)" in refused(*evaluate("one.trec"))


def test_a_qrels_file_and_a_run_need_no_collection(tmp_path: Path) -> None:
    """TREC's and BEIR's qrels give the same figures."""
    (tmp_path / "trec.txt").write_text("q1 0 d1 1.0\nq2 0 d2 1\n")
    said = [
        printed("evaluate", "--qrels", name, "--ranking", "two.trec", "--measures", "RR")
        for name in ("trec.txt", "qrels/test.tsv")
    ]
    assert said[0] == said[1] == printed(*evaluate("two.trec"))
    assert "--qrels" in refused("evaluate", "--ranking", "two.trec")
    assert "standard input" in refused("evaluate", "--qrels", "-", "--ranking", "-")


COLLECTION = {
    "corpus.jsonl": "".join(f'{{"_id": "d{i}", "text": "text {i}"}}\n' for i in range(1, 5)),
    "queries.jsonl": "".join(f'{{"_id": "q{i}", "text": "query {i}"}}\n' for i in range(1, 3)),
    "upper.trec": "q1 Q0 D1 1 2 x\nq1 Q0 d3 2 1 x\n",
    "few.trec": "q1 Q0 d1 1 3 x\nq1 Q0 d3 2 2 x\nq1 Q0 d9 3 1 x\n",
    "zeros.trec": "q01 Q0 d1 1 2 x\n",
    "blank.trec": "q1 Q0 d1\u00a0 1 2 x\n",
    "headed.trec": "qid Q0 docid rank score tag\nq1 Q0 d1 1 2 x\n",
    "twin.trec": "q1 Q0 d1\u00a0 1 2 x\nq1 Q0 d1 1 2 x\n",
}


@pytest.fixture
def collection(tmp_path: Path) -> Path:
    for name, text in COLLECTION.items():
        (tmp_path / name).write_text(text)
    return tmp_path


@pytest.mark.parametrize(
    ("run", "count", "example"),
    [("upper.trec", "1 of 2 documents", "D1 is d1 there"), ("zeros.trec", "1 of 1 queries", "q01 is q1 there")],
)
def test_unknown_ids_are_counted_and_refused_if_they_are_half(
    collection: Path, run: str, count: str, example: str
) -> None:
    said = refused(*evaluate(run))
    assert f"{run}: {count}" in said
    assert example in said
    done = anmi(*evaluate("few.trec"))
    assert "few.trec: 1 of 3 documents" in done.stderr
    assert "0.500" in done.stdout


def test_grades_alone_know_their_ids(collection: Path) -> None:
    command = ("evaluate", "--qrels", "qrels/test.tsv", "--measures", "RR", "--ranking")
    assert "q01 is q1 there" in refused(*command, "zeros.trec")
    assert anmi(*command, "few.trec").stderr == ""  # unjudged documents are usual
    (collection / "upper.trec").write_text("q1 Q0 D1 1 2 x\nq1 Q0 D2 2 1 x\n")
    assert "D1 is d1 there" in refused(*command, "upper.trec")


def test_grades_of_what_the_collection_lacks_are_left_out_and_counted(collection: Path) -> None:
    path = collection / "qrels" / "test.tsv"
    path.write_text(path.read_text() + "q2\tghost\t1\nq1\tghost\t1\nq9\td1\t1\n")
    text = path.read_text()
    (collection / "queries.jsonl").write_text(COLLECTION["queries.jsonl"] + '{"_id": "q3", "text": "query 3"}\n')
    path.write_text(text + "q3\td1\t1\n")
    done = anmi(*evaluate("one.trec"))
    assert "2 of 6 grades are about documents" in done.stderr
    assert "1 of 6 grades are about queries" in done.stderr
    assert "0.333" in done.stdout  # one of three queries


def test_invisible_characters_and_a_header_of_a_run(collection: Path) -> None:
    done = anmi(*evaluate("blank.trec"))
    assert "blank.trec: invisible characters around the ids of 1 lines" in done.stderr
    assert done.stdout == printed(*evaluate("headed.trec")) == printed(*evaluate("one.trec"))
    assert "twin.trec:2: document 'd1' is repeated" in refused(*evaluate("twin.trec"))


def test_a_measure_that_is_none_is_told_the_examples_once() -> None:
    assert refused(*evaluate("one.trec"), "--measures", "nDCG@x").count("nDCG@10") == 1


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (evaluate("one.trec", "./one.trec"), "--ranking names it twice"),
        (evaluate("stranger.trec"), "none of its 1 queries is judged in corpus ./qrels/test.tsv"),
        (evaluate("tags.trec"), "run y: none of its 1 queries is judged in corpus ./qrels/test.tsv"),
        (evaluate("empty.trec"), "empty.trec: holds no ranking"),
        ([*evaluate("one.trec"), "--measures", " ,"], "--measures: expected"),
        ([*evaluate("one.trec"), "--measures", "Recall"], "'Recall' is not a measure"),
    ],
)
def test_mistakes(arguments: list[str], says: str) -> None:
    assert says in refused(*arguments)
