"""Replaying given preferences: a design chooses among those that are there, and hears what was said."""

from __future__ import annotations

import csv
import json
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from anmi_ray.core.identity import rng
from jobs.studies import replayed_designs as study

DOCUMENTS, PAIRS = 14, 60


@pytest.fixture
def folders(tmp_path: Path) -> tuple[str, str]:
    """Two queries of so many documents, of which the larger number is the better: what every preference says."""
    passages, gpt = tmp_path / "passages", tmp_path / "gpt"
    (passages / "qrels").mkdir(parents=True)
    gpt.mkdir()
    names = [[f"d{query}-{number}" for number in range(DOCUMENTS)] for query in range(2)]
    documents = [{"_id": name, "title": "", "text": f"word {name}"} for each in names for name in each]
    (passages / "corpus.jsonl").write_text("".join(json.dumps(one) + "\n" for one in documents))
    (passages / "queries.jsonl").write_text("".join(json.dumps({"_id": str(q), "text": "word"}) + "\n" for q in (0, 1)))
    grades = [f"{q}\t{name}\t{1 + 2 * (at >= DOCUMENTS - 3)}" for q in (0, 1) for at, name in enumerate(names[q])]
    (passages / "qrels" / "test.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *grades]) + "\n")
    every = np.stack(np.triu_indices(DOCUMENTS, 1), axis=1)
    with (gpt / "dl2019_judgments.csv").open("w", newline="") as file:
        rows = csv.writer(file)
        rows.writerow(["year", "round", "qid", "winner", "loser", "kind"])
        for q in (0, 1):
            for low, high in every[rng("test", "pairs", q).permutation(len(every))[:PAIRS]].tolist():
                rows.writerow([2019, 0, q, names[q][high], names[q][low], "win"])
    return str(gpt), str(passages)


@pytest.mark.parametrize("design", study.DESIGNS)
def test_a_design_takes_pairs_that_are_there_each_once_and_of_every_document(
    folders: tuple[str, str], design: str
) -> None:
    of, _ = study.read(*folders)
    pairs = study.replay(of, design, 4.0, 0)
    taken = list(zip(*(pairs[name].to_pylist() for name in ("query_id", "doc_a", "doc_b")), strict=True))
    there = {(query, of.docs[query][i], of.docs[query][j]) for query in of.pairs for i, j in of.pairs[query].tolist()}
    assert len(set(taken)) == len(taken)
    assert set(taken) <= there
    assert set(Counter(query for query, _, _ in taken).values()) == {4 * DOCUMENTS // 2}
    assert {doc for _, *ends in taken for doc in ends} == {doc for docs in of.docs.values() for doc in docs}


def test_what_was_preferred_is_heard_in_whatever_order_it_is_asked(folders: tuple[str, str]) -> None:
    """The better document of every pair wins, so all pairs together rank the three best first."""
    of, qrels = study.read(*folders)
    values, calls = study.measured(of, qrels, "random", study.ALL, 1)
    assert calls == PAIRS
    assert values[1].tolist() == [[1.0, 1.0]]
