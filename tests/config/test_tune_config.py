"""A campaign's settings: a space over settings of mine and train, and one message for whatever is wrong with it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.tune import CampaignConfig, Choice, LogUniform, Uniform, label, load
from anmi_ray.core.errors import ConfigError, refuse
from anmi_ray.stages import train
from tests.shipped import CAMPAIGNS

ROOT = Path(__file__).parents[2]
SPACE: dict[str, Any] = {
    "train.learning_rate": {"kind": "loguniform", "low": 1e-5, "high": 1e-3},
    "train.lists_per_step": {"kind": "integer", "low": 2, "high": 8},
    "rule": {
        "kind": "options",
        "options": {
            "table2": {"mine.rule": "table2"},
            "simans": {"mine.rule": "simans", "mine.sample.b": {"kind": "uniform", "low": 1, "high": 6}},
        },
    },
}


def write(folder: Path, **more: Any) -> Path:
    path = folder / "camp.yaml"
    path.write_text(yaml.safe_dump({"experiment": {}, "space": SPACE, **more}, sort_keys=False), encoding="utf-8")
    return path


def read(folder: Path, *overrides: str, **more: Any) -> CampaignConfig:
    return load(write(folder, **more), overrides)


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"train.lerning_rate": SPACE["train.learning_rate"]}, "did you mean train.learning_rate"),
        ({"train.temperature": SPACE["train.learning_rate"]}, "did you mean train.loss.temperature"),
        ({"retrieve.candidates": SPACE["train.lists_per_step"]}, "made once for all trials"),
        ({"execution.threads": SPACE["train.lists_per_step"]}, "made once for all trials"),
        ({"seed": SPACE["train.lists_per_step"]}, "made once for all trials"),
        ({"mine": {"kind": "choice", "values": [1, 2]}}, "made once for all trials"),
        ({"train.seed": SPACE["train.lists_per_step"]}, "the repeats of the best vary it"),
        ({"train.dev_depth": SPACE["train.lists_per_step"]}, "compared on these documents"),
        ({"train.learning_rate": {"kind": "unifrom", "low": 0, "high": 1}}, "did you mean uniform?"),
        ({"train.learning_rate": {"kind": "uniform", "low": 2, "high": 1}}, "low must be smaller"),
        ({"train.learning_rate": {"kind": "uniform", "low": 0}}, "high: Field required"),
        ({"train.learning_rate": {"kind": "uniform", "low": 0, "high": math.inf}}, "finite number"),
        ({"train.learning_rate": {"kind": "loguniform", "low": math.nan, "high": 1}}, "finite number"),
        (
            {"train.learning_rate": {"kind": "uniform", "low": -1e308, "high": 1e308}},
            "greater than or equal to -9007199254740992",
        ),
        ({"train.max_steps": {"kind": "integer", "low": 1, "high": 10**20}}, "less than or equal to 9007199254740992"),
        ({"train.learning_rate": {"kind": "loguniform", "low": 0, "high": 1}}, "greater than 0"),
        ({"mine.rule": {"kind": "choice", "values": ["table2"]}}, "at least 2"),
        ({"mine.rule": {"kind": "choice", "values": ["table2", "table2"]}}, "twice"),
        ({"rule": {"kind": "options", "options": {"a": {}, "b": {"mine.rul": 1}}}}, "did you mean mine.rule"),
        ({}, "at least 1"),
    ],
)
def test_a_mistake_in_the_space_is_named(tmp_path: Path, space: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, space=space)
    assert said in str(caught.value)
    assert "remedy" in str(caught.value)
    assert "camp.yaml" in str(caught.value)


@pytest.mark.parametrize("experiment", [None, 3, ["a"], "absent.yaml"])
def test_an_experiment_that_is_none(tmp_path: Path, experiment: Any) -> None:
    with pytest.raises(ConfigError, match=r"experiment|no such configuration file"):
        read(tmp_path, experiment=experiment)


def test_the_experiment_may_stand_in_a_file_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "other.yaml").write_text("train: {epochs: 2}\nmine: {negatives: 3}", encoding="utf-8")
    found = read(tmp_path, experiment=str(tmp_path / "other.yaml"), settings={"train.epochs": 0.5})
    assert found.experiment == {"name": "other", "train": {"epochs": 0.5}, "mine": {"negatives": 3}}
    assert found.name == "camp"


def test_an_override_is_of_the_campaign_or_of_its_experiment(tmp_path: Path) -> None:
    overrides = ("trials=3", "seed=4", "experiment.seed=5", "train.max_steps=6", "execution.root=there")
    space = "space.train.loss.temperature={kind: uniform, low: 0.1, high: 1}"
    found = read(tmp_path, *overrides, space, "mine.negatives=2")
    assert (found.trials, found.seed) == (3, 4)
    experiment = {"name": "camp", "seed": 5, "train": {"max_steps": 6}, "execution": {"root": "there"}}
    assert found.experiment == {**experiment, "mine": {"negatives": 2}}
    assert found.space["train.loss.temperature"] == Uniform(kind="uniform", low=0.1, high=1.0)
    assert set(found.space) == {*SPACE, "train.loss.temperature"}
    assert isinstance(found.space["train.learning_rate"], LogUniform)


@pytest.mark.parametrize("override", ["settings={train.max_steps: 7}", "settings.train.max_steps=7", "settings"])
def test_settings_of_the_file_are_not_overridden(tmp_path: Path, override: str) -> None:
    with pytest.raises(ConfigError, match=r"settings cannot be given\b.*\n.* train\.max_steps=7"):
        read(tmp_path, override, settings={"train.max_steps": 3})


def test_an_option_has_parameters_of_its_own(tmp_path: Path) -> None:
    config = read(tmp_path)
    answers = {"train.learning_rate": 1e-4, "train.lists_per_step": 3, "rule=simans: mine.sample.b": 2.0}
    params, settings = config.drawn(lambda name, _: {**answers, "rule": "simans"}[name])
    assert params == {**answers, "rule": "simans"}
    assert list(settings.items())[-2:] == [("mine.rule", "simans"), ("mine.sample.b", 2.0)]
    params, settings = config.drawn(lambda name, _: {**answers, "rule": "table2"}[name])
    assert "rule=simans: mine.sample.b" not in params
    assert settings["mine.rule"] == "table2"
    assert "mine.sample.b" not in settings


def test_every_end_and_every_value_is_a_corner(tmp_path: Path) -> None:
    corners = list(read(tmp_path).corners())
    for point in ({"train.lists_per_step": 2}, {"train.lists_per_step": 8}, {"rule": "simans"}, {"rule": "table2"}):
        assert point in corners
    assert {"rule": "simans", "rule=simans: mine.sample.b": 6.0} in corners


@given(st.lists(st.one_of(st.integers(), st.booleans(), st.none(), st.text(max_size=4)), min_size=2, max_size=6))
def test_values_of_a_choice_keep_their_type(values: list[Any]) -> None:
    if len({label(value) for value in values}) < len(values):
        with pytest.raises(ValueError, match="twice"):
            Choice(kind="choice", values=tuple(values))
        return
    domain = Choice(kind="choice", values=tuple(values))
    assert [type(domain.labels[name]) for name in domain.labels] == [type(value) for value in values]


@pytest.mark.parametrize("path", CAMPAIGNS, ids=lambda path: path.stem)
def test_shipped_campaigns_are_valid(path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(ROOT)  # where the experiment's path begins
    config = load(path, [f"execution.root={tmp_path}"])
    assert config.name == path.stem
    refuse(train.STAGE.check(train.STAGE, Experiment.model_validate(config.experiment)))
    assert config.trials >= 16
    assert config.repeats >= 3
