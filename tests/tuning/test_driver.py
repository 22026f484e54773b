"""A campaign of real trials on a small collection: what is shared, stopped, counted, repeated and reported."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray._private.state import actors
from ray.util import placement_group, placement_group_table

from anmi_ray.config.load import load as load_experiment
from anmi_ray.config.tune import load
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.run import run
from anmi_ray.reports.campaign import Trial
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.tuning import driver
from anmi_ray.tuning import run as campaigns
from anmi_ray.tuning.campaign import Campaign, open_campaign
from anmi_ray.tuning.study import Trials
from tests.small import Remembering, start_from
from tests.tuning.campaigns import SPACE, write_campaign
from tests.tuning.family import Member
from tests.tuning.one_task import replace_in_repeats

# some fifty processes start one after another
pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(1500)]


@dataclass(frozen=True)
class Done:
    """A finished campaign, and the trials in the order in which they ended."""

    campaign: Campaign
    finished: campaigns.Finished
    ended: list[int]

    @property
    def trials(self) -> list[Trial]:
        return Trials(self.campaign).read()


@pytest.fixture(scope="module")
def done(prepared: Path, small_collection: Path, tmp_path_factory: pytest.TempPathFactory) -> Done:
    folder = tmp_path_factory.mktemp("tune")
    start_from(prepared, folder / "root", "rate")
    campaign = open_campaign(load(write_campaign(folder, small_collection)))
    ended: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        replace_in_repeats(patch)  # trials are through Ray Train
        return Done(campaign, campaigns.run(campaign, Reporter(), lambda one: ended.append(one.number)), ended)


def test_every_trial_ends_and_those_that_fail_are_counted_with_their_message(done: Done) -> None:
    assert done.ended == [0, 1, 2, 3]
    failed = [one for one in done.trials if one.params["mining"] == "scarce"]
    assert [one.number for one in failed] == [3]
    assert all(one.status == "failed" and "no example was mined" in (one.message or "") for one in failed)
    others = [one for one in done.trials if one not in failed]
    assert {one.status for one in others} == {"complete", "stopped"}
    assert all(one.seconds > 0 for one in done.trials)


def test_early_stopping_decides_as_its_definition_says(done: Done) -> None:
    """One rung, at half of the steps: who is not in the best sixteenth of those before it is stopped, and no other."""
    before: list[float] = []
    for one in done.trials:
        if one.status == "failed":
            continue
        share, dev = one.curve[0]
        assert share == 0.5
        wanted = "stopped" if before and dev < np.percentile(before, 100 * (1 - 1 / 16)) else "complete"
        assert (one.status, len(one.curve)) == (wanted, 1 if wanted == "stopped" else 2)
        before.append(dev)


def test_what_stopped_trials_held_is_given_back(done: Done) -> None:
    """Their processes are ended from outside, so nobody in them does it."""
    assert any(one.status == "stopped" for one in done.trials)
    deadline = time.monotonic() + 60
    while held := [group for group in placement_group_table().values() if group["state"] != "REMOVED"]:
        assert time.monotonic() < deadline, held
        time.sleep(0.2)


def test_nothing_is_given_back_while_something_lives_that_would_take_it_anew(ray_local: None) -> None:
    """A trial, its controller, the controller's worker; a stranger and what is detached live on."""
    kind: Any = ray.remote(num_cpus=0)(Member)
    trial, stranger = kind.remote(), kind.remote()
    process: Any = ray.get(trial.start.remote(kind, 2))
    ray.get(stranger.__ray_ready__.remote())
    family = {one["ActorID"] for one in driver._family(process)}
    assert len(family) == 3
    group = placement_group([{"CPU": 1}])
    ray.get(group.ready())
    ray.kill(trial)
    driver._release(group.id.hex(), process)
    assert {actors()[one]["State"] for one in family} == {"DEAD"}
    assert placement_group_table(group)["state"] == "REMOVED"
    assert actors()[stranger._actor_id.hex()]["State"] == "ALIVE"
    ray.kill(ray.get_actor("lasting"))


def test_what_comes_before_mine_is_made_once(done: Done) -> None:
    artifacts = Path(done.campaign.base.execution.root) / "artifacts"
    assert done.campaign.shared == ("ingest", "retrieve", "compare", "judge", "rate")
    for name in done.campaign.shared:
        assert os.listdir(artifacts / name) == [done.campaign.resolved[name].fingerprint]
    trained = {one.train for one in done.trials if one.status == "complete"}
    assert trained <= set(os.listdir(artifacts / "train"))
    for one in done.trials:
        if one.status == "stopped":  # what only resuming needs is gone
            assert not (artifacts / "train" / one.train / "ray").exists()
    # the experiment's own name stays free: a run of it keeps its model and its report
    runs = {path.stem for path in (Path(done.campaign.base.execution.root) / "runs").glob("*.json")}
    assert done.campaign.run_name("shared") in runs
    assert all(name.startswith(f"{done.campaign.config.name}-{done.campaign.fingerprint[:8]}-") for name in runs)


