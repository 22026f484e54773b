"""`anmi label` without its page: files out and in, the audit, and what users do wrong."""

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


def figures_of(root: Path) -> dict[str, Any]:
    path = root.parent / "figures.json"
    printed("audit", "made", "--root", root, "--out", path)
    return json.loads(path.read_text(encoding="utf-8"))["people"]


def agreement(root: Path, part: str, pair: str) -> float:
    return figures_of(root)[part]["panel"]["agreement_pairs"][pair]["share"]


def share_right(root: Path, judge: str) -> float:
    """Share of the pairs on which a judge prefers the document of the larger quality, ties apart."""
    rows = [row for row in Run("made", root).table("judgments").to_pylist() if row["judge"] == judge]
    means: dict[tuple[str, str], float] = {}
    for row in rows:
        pair = row["doc_a"], row["doc_b"]
        means[pair] = means.get(pair, 0.0) + row["p_a"] / 2
    right = [(mean > 0.5) == (a[-1] > b[-1]) for (a, b), mean in means.items() if mean != 0.5]
    return sum(right) / len(right)


def test_out_filled_in_and_in_again(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    assert "180 pairs -> " in label(root, "--export", path)
    fill_in(path, "ana")
    assert "180 new answers" in label(root, "--import", path)
    for judge in ("careful", "coin"):
        assert agreement(root, "random", f"all people ~ {judge}") == pytest.approx(share_right(root, judge))
    label(root, "--export", path)  # with the answers: in again they are known
    assert "0 new answers" in label(root, "--import", path)
    fill_in(path, "ben", right=0.5)
    label(root, "--import", path)
    assert agreement(root, "all", "ana (person) ~ ben (person)") == 0.5
    assert figures_of(root)["answers"] == {"ana": 180, "ben": 180}
    said = printed("audit", "made", "--root", root)
    assert "ana 180, ben 180" in said
    shown = [line for line in said.splitlines() if " ~ " in line]
    assert [line.split("  ")[0].strip() for line in shown] == [
        "all people ~ careful",
        "all people ~ coin",
        "ana (person) ~ ben (person)",
    ]


def test_audit_of_the_random_pairs_only(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    label(root, "--pairs", 40, "--export", path)
    fill_in(path, "ana")
    label(root, "--import", path)
    figures = figures_of(root)
    assert figures["random"]["panel"]["comparisons"] == 20
    assert figures["all"]["panel"]["comparisons"] == 40


def test_an_older_copy_of_a_file_changes_no_answer_back(root: Path, tmp_path: Path) -> None:
    path, older = tmp_path / "pairs.csv", tmp_path / "older.csv"
    label(root, "--pairs", 20, "--export", path)
    fill_in(path, "ana")
    older.write_bytes(path.read_bytes())
    for right in (1.0, 0.5):
        fill_in(path, "ana", right)
        label(root, "--import", path)
    before = figures_of(root)
    assert "0 new answers" in label(root, "--import", older)
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
    path.write_text(f"{text}{'0' * 32},q,x,y,ana,first\nno id,q,x,y,ana,first\n", encoding="utf-8")
    said = refused("label", "made", "--root", root, "--import", path)
    assert f"{len(text.splitlines()) + 1}: 2 of 10 answers name pairs" in said
    assert Labelling(Run("made", root)).answers == []


def test_a_run_that_is_judged_again(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    label(root, "--pairs", 180, "--export", path)
    fill_in(path, "ana")
    label(root, "--import", path)
    write_run(root, again=1)
    before = (root / "people" / "made" / "pairs.json").read_bytes()
    figures = figures_of(root)
    assert (figures["gone"], figures["answers"]) == (14, {"ana": 180})
    assert (root / "people" / "made" / "pairs.json").read_bytes() == before
    assert "selected other pairs: 166 of 180 stay" in label(root, "--export", path)
    assert "selected other pairs" not in label(root, "--export", path)


def test_another_number_of_pairs_keeps_answers(root: Path, tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    label(root, "--pairs", 20, "--export", path)
    fill_in(path, "ana")
    label(root, "--import", path)
    assert "selected other pairs" in label(root, "--pairs", 40, "--export", path)
    assert "40 pairs" in label(root, "--export", path)  # as selected last
    assert figures_of(root)["answers"] == {"ana": 20}
    assert "fewer than 500" in label(root, "--pairs", 500, "--export", path)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--people ana,ben"),
        (("--people", "2"), "--people ana,ben"),
        (("--people", "ana,,ben"), "name is missing"),
        (("--people", "=1+1"), "spreadsheet"),
        (("--people", "-"), "spreadsheet"),
        (("--people", "ana", "--pairs", "0"), "--pairs"),
        (("--people", "ana", "--overlap", "1.5"), "--overlap"),
        (("--export", "pairs.xlsx"), "pairs.xlsx"),
        (("--preferences", "people.csv"), "no answers yet"),
        (("--preferences", "people.xlsx"), "people.xlsx"),
        (("--import", "nowhere.csv"), "nowhere.csv"),
        (("--summary",), "--summary"),
    ],
)
def test_what_users_do_wrong(root: Path, options: tuple[str, ...], said: str) -> None:
    assert said in refused("label", "made", "--root", root, *options)


def test_a_run_that_nobody_judged(root: Path) -> None:
    path = root / "runs" / "made.json"
    record = json.loads(path.read_text(encoding="utf-8"))
    del record["checksum"], record["stages"]["judge"]
    path.write_text(json.dumps(record), encoding="utf-8")
    assert "judge stage is not complete" in refused("label", "made", "--root", root, "--people", "ana")
    assert "no run of that name" in refused("label", "other", "--root", root, "--people", "ana")
