"""The study without labels: what is refused, whom conditions ask, and a small one end to end."""

from __future__ import annotations

import argparse
from pathlib import Path

import pytest

from anmi_ray.core.errors import ConfigError
from jobs.studies import conditions, harness
from tests.studies.small_study import SHIPPED, carried_out, learned

PLAN = harness.read_settings(conditions.Plan, SHIPPED)


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
    kind, share, *_ = name.split("-")
    judge = PLAN.conditions[name].settings["judge"]
    wanted = {"preset": {"judges": "one-judge", "panel": "panel"}[kind], "accuracy": int(share) / 100}
    assert judge.items() >= wanted.items()


def test_later_settings_win_key_by_key() -> None:
    first = {"corpus": {"reader": "beir"}, "judge": {"truth": {"a": 1, "b": 2}, "judges": [1]}}
    second = {"judge": {"truth": {"b": 3}, "judges": [2]}}
    assert harness.merged([first, second]) == {
        "corpus": {"reader": "beir"},
        "judge": {"truth": {"a": 1, "b": 3}, "judges": [2]},
    }


@pytest.mark.studies
def test_a_small_study(tmp_path: Path) -> None:
    found = carried_out("label_free", tmp_path, "--conditions", "labels,pseudo-labels,judges-90")
    levels = found["values"]["levels"]
    assert {len(levels[f"{kind}: whole {one}"]) for kind in ("alone", "fused") for one in PLAN.conditions
            if f"{kind}: whole {one}" in levels} == {1}  # fmt: skip
    rows = learned(found)
    assert rows["labels"][5] == "100%"
    assert set(rows) == {"labels", "pseudo-labels", "judges-90"}
