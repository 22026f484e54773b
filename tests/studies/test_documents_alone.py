"""The study of documents alone: what made queries learn from, and a small one end to end."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.studies import documents_alone as study
from tests.cli.test_queries import rows_of
from tests.small import write_collection

SHIPPED = Path(study.__file__).with_name("label_free.yaml")


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
    whole = write_collection(tmp_path / "whole", train=40, dev=6, test=8, others=60)
    plan: dict[str, Any] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    plan |= {"depth": 10, "train": {"student": "late-interaction", "lists_per_step": 8, "max_steps": 2}}
    plan["collections"] = {"whole": {"max_tokens": 32}}
    plan["conditions"]["panel-80"]["settings"]["judge"]["accuracy"] = 0.95
    plan["settings"]["retrieve"] = {"depth": 20, "candidates": 12, "random_negatives": 2, "dense": {"max_tokens": 32}}
    plan["settings"] |= {"rerank": {"depth": 10}, "execution": {"buckets": 2, "object_store_gb": 0.1}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    command = [sys.executable, "-m", "jobs.studies.documents_alone", "--config", str(tmp_path / "plan.yaml")]
    command += ["--root", str(tmp_path / "root"), "--seeds", "1", "--workers", "1", "--data", f"whole={whole}"]
    done = subprocess.run(
        [*command, "--number", "40"], capture_output=True, text=True, timeout=600, cwd=SHIPPED.parents[2], check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "root" / "studies" / "documents_alone.json").read_text())
    learned = {
        row[1]: row for table in found["tables"] if table["title"] == "What was learned from" for row in table["rows"]
    }
    assert set(learned) == {"labels", "made", "made-judged"}
    assert learned["made"][5] == learned["labels"][5] == "100%"
    assert learned["made"][2] == learned["made-judged"][2] != learned["labels"][2]
    trained = sorted((tmp_path / "root" / "studies" / "label_free" / "trainings").glob("*-made-s0.json"))
    [settings] = [json.loads(path.read_text())["settings"] for path in trained]
    assert settings["stages"]["ingest"] != settings["tested"]["ingest"]
