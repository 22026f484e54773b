"""The study of students: what is refused, and a small one with peers, halves and two seeds that is not done twice."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml
from pydantic import ValidationError

from anmi_ray.core.errors import ConfigError
from jobs.studies import students as study
from jobs.studies.harness import read_settings
from tests.small import write_collection

SHIPPED = Path(study.__file__).with_name("students.yaml")
TRAIN = {"lists_per_step": 8, "max_steps": 2}
SMALL: dict[str, Any] = {
    "depth": 10,
    "reference": "ours",
    "systems": {
        "ours": {"train": {"student": "late-interaction", **TRAIN}},
        "st-bi-encoder": {"peer": "bi-encoder", "batch": 8, "seeds": 1},
        "st-late-interaction": {"peer": "late-interaction", "batch": 8, "seeds": 1},
        "st-cross-encoder": {"peer": "cross-encoder", "batch": 8, "seeds": 1},
    },
    "collections": {
        "whole": {"max_tokens": 32, "settings": {"corpus": {"reader": "beir"}}},
        "cut": {"max_tokens": 32, "halves": True},
    },
    "settings": {
        "retrieve": {"depth": 20, "candidates": 12, "random_negatives": 2, "dense": {"max_tokens": 32}},
        "compare": {"degree": 4},
        "mine": {"sample": "weighted", "negatives": 2, "random_negatives": 1, "rated_extra": 0},
        "rerank": {"depth": 10},
        "execution": {"buckets": 2, "object_store_gb": 0.1},
    },
    "halves": {"corpus": {"reader": "beir", "dev_fraction": 0.0}},
}


def arguments(root: Path, *data: str, **more: object) -> argparse.Namespace:
    given = {"data": list(data), "root": str(root), "systems": None, "collections": None, "seeds": 5, "workers": 1}
    return argparse.Namespace(**{**given, **more})


@pytest.mark.slow
def test_the_shipped_plan_is_five_trainings_of_every_system(tmp_path: Path) -> None:
    plan = read_settings(study.Plan, SHIPPED)
    of = study.prepare(plan, arguments(tmp_path))
    assert list(of.collections) == ["quickstart"]  # the others need a folder
    names = list(of.tasks())
    assert names[0] == "quickstart-0-untrained-s0"
    assert sum("-late-interaction-" in name and "st-" not in name for name in names) == 5


def test_mistakes_are_named(tmp_path: Path) -> None:
    plan = read_settings(study.Plan, SHIPPED)
    with pytest.raises(ConfigError, match="no system is called bert"):
        study.prepare(plan, arguments(tmp_path, systems="bert"))
    with pytest.raises(ConfigError, match="no collection is left"):
        study.prepare(plan, arguments(tmp_path, collections="scifact"))
    with pytest.raises(ValidationError, match="give exactly one"):
        study.System.model_validate({"train": {}, "peer": "bi-encoder"})


@pytest.mark.studies
def test_a_small_study(tmp_path: Path) -> None:
    for name in ("accelerate", "datasets"):
        pytest.importorskip(name)
    whole = write_collection(tmp_path / "whole", train=24, dev=6, test=8, others=20)
    cut = write_collection(tmp_path / "cut", train=0, dev=0, test=20, others=20)
    for name in ("train", "dev"):
        (cut / "qrels" / f"{name}.tsv").unlink()
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(SMALL))
    command = [sys.executable, "-m", "jobs.studies.students", "--config", str(tmp_path / "plan.yaml")]
    command += ["--root", str(tmp_path / "root"), "--seeds", "2", "--workers", "1"]
    command += ["--data", f"whole={whole}", "--data", f"cut={cut}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, cwd=SHIPPED.parents[2], check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "root" / "studies" / "students.json").read_text())["values"]
    levels = found["levels"]
    assert {len(levels[f"{kind}: {one} ours"]) for kind in ("alone", "fused") for one in ("whole", "cut")} == {2}
    assert all(0 < value <= 1 for values in levels.values() for value in values)
    assert len(found["costs"]) == 3 * (1 + 2 + 3)  # three parts, the untrained, two seeds of ours, three peers
    assert all(one["train_s"] > 0 and one["peak_gib"] > 0.1 for one in found["costs"].values())
    compared = {row["system"]: row for row in found["differences"]["Alone, less the reference"]}
    assert compared["all collections: st-bi-encoder"]["queries"] == 28
    pooled = compared["all collections: st-bi-encoder"]["difference"]
    each = [compared[f"{name}: st-bi-encoder"]["difference"] for name in ("whole", "cut")]
    np.testing.assert_allclose(pooled, np.average(each, weights=[8, 20]))
    again = subprocess.run(command, capture_output=True, text=True, timeout=200, cwd=SHIPPED.parents[2], check=False)
    assert "18 of 18 trainings are done" in again.stderr
    tables = [one.stdout[one.stdout.index("whole, nDCG@10") :] for one in (done, again)]
    assert tables[0] == tables[1]
