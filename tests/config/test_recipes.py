"""Whole recipes by name: what they fill, what wins over them, and that each is what it is called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load, validate
from anmi_ray.config.rules import RECIPES
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline.resolve import resolve

DETAILED = """
mine: {allow: [{rule: gate, largest: 0.05}], sample: weighted, negatives: 3, random_negatives: 2}
train: {loss: {temperature: 0.5}, balance: {alpha: 0.9}, epochs: 2}
"""


def config(folder: Path, text: str, *overrides: str) -> Experiment:
    path = folder / "some.yaml"
    path.write_text(text, encoding="utf-8")
    return load(path, overrides)


@pytest.mark.parametrize("name", RECIPES)
def test_every_setting_of_a_recipe_stands(name: str) -> None:
    found: Any = validate({"recipe": name}, "here").model_dump(mode="json")
    plain: Any = Experiment().model_dump(mode="json")
    for key, value in RECIPES[name].items():
        node: Any = found
        default: Any = plain
        for part in key.split("."):
            node, default = node[part], default[part]
        if isinstance(value, dict):
            assert node.items() >= value.items()
        elif key in ("mine.weigh", "mine.sample"):
            assert node["rule"] == value
        elif key == "mine.allow":
            names = [one if isinstance(one, str) else one["rule"] for one in value]
            assert [one["rule"] for one in node] == names
        else:
            assert node == value
    assert found["recipe"] == name


def test_no_two_recipes_are_the_same_run() -> None:
    by_name = {name: validate({"recipe": name}, "here") for name in RECIPES}
    assert by_name["anmi2-extended"].mine.composition == "denoise -> positive-relative -> gaussian-mixture -> simans"
    assert len({resolve(one)["train"].fingerprint for one in by_name.values()}) == len(by_name)


def test_a_recipe_is_no_setting_of_its_own(tmp_path: Path) -> None:
    """Written out by hand the same settings are the same run."""
    by_hand = "mine: {allow: [], weigh: table2, sample: weighted}\ntrain: {curriculum: {rule: table3}}"
    named, written = config(tmp_path, "recipe: anmi2"), config(tmp_path, by_hand)
    found = [resolve(one)["evaluate"].fingerprint for one in (named, written)]
    assert found[0] == found[1] != resolve(Experiment())["evaluate"].fingerprint


def test_a_file_wins_over_its_own_recipe(tmp_path: Path) -> None:
    found = config(tmp_path, DETAILED + "recipe: infonce-mined")
    assert found.mine.composition == "gate -> equal -> weighted"
    assert (found.train.loss.temperature, found.train.balance.alpha) == (0.5, 0.9)
    assert config(tmp_path, "recipe: infonce-mined\nmine: {rule: table2}").mine.composition == "table2 -> ranked"


def test_a_recipe_of_the_command_line_wins_over_the_file(tmp_path: Path) -> None:
    found = config(tmp_path, DETAILED, "recipe=zelo")
    assert found.mine.composition == "equal -> uniform"
    assert (found.mine.negatives, found.mine.random_negatives) == (3, 0)
    assert (found.train.loss.temperature, found.train.balance.alpha, found.train.epochs) == (None, 0.0, 2)
    later = config(tmp_path, DETAILED, "recipe=zelo", "train.balance.alpha=0.2", "mine.rule=simans")
    assert later.train.balance.alpha == 0.2
    assert later.mine.sample.rule == "simans"
    assert config(tmp_path, "mine: {rule: simans}", "recipe=zelo").mine.sample.rule == "uniform"


def test_mistakes(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean anmi2-extended"):
        config(tmp_path, "recipe: anmi2-extend")
    with pytest.raises(ConfigError, match="known: infonce-mined, zelo"):
        config(tmp_path, "seed: 0", "recipe=colbert")
    with pytest.raises(ConfigError, match="recipe"):
        config(tmp_path, "recipe: [anmi2]")
    with pytest.raises(ConfigError, match="mine"):
        config(tmp_path, "recipe: anmi2\nmine: 3")
    with pytest.raises(ConfigError, match="sets alpha itself"):
        config(tmp_path, "recipe: anmi2\ntrain: {balance: {alpha: 0.2}}")
