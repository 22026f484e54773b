"""Campaigns of trials, through Ray Tune: a driver process a trial, Ray Train inside, Optuna's points, early stopping.

A trial is a run of the main path up to train, through the same store: what trials share is there, what one has made is
never made again. Tune's own state is removed when it ends: early stopping's is not in it, and it is pickled code. A
campaign goes on from its own records (`campaigns`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from ray import PlacementGroupID, cloudpickle, tune
from ray._private.state import actors
from ray.exceptions import RayTaskError
from ray.tune.experiment import Trial as TuneTrial
from ray.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from ray.tune.search import Searcher
from ray.util.placement_group import PlacementGroup, remove_placement_group

from anmi_ray.config.needs import of_training
from anmi_ray.config.tune import AshaConfig
from anmi_ray.core import logs
from anmi_ray.core.errors import AnmiError, refuse
from anmi_ray.corpus.counts import CollectionCounts, of_manifest
from anmi_ray.pipeline import run as path
from anmi_ray.pipeline.progress import Everyone
from anmi_ray.pipeline.requirements import unlabelled
from anmi_ray.pipeline.stages import FIRST, TRAIN
from anmi_ray.runtime.capacity import check_room
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.status import GROUP
from anmi_ray.stages.train import trainer
from anmi_ray.store import Flow
from anmi_ray.store.uri import absolute, of_ray, remove
from anmi_ray.tuning import search as searching
from anmi_ray.tuning.campaign import Campaign, Point, Trial

_LOG = logging.getLogger(__name__)
_ENDS_S = 60.0  # that a trial's process may take to end
METRIC = "dev"
TIME = "completed_share"
# What a trial's driver takes: no CPU, or a stage that wants all of them would wait for it for ever.
_DRIVER: dict[str, float] = {"CPU": 0.0, "memory": 64 * 2**20}

_FINISHED: Any = Searcher.FINISHED  # Tune takes it for a point

Ended = Callable[[Trial], None]


def share(campaign: Campaign, reporter: Reporter) -> None:
    """Make what all trials read, all stages before mine, as a run of its own name: the experiment's own run stays.

    Raises DataError where dev cannot tell trials apart.
    """
    told = Everyone(reporter, _Splits(campaign))
    base = campaign.base.model_copy(update={"name": campaign.run_name("shared")})
    path.run(base, told, last=campaign.shared[-1], content=campaign.content)


class _Splits(Reporter):
    """Looks, when the collection is read and before anything is asked about it, whether trials can be compared."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """A stage is complete."""
        if name != FIRST:
            return
        ingest = self._campaign.resolved[name].artifact(self._campaign.store)
        refuse(without_labels(self._campaign, of_manifest(ingest.manifest() or {})))


def without_labels(campaign: Campaign, counts: CollectionCounts) -> Iterator[AnmiError]:
    """The error of a collection on which trials cannot be compared."""
    remedy = "give a dev split, or labels to train queries, of which some then become dev queries"
    yield from unlabelled(counts, "dev", f"{campaign.place}, whose trials are compared on dev", remedy)


def search(campaign: Campaign, reporter: Reporter, ended: Ended) -> list[Trial]:
    """Carry out the trials that are missing, and return all. Needs a started Ray; `ended` sees each as it ends.

    A trial that fails is counted, with its message, and the others go on. Raises ConfigError where a trial's training
    has no room on the cluster or no point of the space fits together.
    """
    trials = {trial.number: trial for trial in campaign.read()}
    left = campaign.config.trials - sum(trial.ended for trial in trials.values())
    if left <= 0:
        return list(trials.values())
    check_room(of_training(campaign.base.execution.training), reporter.notice, campaign.config.max_concurrent)
    points = _Points(campaign, trials)
    log = _Log(campaign, trials, reporter, ended)
    # Ctrl-C ends the command, as everywhere; what Tune writes and prints the records have, and the reporter says
    os.environ |= {"TUNE_DISABLE_SIGINT_HANDLER": "1", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    driver = tune.with_parameters(carry_out, campaign=campaign)
    scratch = absolute(campaign.store.uri(f"{campaign.folder}/tune"))
    remove(scratch)  # of a call that was killed
    tuner = tune.Tuner(
        tune.with_resources(driver, _DRIVER),
        tune_config=tune.TuneConfig(
            search_alg=points,
            scheduler=scheduler(campaign.config.asha, trials.values()),
            num_samples=left,
            max_concurrent_trials=campaign.config.max_concurrent,
        ),
        run_config=tune.RunConfig(name="trials", callbacks=[log], verbose=0, **of_ray(scratch)),
    )
    try:
        tuner.fit()
    except tune.TuneError as error:
        raise _ours(error) from error
    finally:
        log.close()
        remove(scratch)
    return sorted(trials.values(), key=lambda trial: trial.number)


def carry_out(config: Mapping[str, Any], campaign: Campaign) -> None:
    """One trial, in a process of its own: the main path up to train, every dev point told to Tune.

    The last point is told when the model is there: a trial that early stopping ends after it has ended anyway.
    """
    logs.set_up()
    with logs.bound(campaign=campaign.config.name, trial=config["number"]):
        trial = campaign.trial(config["number"])
        experiment = campaign.experiment(campaign.settings(trial.params), trial.run)
        told = _Told(trial.curve[-1].step if trial.curve else 0)  # early stopping has decided on these points
        path.run(experiment, told, last=TRAIN, content=campaign.content)
        for point in campaign.curve(trial):
            told.tell(point)


class _Told(Reporter):
    """Hands what a trial's stages tell to Tune."""

    def __init__(self, step: int) -> None:
        self._step = step
        self._notices = list[str]()

    def measured(self, step: int, share: float, dev: float, group: str | None) -> None:
        """Told by a thread of training; Tune may end this process in the call."""
        if share < 1.0:
            self.tell(Point(step, share, dev), group)

    def notice(self, text: str) -> None:
        """Goes out with the next point."""
        self._notices.append(text)

    def tell(self, point: Point, group: str | None = None) -> None:
        """Each point once."""
        if point.step <= self._step:
            return
        self._step = point.step
        notices = self._notices
        self._notices = []
        tune.report(
            {METRIC: point.dev, TIME: point.share, "completed_steps": point.step, "notices": notices, GROUP: group}
        )


