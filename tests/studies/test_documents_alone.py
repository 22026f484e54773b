"""The study of documents alone: what made queries learn from, and a small one end to end."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from jobs.studies import documents_alone as study
from tests.cli.test_queries import rows_of
from tests.studies.small_study import carried_out, learned


def test_what_is_made_is_the_same_whatever_is_asked_and_labelled(small_collection: Path, tmp_path: Path) -> None:
    """Each made query has its own document, by name, as the one that is relevant."""
    bare = tmp_path / "bare"
    bare.mkdir()
    shutil.copy(small_collection / "corpus.jsonl", bare)
    made = [
        study.made_collection(source, tmp_path / f"made-{at}", 30) for at, source in enumerate((small_collection, bare))
    ]
    for name in ("corpus.jsonl", "queries.jsonl", "qrels/train.tsv"):
        assert (made[0] / name).read_bytes() == (made[1] / name).read_bytes()
    queries = {row["_id"]: row["metadata"]["source"] for row in rows_of(made[0], "queries")}
    lines = (made[0] / "qrels" / "train.tsv").read_text().splitlines()[1:]
    assert [line.split("\t") for line in lines] == [[query, source, "1"] for query, source in queries.items()]
    assert not list(made[0].glob("qrels/test*"))
    by_kind = json.loads(study.record(made[0]).read_text())
    assert sum(kept for *_, kept in by_kind.values()) == len(queries)
    assert all(candidates >= searched >= found >= kept for candidates, searched, found, kept in by_kind.values())


@pytest.mark.studies
def test_a_small_study(tmp_path: Path) -> None:
    surer = {"panel-80": {"settings": {"judge": {"accuracy": 0.95}}}}
    rows = learned(carried_out("documents_alone", tmp_path, "--number", "30", conditions=surer))
    assert set(rows) == {"labels", "made", "made-judged"}
    assert rows["made"][5] == rows["labels"][5] == "100%"
    assert rows["made"][2] == rows["made-judged"][2] != rows["labels"][2]
    trained = sorted((tmp_path / "root" / "studies" / "label_free" / "trainings").glob("*-made-s0.json"))
    [settings] = [json.loads(path.read_text())["settings"] for path in trained]
    assert settings["stages"]["ingest"] != settings["tested"]["ingest"]
