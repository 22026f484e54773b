"""The study of rules among relevant copies: what is planted, and a small one end to end."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from anmi_ray.corpus.beir import BeirFiles
from jobs.studies import copies as study
from jobs.studies import harness
from tests.small import write_collection
from tests.studies.small_study import SMALL

SHIPPED = Path(study.__file__).with_suffix(".yaml")
PLAN = harness.read_settings(study.CopiesPlan, SHIPPED)


def test_copies_stand_beside_their_documents_and_are_labelled_in_the_truth_alone(
    small_collection: Path, tmp_path: Path
) -> None:
    plan = PLAN.model_copy(update={"queries": 10})
    whole, known = study.world(small_collection, tmp_path / "world", 3, plan)
    labels = {path: list(BeirFiles(str(path)).grades("qrels/train.tsv")) for path in (whole, known)}
    assert len(labels[known]) == 10
    assert len(labels[whole]) == 40
    assert {name for _, name, _ in labels[whole] if "~copy-" not in name} == {name for _, name, _ in labels[known]}
    text = {name: body for name, _, body in BeirFiles(str(known)).documents()}
    for _, name, _ in labels[whole]:
        original = text[name.partition("~copy-")[0]].split()
        assert set(text[name].split()) <= set(original)
        assert 0 < len(text[name].split()) <= len(original)
    assert not list(whole.glob("qrels/test*")) + list(whole.glob("qrels/dev*"))
    asked = {query for query, _, _ in labels[known]}
    assert {name for name, _ in BeirFiles(str(whole)).queries()} == asked


def test_the_share_of_the_copies_is_of_the_other_candidates() -> None:
    assert [study.copies_of(share, 40) for share in PLAN.shares] == [0, 4, 12]


@pytest.mark.studies
def test_a_small_study(tmp_path: Path) -> None:
    whole = write_collection(tmp_path / "whole", train=40, dev=6, test=8, others=60)
    plan: dict[str, Any] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    plan |= {"queries": 24, "shares": [0.0, 0.3], "depth": 10}
    plan["train"] |= {"lists_per_step": 4, "max_steps": 2}
    plan["collections"] = {"whole": {"max_tokens": 32}}
    plan["settings"] = harness.merged([plan["settings"], SMALL])
    kept = ("top", "judged-gate", "judged-extended")
    plan["conditions"] = {name: plan["conditions"][name] for name in kept}
    for name in kept[1:]:
        plan["conditions"][name]["settings"]["judge"] = {"preset": "panel", "accuracy": 0.95}
    plan["references"] = ["top"]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    command = [sys.executable, "-m", "jobs.studies.copies", "--config", str(tmp_path / "plan.yaml"), "--data"]
    command += [f"whole={whole}", "--root", str(tmp_path / "root"), "--seeds", "1", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=SHIPPED.parents[2], check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "root" / "studies" / "copies.json").read_text())
    tables = {table["title"]: table["rows"] for table in found["tables"]}
    learned = {(row[0], row[1]): row for row in tables["What was learned from"]}
    assert {learned["copies-0-0", name][6] for name in kept} == {"0.0%"}
    false = {name: float(learned["copies-30-0", name][6].rstrip("%")) for name in kept}
    assert false["top"] > 30  # more than the share that was planted: copies stand first
    assert false["judged-gate"] < false["top"]
    assert {row[0].partition(":")[0] for row in tables["What planted documents take"]} == set(kept)