class _Asha(ASHAScheduler):
    """Knows trials by their numbers, which they keep when a campaign goes on."""

    def on_trial_add(self, tune_controller: Any, trial: TuneTrial) -> None:
        super().on_trial_add(tune_controller, _numbered(trial.config["number"]))

    def on_trial_result(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> str:
        return super().on_trial_result(tune_controller, _numbered(trial.config["number"]), result)

    def on_trial_complete(self, tune_controller: Any, trial: TuneTrial, result: dict[str, Any]) -> None:
        super().on_trial_complete(tune_controller, _numbered(trial.config["number"]), result)

    def on_trial_remove(self, tune_controller: Any, trial: TuneTrial) -> None:
        super().on_trial_remove(tune_controller, _numbered(trial.config["number"]))


def _numbered(number: int) -> TuneTrial:
    """As much of a trial as early stopping asks for."""
    return cast(TuneTrial, SimpleNamespace(trial_id=str(number), config={"number": number}))


def scheduler(config: AshaConfig | None, trials: Iterable[Trial]) -> TrialScheduler:
    """Early stopping that knows the curves so far; Ray saves no scheduler's state.

    What it decided before stays: a trial that goes on is not held anew against those that came after it.

    A trial's clock is the share of its own steps: a rule of mining decides how many examples there are, and the
    learning rate's schedule spans them.
    """
    if config is None:
        return FIFOScheduler()
    asha = _Asha(
        time_attr=TIME,
        metric=METRIC,
        mode="max",
        max_t=1,
        grace_period=cast(int, config.grace),  # any number will do
        reduction_factor=config.reduction,
    )
    for trial in sorted(trials, key=lambda trial: trial.number):
        if trial.status != "failed":
            asha.on_trial_add(None, _numbered(trial.number))
            for point in trial.curve:
                asha.on_trial_result(None, _numbered(trial.number), {TIME: point.share, METRIC: point.dev})
    return asha


class _Points(Searcher):
    """Which trial is next: one that was under way when the campaign was killed, else a new one."""

    def __init__(self, campaign: Campaign, trials: dict[int, Trial]) -> None:
        super().__init__(metric=METRIC, mode="max")
        self._campaign = campaign
        self._trials = trials
        self._interrupted = sorted(number for number, trial in trials.items() if not trial.ended)

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """The number of a trial whose record says the rest."""
        config = self._campaign.config
        if self._interrupted:
            return {"number": self._interrupted.pop(0)}
        hours = sum(begun.seconds for begun in self._trials.values()) / 3600
        number = len(self._trials)
        if number >= config.trials or (config.trial_hours is not None and hours >= config.trial_hours):
            return _FINISHED
        try:
            trial = searching.suggest(self._campaign, number, list(self._trials.values()))
        except searching.Exhausted:
            return _FINISHED
        self._trials[number] = trial
        self._campaign.write(trial)
        return {"number": number}

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """The log has it."""

    def save(self, checkpoint_path: str) -> None:
        """The records have it."""

    def restore(self, checkpoint_path: str) -> None:
        """The records have it."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # Tune pickles what it is given; nobody reads it


class _Log(tune.Callback):
    """Keeps the records of the trials: the only one who writes them while they are under way."""

    def __init__(self, campaign: Campaign, trials: dict[int, Trial], reporter: Reporter, ended: Ended) -> None:
        self._campaign = campaign
        self._trials = trials
        self._reporter = reporter
        self._ended = ended
        self._clock: dict[int, float] = {}
        self._groups: dict[int, tuple[str, int]] = {}
        self._releasing: list[threading.Thread] = []

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """From now on its seconds count."""
        self._clock[trial.config["number"]] = time.monotonic()

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        """A dev point."""
        record = self._of(trial)
        if result[GROUP] is not None:
            self._groups[record.number] = result[GROUP], result["pid"]
        for text in result["notices"]:
            self._reporter.notice(f"trial {record.number}: {text}")
        if record.reached(Point(result["completed_steps"], result[TIME], result[METRIC])):
            self._campaign.write(record)

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """It ran to its end, or was stopped."""
        record = self._of(trial)
        manifest = self._campaign.trained(record).manifest()
        if manifest is None:
            record.status = "stopped"
        elif manifest["dev"] is None:
            record.status = "failed"
            record.message = "dev was not measured"
        else:
            record.status = "complete"
            record.dev = manifest["dev"]
            record.curve = self._campaign.curve(record)
        self._end(record)

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """It failed: what it says of why."""
        record = self._of(trial)
        record.status = "failed"
        record.message = _message(trial)
        self._end(record)

    def _of(self, trial: TuneTrial) -> Trial:
        """Its record, with the seconds until now."""
        record = self._trials[trial.config["number"]]
        now = time.monotonic()
        record.seconds += now - self._clock.get(record.number, now)
        self._clock[record.number] = now
        return record

    def _end(self, record: Trial) -> None:
        self._campaign.write(record)
        facts = {"dev": record.dev, "seconds": round(record.seconds, 3), "params": record.params}
        facts |= {"trial": record.number, "status": record.status, "error": record.message}
        _LOG.info("trial ends", extra=facts)
        if (held := self._groups.pop(record.number, None)) is not None:
            self._releasing.append(threading.Thread(target=_release, args=held, daemon=True))
            self._releasing[-1].start()
        ended = sum(other.ended for other in self._trials.values())
        self._reporter.progress(ended, self._campaign.config.trials, "trials")
        self._ended(record)

    def close(self) -> None:
        """Wait until what trials held is given back."""
        for thread in self._releasing:
            thread.join()

    def __getstate__(self) -> dict[str, Any]:
        return {}  # as of the points


def _release(group: str, process: int) -> None:
    """Give back what the workers of a trial held, once it and all that it started are gone.

    Its controller outlives it by moments, and takes workers that it lost for failed: it would take room for others.
    Ray Train leaves that to an actor that asks the dashboard whether the training is gone, and a Ray on one machine has
    none: without this every trial that is stopped would keep its CPUs to the campaign's end.
    """
    deadline = time.monotonic() + _ENDS_S
    while any(actor["State"] != "DEAD" for actor in _family(process)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(group))))


def _family(process: int) -> list[dict[str, Any]]:
    """What Ray knows of the actors of a process and, generation after generation, of those that end with them."""
    known: list[dict[str, Any]] = [actor for actor in actors().values() if not actor["IsDetached"]]
    generation = [actor for actor in known if actor["Pid"] == process]
    found = list(generation)
    while generation:
        homes = [actor["Address"] for actor in generation]
        generation = [actor for actor in known if actor["OwnerAddress"] in homes and actor not in found]
        found += generation
    return found


def forget_checkpoints(campaign: Campaign, trials: Iterable[Trial]) -> None:
    """Remove what trials that were stopped would resume from: none of them will."""
    for trial in trials:
        if trial.status == "stopped":
            trainer.clear_checkpoints(campaign.trained(trial), campaign.base.execution.training)


def _message(trial: TuneTrial) -> str:
    """Why a trial failed: of an error for the user all that it says, of others the last line."""
    if trial.pickled_error_file is not None and Path(trial.pickled_error_file).exists():
        # what this process has just written; Tune's own getters look where it has not been copied to yet
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        cause = error.cause if isinstance(error, RayTaskError) else error
        if isinstance(cause, AnmiError):
            return str(cause)
        return f"{type(cause).__name__}: {trainer.last_line(cause)}"
    if trial.error_file is not None and Path(trial.error_file).exists():
        return trainer.last_line(Path(trial.error_file).read_text(encoding="utf-8"))
    return "its process ended"


def _ours(error: BaseException) -> BaseException:
    """The error for the user behind one of Tune's, if there is one."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, AnmiError):
            return cause
        cause = cause.__cause__
    return error


def retry_failed(campaign: Campaign) -> None:
    """Let the trials that failed run once more, with the same settings."""
    for trial in campaign.read():
        if trial.status == "failed":
            trial.status = "running"
            trial.message = None
            campaign.write(trial)
