"""`anmi rate` as a user meets it: files in and out, the summary, and one message with exit code 2 per mistake."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
import pytest

from tests.commands import printed, refused

HEAD = "query_id,doc_a,doc_b,preference\n"
GOOD = "".join(
    f"{q},{a},{b},{p}\n" for q in ("q1", "q2") for a, b, p in (("a", "b", 1), ("b", "c", 0.8), ("a", "c", 0))
)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "preferences.csv"
    path.write_text(HEAD + GOOD)
    return path


def rate(*arguments: object) -> str:
    return printed("rate", *arguments)


def test_everything_it_writes(file: Path, tmp_path: Path) -> None:
    out, fits, gaps = tmp_path / "o.parquet", tmp_path / "f.csv", tmp_path / "g.jsonl"
    rejects, anchors = tmp_path / "r.csv.gz", tmp_path / "anchors.jsonl"
    anchors.write_text('{"query_id": "q1", "doc_id": "b"}\n{"query_id": "q1", "doc_id": "nowhere"}\n')
    file.write_text(HEAD + GOOD + "q1,a,b,2\n")
    said = rate(
        file, "--model", "bradley-terry", "--prior", "1.5", "--dispersion", "1", "--out", out, "--fits", fits,
        "--gaps", gaps, "--rejects", rejects, "--anchors", anchors, "--max-reject-fraction", "0.2",
    )  # fmt: skip
    ratings = pq.read_table(out)
    names = ["query_id", "doc_id", "rating_elo", "std_err_elo", "latent", "games", "component"]
    assert ratings.column_names == names
    rows = [(row["query_id"], -row["rating_elo"], row["doc_id"]) for row in ratings.to_pylist()]
    assert rows == sorted(rows)
    assert pacsv.read_csv(fits)["query_id"].to_pylist() == ["q1", "q2"]
    lines = [json.loads(line) for line in gaps.read_text().splitlines()]
    assert [(row["query_id"], row["anchor_id"], row["anchor_kind"]) for row in lines[:2]] == [("q1", "b", "known")] * 2
    assert lines[2]["anchor_kind"] == "top-rated"
    assert pacsv.read_csv(rejects).to_pylist()[0]["place"] == f"{file}:8"
    for line in (
        "rows           7 read, 6 accepted, 1 rejected",
        f"               1 preference outside [0, 1] ({file}:8: 2)",
        "rated          2 queries, 6 documents, 6 games",
        "model          bradley-terry, prior sd 1.5 logit, 261 Elo points (fixed)",
        "dispersion     1 (fixed)",
        "estimate       posterior means",
        "converged      every query",
        "connected      every query",
        f"out            -> {out}",
    ):
        assert line in said
    assert "1 of their rows name no rated document" in said
    assert {path.name for path in tmp_path.iterdir()} == {
        path.name for path in (file, out, fits, gaps, rejects, anchors)
    }


def test_ties_and_leanings(tmp_path: Path) -> None:
    """Every option of the model reaches the fit, and the summary says what was found."""
    rows = [(a, b, judge) for a in range(6) for b in range(6) if a != b for judge in ("x", "y")]
    lines = [
        f"q,d{a},d{b},{1 if a < b + 2 * (judge == 'x') else 0.5 if a == b + 1 else 0},{judge}" for a, b, judge in rows
    ]
    file, out = tmp_path / "judged.csv", tmp_path / "o.csv"
    file.write_text("query_id,doc_a,doc_b,preference,judge\n" + "\n".join(lines) + "\n")
    said = rate(file, "--out", out, "--prior", 1, "--model", "bradley-terry", "--ties", "davidson")
    assert "davidson, width" in said
    said = rate(file, "--out", out, "--prior", 1, "--judge-offsets")
    leaning = {line.split()[2]: int(line.split()[3]) for line in said.splitlines() if line.startswith("offset")}
    assert leaning["x:"] > leaning["y:"]
    said = refused("rate", file, "--out", out, "--ties", "davidson")
    assert "ties: davidson needs model: bradley-terry" in said


def test_what_did_not_converge_is_said(file: Path, tmp_path: Path) -> None:
    file.write_text("query_id,doc_a,doc_b,preference,games\nq,a,b,1,1e300\nq,b,c,1,1\nq,c,a,1,1\n")
    said = rate(file, "--prior", 1, "--dispersion", 1, "--out", tmp_path / "o.csv", "--fits", tmp_path / "f.csv")
    converged = pacsv.read_csv(tmp_path / "f.csv")["converged"][0].as_py()
    assert ("1 of 1 queries not converged (q)" in said) == (not converged)


def test_ratings_are_printed_without_out_and_many_in_part(file: Path) -> None:
    said = rate(file)
    rows = [line.split() for line in said.splitlines() if re.match("q[12] ", line)]
    assert sorted(row[:2] for row in rows) == [[query, doc] for query in ("q1", "q2") for doc in "abc"]
    for row in rows:
        rating, low, high = (float(cell.strip("[],")) for cell in row[2:])
        assert low < rating < high
        assert high - low > 100
    assert "too few comparisons" in said
    file.write_text(HEAD + "".join(f"q,d{number:02},d{number + 1:02},1\n" for number in range(59)))
    said = rate(file)
    assert len([line for line in said.splitlines() if line.startswith("q ")]) == 50
    assert "10 more documents" in said


def test_leanings_are_fitted_whatever_the_orders_are_called(tmp_path: Path) -> None:
    """Three of four answers name the document that was shown first."""
    said = []
    for words in ({"ab": "ab", "ba": "ba"}, {"ab": "original", "ba": "swapped"}):
        rows = [
            f"q,d{i},d{j},{int((i + 2 * j + (order == 'ba')) % 4 < 3) ^ (order == 'ba')},{words[order]}\n"
            for i in range(8)
            for j in range(i)
            for order in ("ab", "ba")
        ]
        path = tmp_path / "p.csv"
        path.write_text("query_id,doc_a,doc_b,preference,order\n" + "".join(rows))
        said.append(rate(path, "--judge-offsets"))
    assert said[0] == said[1]
    [points] = re.findall(r"([+-]\d+) Elo points for the document shown first", said[1])
    assert int(points) > 50


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        (["--out", "o.xlsx"], "name it .csv, .tsv, .jsonl (each also .gz or .zst) or .parquet"),
        (["--out", "nowhere/o.csv"], "mkdir -p"),
        (["--out", "preferences.csv"], "would overwrite it; it is read"),
        (["--out", "o.csv", "--fits", "o.csv"], "it is written by --out"),
        (["--out", "o.csv", "--prior", "0"], "prior"),
        (["--tie-width", "1"], "remedy: in Python: anmi_ray.rate"),
        (["--out", "o.csv", "--model", "elo"], "'elo' is not one of"),
        (["--out", "o.csv", "--max-reject-fraction", "2"], "--max-reject-fraction"),
        (["--out", "o.csv", "--anchors", "absent.csv"], "absent.csv: no such file or folder"),
        (GOOD, "its columns are 'q1', 'a', 'b', '1'"),
        ((HEAD + GOOD).replace("query_id", "qid"), "--all-one-query"),
        (HEAD, "nothing to rate"),
        (HEAD + GOOD + "q1,a\n", "1 of 7 rows cannot be used (14.3%, allowed 10.0%): 1 not as many columns"),
    ],
)
def test_mistakes_in_arguments_or_in_the_file(
    file: Path, wrong: list[str] | str, says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(file.parent)
    if isinstance(wrong, str):
        file.write_text(wrong)
    arguments = ["--out", "o.csv"] if isinstance(wrong, str) else wrong
    assert says in refused("rate", file.name, *arguments)
    assert [path.name for path in file.parent.iterdir()] == [file.name]


def test_separation_names_ids_as_they_stand_in_the_file(file: Path, tmp_path: Path) -> None:
    file.write_text(HEAD + "the query,winner,x,1\nthe query,x,y,.5\n")
    said = refused("rate", file, "--prior", "none", "--out", tmp_path / "o.csv")
    assert f"{file}, query the query: without a prior" in said
    assert "see documents winner" in said


def test_one_query_without_the_column(file: Path, tmp_path: Path) -> None:
    file.write_text("doc_a,doc_b,preference\na,b,1\nb,c,.5\n")
    rate(file, "--all-one-query", "--prior", 1, "--out", tmp_path / "o.csv")
    assert set(pacsv.read_csv(tmp_path / "o.csv")["query_id"].to_pylist()) == {"all"}


def test_parquet_rows_have_places(tmp_path: Path) -> None:
    path = tmp_path / "p.parquet"
    rows = {"query_id": [1] * 20, "doc_a": list(range(20)), "doc_b": [99] * 20, "preference": [0.5] * 19 + [None]}
    pq.write_table(pa.table(rows), path)
    said = rate(path, "--prior", 1, "--out", tmp_path / "o.csv")
    assert f"1 preference missing ({path} row 20)" in said