def test_called_again_it_runs_nothing(done: Done) -> None:
    folder = Path(done.campaign.base.execution.root) / done.campaign.folder
    before = {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.json")}
    trained = sorted(path.stat().st_mtime_ns for path in folder.parents[1].glob("artifacts/*/*/manifest.json"))
    ended: list[int] = []
    again = campaigns.run(done.campaign, Reporter(), lambda one: ended.append(one.number))
    assert ended == []
    assert again.repeats == done.finished.repeats
    assert {path: (path.read_bytes(), path.stat().st_mtime_ns) for path in folder.rglob("*.json")} == before
    assert sorted(path.stat().st_mtime_ns for path in folder.parents[1].glob("artifacts/*/*/manifest.json")) == trained


def test_the_best_settings_are_a_file_that_run_takes(done: Done) -> None:
    best = done.finished.best
    assert best.dev == max(one.dev for one in done.trials if one.dev is not None)
    root = done.campaign.base.execution.root
    experiment = load_experiment(
        done.finished.files["best.yaml"], [f"execution.root={root}", "execution.train.threads=1"]
    )
    assert resolve(experiment)["train"].fingerprint == best.train
    told = Remembering()
    run(experiment, told, last="train")
    assert told.computed == []


def test_the_best_and_the_default_are_trained_with_fresh_seeds(done: Done) -> None:
    repeats = done.finished.repeats
    assert repeats is not None
    assert len(repeats.seeds) == 1
    assert done.campaign.base.train.seed not in repeats.seeds
    assert {row.system: len(row.values) for row in repeats.rows} == {"best": 1, "default": 1, "hybrid": 1}
    means = {row.system: sum(row.values) / len(row.values) for row in repeats.rows}
    first = repeats.contrasts[0]
    assert (first.system, first.reference, first.seeds) == ("best", "default", 1)
    assert first.difference == pytest.approx(means["best"] - means["default"])
    assert first.low <= first.difference <= first.high
    page = Path(done.finished.files["campaign.html"]).read_text(encoding="utf-8")
    assert "partly the luckiest" in page
    assert page.count('<td class="unit status') == 4


def test_trials_may_be_added_and_failed_ones_tried_again(done: Done) -> None:
    """Both at once: one more trial is wanted, and the failed ones are let run, which fail again."""
    config = done.campaign.config.model_copy(update={"trials": 5, "max_concurrent": 2, "repeats": 0})
    before = done.trials
    ended: list[int] = []
    more = campaigns.run(replace(done.campaign, config=config), Reporter(), lambda one: ended.append(one.number), True)
    assert more.repeats is None
    failed = [one for one in before if one.status == "failed"]
    assert sorted(ended) == [4, 5]  # the failed one, and the new one
    after = done.trials
    assert after[:3] == [one for one in before if one not in failed]
    assert [(one.status, one.run, one.params) for one in after if one.number == 4] == [
        (one.status, one.run, one.params) for one in failed
    ]


def test_a_campaign_of_which_all_fail_says_so(done: Done, small_collection: Path, tmp_path: Path) -> None:
    space = {
        "train.learning_rate": SPACE["train.learning_rate"],
        "mine.negatives": {"kind": "integer", "low": 900, "high": 990},
    }
    root = done.campaign.base.execution.root  # where all that trials share is there
    path = write_campaign(tmp_path, small_collection, space=space, trials=2)
    campaign = open_campaign(
        load(
            path, [f"execution.root={root}", "mine.allow=[{rule: rank-window, first: 900}]", "mine.random_negatives=0"]
        )
    )
    with pytest.raises(
        ConfigError, match=r"none of 2 trials has trained a model, 2 failed; trial 0: .*no example was mined"
    ):
        campaigns.run(campaign, Reporter(), lambda _: None)


def test_without_dev_queries_nothing_is_searched(small_collection: Path, tmp_path: Path) -> None:
    settings = ["corpus.max_dev_queries=0", f"execution.root={tmp_path / 'root'}"]
    campaign = open_campaign(load(write_campaign(tmp_path, small_collection), settings))
    with pytest.raises(DataError, match="no dev query is labelled"):
        campaigns.run(campaign, Reporter(), lambda _: None)
    assert not (tmp_path / "root").exists()  # Ray was not started, and nothing made
