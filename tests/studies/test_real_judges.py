"""The study of real judges where queries are few, on two made-up tracks whose judges see what people see."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from anmi_ray.core.identity import rng
from anmi_ray.corpus.beir import BeirFiles
from jobs.studies import real_preferences as study
from tests.small import write_collection

QUERIES, DOCUMENTS = 10, 24


@pytest.fixture(scope="module")
def tracks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folders dl2019, whose judge compares documents of grade 1 and more, dl2023, with grades of judges, and gpt."""
    folder = tmp_path_factory.mktemp("tracks")
    whole = write_collection(folder / "whole", train=2, dev=2, test=QUERIES, others=QUERIES * DOCUMENTS)
    files = BeirFiles(str(whole))
    documents = [json.loads(line)["_id"] for line in (whole / "corpus.jsonl").read_text().splitlines()]
    queries = sorted({query for query, *_ in files.grades("qrels/test.tsv")})
    grade = {query: {documents[at]: int(rng("grade", query, at).choice([0, 0, 0, 0, 0, 1, 3, 3]))
                     for at in rng("pool", query).choice(len(documents), DOCUMENTS, replace=False).tolist()}
             for query in queries}  # fmt: skip
    judged = [f"{query}\t{doc}\t{one}" for query, pool in grade.items() for doc, one in pool.items()]
    for name in ("dl2019", "dl2023"):
        (folder / name / "qrels").mkdir(parents=True)
        (folder / name / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *judged]) + "\n")
        for part in ("corpus", "queries"):
            (folder / name / f"{part}.jsonl").symlink_to(whole / f"{part}.jsonl")
    with (folder / "dl2019_judgments.csv").open("w", newline="") as file:
        rows = [
            ("2019", at % 3, query, *(pair if pool[pair[0]] >= pool[pair[1]] else pair[::-1]), "win")
            for query, pool in grade.items()
            for at, pair in enumerate((a, b) for a in pool for b in pool if a < b and min(pool[a], pool[b]))
        ]
        csv.writer(file).writerows([("year", "round", "qid", "winner", "loser", "kind"), *rows, rows[0]])
    (folder / "dl2023" / "llm_labels").mkdir()
    with (folder / "dl2023" / "llm_labels" / "all_judges.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(("qid", "docid", "human", *study.PANEL))
        for query, pool in grade.items():
            writer.writerows((query, doc, one, one, one, 10 if one == 3 else one) for doc, one in pool.items())
    return folder


@pytest.mark.slow
def test_a_pair_that_was_asked_about_twice_is_one(tracks: Path) -> None:
    rows = study.gpt4o(str(tracks))
    found = study.preferences_of("dl2019", tracks / "dl2019", str(tracks))
    assert len(found) == len(rows) - 1
    preferred = {(query, *((a, b) if p == 1.0 else (b, a))) for query, a, b, p, _ in found}
    assert preferred == {(query, winner, loser) for query, winner, loser, _ in rows}


def test_grades_become_preferences_and_those_off_the_scale_none(tracks: Path) -> None:
    grade = {(query, doc): one for query, doc, one in BeirFiles(str(tracks / "dl2023")).grades("qrels/test.tsv")}
    found = study.preferences_of("dl2023", tracks / "dl2023", None)
    for query, a, b, p, judge in found:
        first, second = grade[query, a], grade[query, b]
        assert p == (first > second) + 0.5 * (first == second)
        assert judge != study.PANEL[2] or max(first, second) < 3
    assert {judge for *_, judge in found} == set(study.PANEL)


def test_what_is_shuffled_keeps_who_is_compared_and_forgets_who_is_better(tracks: Path) -> None:
    """A query's documents are exchanged: the games are those of others, none is lost, and the best may be the worst."""
    found = study.preferences_of("dl2019", tracks / "dl2019", str(tracks))
    other = study.shuffled(found)
    changed = 0
    for query in {one[0] for one in found}:
        wins, after = (Counter(a if p == 1.0 else b for q, a, b, p, _ in of if q == query) for of in (found, other))
        assert sorted(wins.values()) == sorted(after.values())
        assert {doc for q, a, b, *_ in found if q == query for doc in (a, b)} == {
            doc for q, a, b, *_ in other if q == query for doc in (a, b)
        }
        changed += wins != after
    assert changed


@pytest.mark.studies
@pytest.mark.timeout(3000)
def test_a_small_study(tracks: Path, tmp_path: Path) -> None:
    """Judges who see what people see have anchors that people call relevant; with their documents exchanged, not so."""
    command = [sys.executable, "-m", "jobs.studies.real_judges", "--data", f"dl2023={tracks / 'dl2023'}"]
    command += ["--root", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=3000, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "studies" / "real_judges.json").read_text())
    tables = {table["title"]: table["rows"] for table in found["tables"]}
    right = {(row[0], row[1]): int(row[4].rstrip("%")) for row in tables["What was learned from, all folds"]}
    assert right["dl2023", "labels"] == 100
    assert right["dl2023", "judges"] > 80
    assert ("dl2023", "shuffled") not in right, "the run refuses it"
    for row in tables["Rates that were chosen, in folds and seeds"]:
        assert sum(map(int, row[2:])) == 5
