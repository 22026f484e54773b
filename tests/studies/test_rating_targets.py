"""Thurstone's or Bradley and Terry's ratings to learn from: what differs, and a small study end to end."""

from __future__ import annotations

from pathlib import Path

import pytest

from jobs.studies import harness, rating_targets
from tests.studies.small_study import SHIPPED, carried_out, learned


def test_the_conditions_differ_in_the_model_of_ratings_alone() -> None:
    plan = rating_targets.plan_of(SHIPPED)
    like, other = (plan.conditions[name] for name in (rating_targets.THURSTONE, rating_targets.BRADLEY_TERRY))
    assert harness.merged([like.settings, {"rate": {"model": "bradley-terry"}}]) == other.settings
    assert like.train == other.train
    assert like.positives == other.positives == "judges"


@pytest.mark.studies
def test_a_small_study(tmp_path: Path) -> None:
    surer = {"panel-80": {"settings": {"judge": {"accuracy": 0.95}}}}
    found = carried_out("rating_targets", tmp_path, "--collections", "whole", conditions=surer)
    assert set(learned(found)) == {"panel-80", "panel-80-bradley-terry"}
    assert [one["system"] for one in found["values"]["differences"]] == [
        "whole, alone: Thurstone",
        "whole, fused: Thurstone",
    ]
