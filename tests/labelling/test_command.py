"""`anmi label` without its page: files out and in, the summary, and what users do wrong."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest

from anmi_ray.api.labelling import Labelling
from anmi_ray.api.runs import Run
from tests.commands import printed, refused
from tests.labelling.made import write_run


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write_run(tmp_path / "root")
    return tmp_path / "root"


def label(root: Path, *options: object) -> str:
    return printed("label", "made", "--root", root, *options)


def fill_in(path: Path, person: str, right: float = 1.0, every: int = 1) -> None:
    """Answer the pairs of an exported CSV as somebody who prefers the document of the larger quality."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    for number, row in enumerate(rows):
        better = "first" if row["first"][-1] > row["second"][-1] else "second"
        worse = "second" if better == "first" else "first"
        if number % every == 0:
            row |= {"person": person, "answer": better if number < right * len(rows) else worse}
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def figures_of(root: Path, *options: object) -> dict[str, Any]:
    path = root.parent / "figures.json"
    label(root, "--json", path, *options)
    return json.loads(path.read_text(encoding="utf-8"))


def test_out_filled_in_and_in_again(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    assert "180 pairs -> " in label(root, "--export", path)
    fill_in(path, "ana")
    said = label(root, "--import", path, "--summary", "--least", 0.8)
    assert "180 new answers" in said
    assert "below          coin agrees with people" in said
    assert "careful agrees" not in said
    audited = printed("audit", "made", "--root", root)  # which says the same, to the same bound as by default
    assert label(root, "--summary").splitlines()[-8:] == audited.splitlines()[-8:]
    found = figures_of(root)
    assert found["judges"]["careful"]["random"]["mean"] > 0.8 > found["judges"]["coin"]["random"]["mean"]
    careful = found["judges"]["careful"]
    assert careful["by_kind"]["question"] == careful["all"]  # the run's queries ask
    assert found["judges"]["careful"]["random"]["n"] <= found["random"] == 180
    assert found["people"]["together"] is None
    label(root, "--export", path)  # with the answers: in again they are known
    assert "0 new answers" in label(root, "--import", path)
    fill_in(path, "ben")
    label(root, "--import", path)
    assert figures_of(root)["people"]["together"]["share"]["mean"] == 1


def test_a_person_who_contradicts_themselves_is_named(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    label(root, "--pairs", 20, "--export", path)
    for right in (1.0, 0.5):
        fill_in(path, "ana", right)
        label(root, "--import", path)
    assert "ana: 20 answers, contradicts themselves about 10 pairs" in label(root, "--summary")


def test_an_older_copy_of_a_file_changes_no_answer_back(root: Path, tmp_path: Path) -> None:
    path, older = tmp_path / "pairs.csv", tmp_path / "older.csv"
    label(root, "--pairs", 20, "--export", path)
    fill_in(path, "ana")
    older.write_bytes(path.read_bytes())
    for right in (1.0, 0.5):
        fill_in(path, "ana", right)
        label(root, "--import", path)
    before = figures_of(root)
    said = label(root, "--import", older)
    assert "10 answers of" in said
    assert "0 new answers" in said
    assert figures_of(root) == before


def test_answers_become_preferences_that_audit_and_rate_read(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    label(root, "--pairs", 40, "--export", path)
    fill_in(path, "ana")
    label(root, "--import", path)
    fill_in(path, "ben", every=4)
    label(root, "--import", path)
    preferences = tmp_path / "people.csv"
    assert "50 answers -> " in label(root, "--preferences", preferences)
    with preferences.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert all((row["doc_a"][-1] > row["doc_b"][-1]) == (row["preference"] == "1") for row in rows)
    assert "50 read, 50 accepted" in printed("audit", preferences)
    assert "50 games" in printed("rate", preferences, "--prior", "1", "--out", tmp_path / "ratings.csv")


def test_a_file_of_unknown_pairs_is_refused_whole(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    label(root, "--pairs", 8, "--export", path)
    fill_in(path, "ana")
    text = path.read_text(encoding="utf-8")
    last = text.splitlines()[-1]
    path.write_text(f"{text}{'0' * 32},q,x,y,ana,first\nno id,q,x,y,ana,first\n", encoding="utf-8")
    said = refused("label", "made", "--root", root, "--import", path)
    assert f"{len(text.splitlines()) + 1}: 2 of 10 answers name pairs" in said, last
    assert Labelling(Run("made", root)).answers == []


def test_a_run_that_is_judged_again(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    label(root, "--pairs", 180, "--export", path)
    fill_in(path, "ana")
    label(root, "--import", path)
    write_run(root, again=1)
    before = (root / "people" / "made" / "pairs.json").read_bytes()
    assert "14 answers are about pairs that the run has no more" in printed("audit", "made", "--root", root)
    assert (root / "people" / "made" / "pairs.json").read_bytes() == before
    said = label(root, "--summary")
    assert "pairs are chosen anew (the run was judged again since): 166 of 180 stay" in said
    assert "14 answers are about pairs that the run has no more" in said
    assert "chosen anew" not in label(root, "--summary")
    assert figures_of(root)["answers"] == 180


def test_another_number_of_pairs_keeps_answers(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    label(root, "--pairs", 20, "--export", path)
    fill_in(path, "ana")
    label(root, "--import", path)
    assert "chosen anew (other settings)" in label(root, "--pairs", 40, "--summary")
    assert figures_of(root)["chosen"] == 40  # as chosen last
    assert figures_of(root)["answers"] == 20
    assert "fewer than 500" in label(root, "--pairs", 500, "--summary")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--people 2"),
        (("--people", "0"), "0 people"),
        (("--people", "-3"), "-3 people"),
        (("--people", "ana,,ben"), "a name is missing"),
        (("--people", "=1+1"), "a spreadsheet would compute it"),
        (("--people", "-"), "a spreadsheet would compute it"),
        (("--people", "2", "--pairs", "0"), "--pairs"),
        (("--summary", "--overlap", "1.5"), "--overlap"),
        (("--export", "pairs.xlsx"), "neither .csv nor .json"),
        (("--preferences", "people.csv"), "people have answered nothing"),
        (("--preferences", "people.xlsx"), "people.xlsx"),
        (("--import", "nowhere.csv"), "nowhere.csv"),
    ],
)
def test_what_users_do_wrong(root: Path, options: tuple[str, ...], said: str) -> None:
    assert said in refused("label", "made", "--root", root, *options)


def test_a_run_that_nobody_judged(root: Path) -> None:
    path = root / "runs" / "made.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["checksum"], record["stages"]["judge"]
    path.write_text(json.dumps(record), encoding="utf-8")
    assert "no judgments: its judge stage is not complete" in refused("label", "made", "--root", root, "--people", "2")
    assert "no run of that name" in refused("label", "other", "--root", root, "--people", "2")
