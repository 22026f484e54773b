"""A study on the plan of label_free.yaml, small, carried out in a process of its own as its users do."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from jobs.studies import harness, label_free
from tests.small import write_collection

SHIPPED = Path(label_free.__file__).with_suffix(".yaml")
SMALL: dict[str, Any] = {
    "retrieve": {"depth": 20, "candidates": 12, "random_negatives": 2, "dense": {"max_tokens": 32}},
    "rerank": {"depth": 10},
    "execution": {"buckets": 2, "object_store_gb": 0.1},
}


def carried_out(name: str, folder: Path, *more: str, conditions: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """The figures of `jobs.studies.NAME` on one collection, `whole`; its root is `folder`/root.

    conditions: what is said otherwise of some of them.
    """
    whole = write_collection(folder / "whole", train=40, dev=6, test=8, others=60)
    plan: dict[str, Any] = yaml.safe_load(SHIPPED.read_text(encoding="utf-8"))
    plan |= {"depth": 10, "train": {"student": "late-interaction", "lists_per_step": 8, "max_steps": 2}}
    plan["collections"] = {"whole": {"max_tokens": 32}}
    plan["conditions"] = harness.merged([plan["conditions"], conditions or {}])
    plan["settings"] |= SMALL
    (folder / "plan.yaml").write_text(yaml.safe_dump(plan), encoding="utf-8")
    command = [sys.executable, "-m", f"jobs.studies.{name}", "--config", str(folder / "plan.yaml")]
    command += ["--root", str(folder / "root"), "--seeds", "1", "--workers", "1", "--data", f"whole={whole}", *more]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, cwd=SHIPPED.parents[2], check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads((folder / "root" / "studies" / f"{name}.json").read_text())
    return found


def learned(found: Mapping[str, Any]) -> dict[str, list[str]]:
    """By condition, its row of what was learned from."""
    [table] = [table for table in found["tables"] if table["title"] == "What was learned from"]
    return {row[1]: row for row in table["rows"]}
