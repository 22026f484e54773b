"""The study of approximate indexes at the least size that one is built at, with few dimensions."""

from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest

from anmi_ray.retrieval import dense
from jobs.studies import dense_indexes as study
from tests.retrieval.test_indexes import clustered


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> list[study.Measured]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(study, "ROUNDS", 1)
        documents, queries = clustered(dense.FEWEST, "documents", 48), clustered(30, "queries", 48)
        return study.measure(documents, queries, tmp_path_factory.mktemp("indexes"))


def test_every_setting_is_there_and_the_exact_search_finds_all(measured: list[study.Measured]) -> None:
    assert len(measured) == 1 + len(study.PROBES) * len(study.RESCORED) + len(study.EFFORTS)
    exact = measured[0]
    assert (exact.series, exact.recall_10, exact.recall_100, exact.faster) == ("exact", 1.0, 1.0, 1.0)
    assert all(one.document_bytes < exact.document_bytes for one in measured if one.series.startswith("IVF"))


def test_what_costs_more_finds_more(measured: list[study.Measured]) -> None:
    for times in ("1 time", "4 times", "16 times"):
        rising = [one.recall_100 for one in measured if one.series == f"IVF-PQ, {times}"]
        assert rising[0] < rising[-1]
    last = [one.recall_100 for one in measured if one.setting == "128 probes"]
    assert last == sorted(last)
    assert last[-1] > 0.9


def test_recall_by_hand() -> None:
    found, exact = np.array([[1, 2, 3, -1]]), np.array([[1, 3, 4, 5]])
    assert study.recall(found, exact, 2) == 0.5
    assert study.recall(found, exact, 4) == 0.5


def test_passages_are_runs_of_neighbouring_sentences_each_text_once() -> None:
    one, two = "The first of them is long enough.", "So is the second one of them, by far!"
    three = "Is the third one as long as that as well?"
    found = study.passages_of([f"{one} {two}\nShort. {three}", one], 2)
    assert found["text"].to_pylist() == [one, two, three, f"{one} {two}", f"{two} {three}"]
    assert len(set(found["doc_id"].to_pylist())) == 5


def test_the_picture(measured: list[study.Measured]) -> None:
    drawn = study.picture(measured, dense.FEWEST)
    root = ElementTree.fromstring(drawn)
    titles = [node.text or "" for node in root.iter() if node.tag.endswith("title")]
    assert sum("times as fast" in title for title in titles) >= len(measured) - 1
    assert "HNSW" in drawn


def test_too_few_documents_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match=r"an index is built of 9,984 or more"):
        study.main(["--root", str(tmp_path)])
