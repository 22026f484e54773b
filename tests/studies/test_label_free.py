"""The study without labels: what is refused, whom conditions ask, and a small one end to end."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from anmi_ray.core.errors import ConfigError
from jobs.studies import conditions, label_free
from jobs.studies.harness import read_settings
from tests.small import write_collection

SHIPPED = Path(label_free.__file__).with_suffix(".yaml")
PLAN = read_settings(conditions.Plan, SHIPPED)


def arguments(root: Path, *data: str, **more: object) -> argparse.Namespace:
    given = {"data": list(data), "root": str(root), "conditions": None, "collections": None, "seeds": 2, "workers": 1}
    return argparse.Namespace(**{**given, **more})


def test_mistakes_are_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no condition is called coins"):
        conditions.prepare(PLAN, arguments(tmp_path, conditions="coins"))
    with pytest.raises(ConfigError, match="no collection is left"):
        conditions.prepare(PLAN, arguments(tmp_path, collections="scifact"))


@pytest.mark.parametrize("name", [name for name, one in PLAN.conditions.items() if one.positives == "judges"])
def test_a_condition_has_the_judges_that_its_name_says(name: str) -> None:
    kind, share = name.split("-")
    judge = PLAN.conditions[name].settings["judge"]
    assert judge == {"preset": {"judges": "one-judge", "panel": "panel"}[kind], "accuracy": int(share) / 100}


def test_later_settings_win_key_by_key() -> None:
    first = {"corpus": {"reader": "beir"}, "judge": {"truth": {"a": 1, "b": 2}, "judges": [1]}}
    second = {"judge": {"truth": {"b": 3}, "judges": [2]}}
    assert conditions.merged([first, second]) == {
        "corpus": {"reader": "beir"},
        "judge": {"truth": {"a": 1, "b": 3}, "judges": [2]},
    }


@pytest.mark.studies
def test_a_small_study(tmp_path: Path) -> None:
    whole = write_collection(tmp_path / "whole", train=40, dev=6, test=8, others=60)
    plan: dict[str, Any] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    plan |= {"depth": 10, "train": {"student": "late-interaction", "lists_per_step": 8, "max_steps": 2}}
    plan["collections"] = {"whole": {"max_tokens": 32}}
    plan["settings"]["retrieve"] = {"depth": 20, "candidates": 12, "random_negatives": 2, "dense": {"max_tokens": 32}}
    plan["settings"] |= {"rerank": {"depth": 10}, "execution": {"buckets": 2, "object_store_gb": 0.1}}
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    command = [sys.executable, "-m", "jobs.studies.label_free", "--config", str(tmp_path / "plan.yaml")]
    command += ["--root", str(tmp_path / "root"), "--seeds", "1", "--workers", "1", "--data", f"whole={whole}"]
    command += ["--conditions", "labels,one-label,pseudo-labels,judges-90"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=SHIPPED.parents[2], check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads((tmp_path / "root" / "studies" / "label_free.json").read_text())
    levels = found["values"]["levels"]
    assert {len(levels[f"{kind}: whole {one}"]) for kind in ("alone", "fused") for one in PLAN.conditions
            if f"{kind}: whole {one}" in levels} == {1}  # fmt: skip
    learned = {
        row[1]: row for table in found["tables"] if table["title"] == "What was learned from" for row in table["rows"]
    }
    assert learned["labels"][5] == "100%"
    assert set(learned) == {"labels", "one-label", "pseudo-labels", "judges-90"}
