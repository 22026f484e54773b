"""A run in which no judge answers: the error and `anmi audit` show why."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from anmi_ray.judging.kinds.base import by_frequency
from tests.commands import printed, refused
from tests.small import write_config

pytestmark = [pytest.mark.ray, pytest.mark.slow]


def test_a_judge_stage_without_answers_has_an_audit(small_collection: Path, tmp_path: Path) -> None:
    judge = {"judges": [{"kind": "simulated", "name": "ill", "failure_rate": 1.0}]}
    config = write_config(tmp_path / "small.yaml", small_collection, judge=judge)
    root = ("--root", tmp_path / "root")
    said = refused("run", config, "name=ill", "--until", "judge", *root)
    printed("audit", "ill", *root, "--out", tmp_path / "audit.json")
    figures = json.loads((tmp_path / "audit.json").read_text())["judges"]["ill"]
    assert figures["answered"] == 0
    assert len(figures["failures"]) == 2  # a simulated judge fails in two ways
    assert min(figures["failures"].values()) > 0
    assert f"judge ill: {by_frequency(figures['failures'])}" in said
