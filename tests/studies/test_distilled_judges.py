"""The study of judges distilled from real judges, on a made-up collection whose better documents can be seen."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core.identity import doc_id, query_id, rng
from anmi_ray.evaluation.pairwise import Pairs
from jobs.studies import distilled_judges as study
from tests.models.tiny import WORDS, write_tiny_bert

QUERIES, DOCUMENTS = 12, 16


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GPT-4o's files and labels of two judges: of two documents the later word wins, near ones tie."""
    folder = tmp_path_factory.mktemp("data")
    level = {f"q{q}-d{d}": int(rng("word", q, d).integers(60)) for q in range(QUERIES) for d in range(DOCUMENTS)}
    corpus = [{"_id": name, "title": "", "text": " ".join([WORDS[at]] * 6)} for name, at in level.items()]
    queries = [{"_id": f"q{q}", "text": "word3"} for q in range(QUERIES)]
    for name, rows in (("corpus", corpus), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    lines, labels = ["year,round,qid,winner,loser,kind"], ["qid,docid,human,one,two"]
    for q in range(QUERIES):
        names = [f"q{q}-d{d}" for d in range(DOCUMENTS)]
        labels += [f"q{q},{name},0,{level[name] // 15},{level[name] // 20}" for name in names]
        for i, j in zip(*np.triu_indices(DOCUMENTS, 1), strict=True):
            low, high = sorted((names[i], names[j]), key=lambda name: level[name])
            kind = study.TIE if level[high] - level[low] < 4 else "win"
            lines.append(f"2019,00,q{q},{high},{low},{kind}")
    (folder / "dl2019_judgments.csv").write_text("\n".join(lines) + "\n")
    (folder / "llm_labels").mkdir()
    (folder / "llm_labels" / "all_judges.csv").write_text("\n".join(labels) + "\n")
    return folder


def test_equal_pairs_are_one_pair_with_the_mean_score_for_its_second_document() -> None:
    pairs = study.pairs_of([("q", "x", "y", 1.0), ("q", "y", "x", 0.0), ("q", "x", "y", 0.5), ("p", "x", "y", 0.0)])
    expected = 5 / 6 if doc_id("x") < doc_id("y") else 1 / 6
    found = dict(zip(pairs["query_id"].to_pylist(), pairs["score"].to_pylist(), strict=True))
    assert found[query_id("q")] == pytest.approx(expected)
    assert found[query_id("p")] == float(doc_id("x") > doc_id("y"))
    assert all(a < b for a, b in zip(pairs["doc_a"].to_pylist(), pairs["doc_b"].to_pylist(), strict=True))


def test_labels_become_the_share_of_judges_that_grade_the_second_higher(data: Path) -> None:
    rows = (data / "llm_labels" / "all_judges.csv").read_text().split()[1:]
    grade = {(row.split(",")[0], row.split(",")[1]): list(map(int, row.split(",")[3:])) for row in rows}
    found = study.labelled(str(data))
    assert len(found) == QUERIES * DOCUMENTS * (DOCUMENTS - 1) // 2
    for query, first, second, score in found:
        higher = [np.sign(b - a) for a, b in zip(grade[query, first], grade[query, second], strict=True)]
        assert score == pytest.approx(0.5 + 0.5 * float(np.mean(higher)))


def test_queries_give_alike_and_no_document_is_in_two_pairs(data: Path) -> None:
    every = study.pairs_of(study.gpt4o(str(data)))
    sample = study.drawn(every, 5 * QUERIES + 3, seed=1)
    documents = sample["doc_a"].to_pylist() + sample["doc_b"].to_pylist()
    assert len(set(documents)) == len(documents)
    assert set(sample["comparison_id"].to_pylist()) <= set(every["comparison_id"].to_pylist())
    counts = sorted(count["counts"] for count in sample["query_id"].value_counts().to_pylist())
    assert counts == [5] * (QUERIES - 3) + [6] * 3
    shuffled = every.take(pa.array(rng("shuffle").permutation(len(every))))
    assert study.drawn(shuffled, 5 * QUERIES + 3, seed=1).equals(sample)
    assert len(study.drawn(every, 10**6, seed=1)) <= QUERIES * DOCUMENTS // 2


def test_all_preferences_are_all_that_have_texts(data: Path) -> None:
    every = study.pairs_of(study.gpt4o(str(data)))
    found = study.source("gpt", str(data), str(data), None, 3, 0).pairs
    assert found.drop(["fold"]).equals(every.sort_by("comparison_id").combine_chunks())


def test_no_query_that_a_judge_is_asked_about_is_learned_from(data: Path) -> None:
    found = study.source("gpt", str(data), str(data), 60, 3, 0)
    for fold in range(3):
        train, dev = found.learned(fold, 0)
        asked = {row["query_id"] for row in found.pairs.to_pylist() if row["fold"] == fold}
        three = [set(part["query_id"].to_pylist()) for part in (train, dev)] + [asked]
        assert sum(map(len, three)) == len(set.union(*three)) == QUERIES


@pytest.mark.studies
@pytest.mark.slow
def test_judges_learn_what_can_be_seen_and_are_trained_once(
    data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    base, root = write_tiny_bert(tmp_path / "bert"), tmp_path / "root"
    for name, value in (("learning_rate", 5e-3), ("head_learning_rate", 1e-2), ("freeze_embeddings", False)):
        monkeypatch.setitem(study.SHARED, name, value)
    for own in study.FORMS.values():
        monkeypatch.setitem(own, "max_tokens", 32)
    sizes = {"pairs": 90, "folds": 2, "epochs": 10, "freeze-layers": 0}
    options = ["--gpt", str(data), "--passages", str(data), "--root", str(root), "--model", str(base)]
    options += ["--forms", "pointwise", "pairwise, ternary"]
    options += [text for name, value in sizes.items() for text in (f"--{name}", str(value))]
    study.main(options)
    printed = tables(capsys.readouterr().out)
    accuracy = {row[0]: float(row[1].split()[0]) for row in printed[:5]}
    assert list(accuracy) == [study.HALF, study.RATE, study.SIMILARITY, "pointwise", "pairwise, ternary"]
    assert accuracy[study.HALF] == 0.5
    assert accuracy["pointwise"] > 0.75
    assert printed[5][:2] == ["pointwise", study.HALF]
    assert printed[5][3].endswith("]")  # differences have intervals
    assert float(printed[5][3].split()[0]) < 0  # of its Brier score
    files = sorted((root / "studies" / "distilled-judges").rglob("*.json"))
    assert len(files) == 1 + 2 * 2
    assert (root / "studies" / "distilled_judges.md").is_file()
    before = [path.stat().st_mtime_ns for path in files]
    study.main(options)
    assert tables(capsys.readouterr().out) == printed
    assert [path.stat().st_mtime_ns for path in files] == before


def tables(printed: str) -> list[list[str]]:
    """The cells of all rows but headings."""
    lines = [line for line in printed.splitlines() if line.startswith("| ") and not line.startswith("| judge")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]


@pytest.mark.parametrize(("least", "right"), [(1.0, 1 / 2), (0.5, 2 / 3)])
def test_accuracy_is_of_clear_pairs(least: float, right: float) -> None:
    score = np.array([0.0, 1.0, 0.8, 0.5, 0.3])
    second = np.array([0.1, 0.2, 0.9, 0.9, 0.9])
    told = Pairs(1.0 - second, second, score, np.array([0, 1, 2, 2, 2]))
    half = Pairs(np.full(5, 0.5), np.full(5, 0.5), score, told.query_P)
    found = study.compared({"told": told, "half": half}, "told", "half", least)
    assert found.accuracy.mean == pytest.approx(right)
    assert found.accuracy_difference is not None
    assert found.accuracy_difference.mean == pytest.approx(right - 0.5)
    assert found.brier.mean == pytest.approx(float(np.mean((second - score) ** 2)))


@pytest.mark.parametrize(
    ("given", "remedy"),
    [
        ([], "give --gpt with --passages"),
        (["--gpt", "folder"], "give --gpt with --passages"),
        (["--labels", "folder", "--passages", "folder"], "give --gpt with --passages"),
        (["--labels", "folder", "--folds", "1"], "(?s)--folds.*give 2 or more"),
    ],
)
def test_options_that_do_not_fit_are_refused(given: list[str], remedy: str) -> None:
    with pytest.raises(SystemExit, match=remedy):
        study.main(given)
