"""The search of a campaign: Ray Tune runs a process per trial, with Ray Train inside, and its ASHA stops trials.

A trial is a run of the main path up to train, through the same store, so shared stages are computed once. Tune's own
state is removed at the end: it lacks the scheduler's, and is pickled code. Optuna's storage (`study`) has the trials.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
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
from anmi_ray.config.tune import AshaConfig, CampaignConfig
from anmi_ray.core import logs
from anmi_ray.core.errors import AnmiError, refuse
from anmi_ray.corpus.counts import CollectionCounts, of_manifest
from anmi_ray.pipeline import run as path
from anmi_ray.pipeline.progress import Reporters
from anmi_ray.pipeline.requirements import unlabelled
from anmi_ray.pipeline.stages import FIRST, TRAIN
from anmi_ray.reports.campaign import Status, Trial
from anmi_ray.runtime.capacity import check_room
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.train_workers import GROUP
from anmi_ray.stages.train import trainer
from anmi_ray.store import Flow
from anmi_ray.store.uri import absolute, of_ray, remove
from anmi_ray.tuning.campaign import Campaign
from anmi_ray.tuning.study import Trials

_LOG = logging.getLogger(__name__)
_ENDS_S = 60.0  # time limit for a trial's process to end
METRIC = "dev"
TIME = "completed_share"
_CLOSE = 1e-6  # tolerance between shares of the steps
# Resources of a trial's driver: no CPU, or a stage that needs all of them would wait forever.
_DRIVER: dict[str, float] = {"CPU": 0.0, "memory": 64 * 2**20}


Ended = Callable[[Trial], None]


def share(campaign: Campaign, reporter: Reporter) -> None:
    """Run the stages before mine, which all trials share, under a separate run name.

    Raises DataError, before any judge is asked, if trials cannot be compared on the collection's dev queries.
    """
    base = campaign.base.model_copy(update={"name": campaign.run_name("shared")})
    path.run(base, Reporters(reporter, _Splits(campaign)), last=campaign.shared[-1], content=campaign.content)


class _Splits(Reporter):
    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """Check the collection's counts once it is read."""
        if name == FIRST:
            ingest = self._campaign.resolved[name].artifact(self._campaign.store)
            refuse(without_labels(self._campaign, of_manifest(ingest.manifest() or {})))


def without_labels(campaign: Campaign, counts: CollectionCounts) -> Iterator[AnmiError]:
    """Yield the error of a collection on which trials cannot be compared."""
    remedy = "give a dev split, or labels to train queries, of which some then become dev queries"
    yield from unlabelled(counts, "dev", f"{campaign.place}, whose trials are compared on dev", remedy)


def search(campaign: Campaign, trials: Trials, reporter: Reporter, ended: Ended) -> list[Trial]:
    """Run the missing trials, and return all. Needs a started Ray; `ended` gets each as it ends.

    Failed trials do not stop the others. Raises ConfigError if a trial's training does not fit on the cluster, or no
    point of the space is valid.
    """
    config = campaign.config
    known = trials.read()
    left = config.trials - sum(trial.status != "running" for trial in known)
    if left <= 0:
        return known
    check_room(of_training(campaign.base.execution.training), reporter.notice, config.max_concurrent)
    asha = scheduler(config.asha)
    for trial in known:
        if trial.status in ("complete", "stopped"):
            tell(asha, f"before-{trial.number}", trial)
    # Ctrl-C ends the command; our reporter replaces Tune's output
    os.environ |= {"TUNE_DISABLE_SIGINT_HANDLER": "1", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    os.environ["RAY_AIR_NEW_OUTPUT"] = "0"
    logging.getLogger("ray.tune").setLevel(logging.CRITICAL)
    scratch = absolute(campaign.store.uri(f"{campaign.folder}/tune"))
    remove(scratch)  # of a call that was killed
    with ThreadPoolExecutor() as releasing:  # waits for it
        log = _Log(campaign, trials, reporter, ended, releasing)
        tuner = tune.Tuner(
            tune.with_resources(tune.with_parameters(carry_out, campaign=campaign), _DRIVER),
            tune_config=tune.TuneConfig(
                search_alg=_Points(config, trials, asha),
                scheduler=asha,
                num_samples=left,
                max_concurrent_trials=config.max_concurrent,
            ),
            run_config=tune.RunConfig(name="trials", callbacks=[log], verbose=0, **of_ray(scratch)),
        )
        try:
            tuner.fit()
        except tune.TuneError as error:
            cause: BaseException | None = error
            while cause is not None and not isinstance(cause, AnmiError):
                cause = cause.__cause__
            raise cause or error from error
        finally:
            remove(scratch)
    return trials.read()


def carry_out(config: Mapping[str, Any], campaign: Campaign) -> None:
    """Run one trial: the main path up to train; every dev point goes to Tune.

    The last point is reported once the model is published, so that a trial stopped by it is complete.
    """
    logs.set_up()
    with logs.bound(campaign=campaign.config.name, trial=config["number"]):
        experiment = campaign.experiment(campaign.settings(config["params"]), config["run"])
        points = _DevPoints(config["decided"])
        path.run(experiment, points, last=TRAIN, content=campaign.content)
        for share, dev in campaign.curve(config["trained"]):
            points.tell(share, dev)


class _DevPoints(Reporter):
    """Reports dev points to Tune, once each; early stopping has already decided on those up to the share `last`."""

    def __init__(self, last: float) -> None:
        self._last = last
        self._notices = list[str]()

    def measured(self, step: int, share: float, dev: float, group: str | None) -> None:
        """Report a point from a training thread; Tune may end this process in the call."""
        if share < 1.0:
            self.tell(share, dev, group)

    def notice(self, text: str) -> None:
        """Keep it for the next point."""
        self._notices.append(text)

    def tell(self, share: float, dev: float, group: str | None = None) -> None:
        """Report a point."""
        if share > self._last + _CLOSE:
            self._last = share
            notices, self._notices = self._notices, []
            tune.report({METRIC: dev, TIME: share, "notices": notices, GROUP: group})


def scheduler(config: AshaConfig | None) -> TrialScheduler:
    """Return early stopping by the share of a trial's steps, whose number depends on mining."""
    if config is None:
        return FIFOScheduler()
    grace = cast(int, config.grace)  # any number will do
    return ASHAScheduler(TIME, METRIC, "max", max_t=1, grace_period=grace, reduction_factor=config.reduction)


def tell(asha: TrialScheduler, trial_id: str, trial: Trial) -> None:
    """Pass a trial's earlier dev points to early stopping, as Ray does not save the scheduler's state.

    Its decisions on them stay: a resumed trial is not compared with later ones.
    """
    known = cast(TuneTrial, SimpleNamespace(trial_id=trial_id))
    asha.on_trial_add(cast(Any, None), known)
    for share, dev in trial.curve:
        asha.on_trial_result(cast(Any, None), known, {TIME: share, METRIC: dev})


class _Points(Searcher):
    """The next trial: one that was running when the campaign was killed, else a new one."""

    def __init__(self, config: CampaignConfig, trials: Trials, asha: TrialScheduler) -> None:
        super().__init__(metric=METRIC, mode="max")
        self._config = config
        self._trials = trials
        self._asha = asha
        self._interrupted = [trial for trial in trials.read() if trial.status == "running"]

    def suggest(self, trial_id: str) -> dict[str, Any] | None:
        """Return the arguments of `carry_out`."""
        trial = self._interrupted.pop(0) if self._interrupted else self._new()
        if trial is None:
            return cast(Any, Searcher.FINISHED)  # a string, which Tune's annotation leaves out
        tell(self._asha, trial_id, trial)
        known = {"number": trial.number, "params": dict(trial.params), "run": trial.run, "trained": trial.train}
        return {**known, "decided": trial.curve[-1][0] if trial.curve else 0.0}

    def _new(self) -> Trial | None:
        known = self._trials.read()
        return self._trials.next() if len(known) < self._config.trials else None

    def on_trial_complete(self, trial_id: str, result: dict[str, Any] | None = None, error: bool = False) -> None:
        """Do nothing: the callback keeps the end of a trial."""

    def __getstate__(self) -> dict[str, Any]:
        return {}  # pickled by Tune, never read

    def save(self, checkpoint_path: str) -> None:
        """Do nothing: Optuna's storage has the trials."""

    restore = save


class _Log(tune.Callback):
    """Writes the state of trials into Optuna's storage, and reports it."""

    def __init__(
        self, campaign: Campaign, trials: Trials, reporter: Reporter, ended: Ended, releasing: ThreadPoolExecutor
    ) -> None:
        self._campaign = campaign
        self._trials = trials
        self._reporter = reporter
        self._ended = ended
        self._begun: dict[int, float] = {}  # on the clock of this process, as if it had not been restarted
        self._groups: dict[int, tuple[str, int]] = {}
        self._releasing = releasing

    def on_trial_result(
        self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, result: dict[str, Any], **info: Any
    ) -> None:
        """Keep a dev point."""
        number = trial.config["number"]
        if result[GROUP] is not None:
            self._groups[number] = result[GROUP], result["pid"]
        for text in result["notices"]:
            self._reporter.notice(f"trial {number}: {text}")
        self._trials.measured(number, result[TIME], result[METRIC], self._seconds(number))

    def on_trial_complete(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record a complete or stopped trial."""
        number, train = trial.config["number"], trial.config["trained"]
        manifest = self._campaign.trained(train).manifest()
        if manifest is None:
            self._end(number, "stopped")
        elif manifest["dev"] is None:
            self._end(number, "failed", message="dev was not measured")
        else:
            for share, dev in self._campaign.curve(train):
                self._trials.measured(number, share, dev, self._seconds(number))
            self._end(number, "complete", manifest["dev"])

    def on_trial_error(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Record why a trial failed."""
        self._end(trial.config["number"], "failed", message=_message(trial))

    def on_trial_start(self, iteration: int, trials: list[TuneTrial], trial: TuneTrial, **info: Any) -> None:
        """Start its clock, or continue that of an earlier call."""
        number = trial.config["number"]
        before = next(one.seconds for one in self._trials.read() if one.number == number)
        self._begun[number] = time.monotonic() - before

    def _seconds(self, number: int) -> float:
        return time.monotonic() - self._begun.get(number, time.monotonic())

    def _end(self, number: int, status: Status, dev: float | None = None, message: str | None = None) -> None:
        trial = self._trials.end(number, status, dev, message, self._seconds(number))
        facts = {"dev": dev, "seconds": round(trial.seconds, 3), "params": trial.params}
        _LOG.info("trial ends", extra={**facts, "trial": number, "status": status, "error": message})
        if (held := self._groups.pop(number, None)) is not None:
            self._releasing.submit(_release, *held)
        ended = sum(one.status != "running" for one in self._trials.read())
        self._reporter.progress(ended, self._campaign.config.trials, "trials")
        self._ended(trial)

    def __getstate__(self) -> dict[str, Any]:
        return {}  # pickled by Tune, never read


def _release(group: str, process: int) -> None:
    """Release the workers' placement group of a trial, once it and its actors are gone.

    Its controller outlives it briefly, and would restart lost workers. Ray Train leaves the release to an actor that
    asks the dashboard; a local Ray has none, so every stopped trial would keep its CPUs to the campaign's end.
    """
    deadline = time.monotonic() + _ENDS_S
    while any(actor["State"] != "DEAD" for actor in _family(process)):
        if time.monotonic() > deadline:
            break
        time.sleep(0.2)
    remove_placement_group(PlacementGroup(PlacementGroupID(bytes.fromhex(group))))


def _family(process: int) -> list[dict[str, Any]]:
    """Ray's records of the actors of a process, and recursively of the actors that they own."""
    known: list[dict[str, Any]] = [actor for actor in actors().values() if not actor["IsDetached"]]
    generation = [actor for actor in known if actor["Pid"] == process]
    found = list(generation)
    while generation:
        homes = [actor["Address"] for actor in generation]
        generation = [actor for actor in known if actor["OwnerAddress"] in homes and actor not in found]
        found += generation
    return found


def forget_checkpoints(campaign: Campaign, trials: Iterable[Trial]) -> None:
    """Remove the checkpoints of stopped trials, which are not resumed."""
    for trial in trials:
        if trial.status == "stopped":
            trainer.clear_checkpoints(campaign.trained(trial.train), campaign.base.execution.training)


def _message(trial: TuneTrial) -> str:
    """Return why a trial failed: the whole message of a user error, else the last line."""
    if trial.pickled_error_file is not None and Path(trial.pickled_error_file).exists():
        # written by this process; Tune's own getters read a copy that does not exist yet
        error = cloudpickle.loads(Path(trial.pickled_error_file).read_bytes())
        cause = error.cause if isinstance(error, RayTaskError) else error
        return str(cause) if isinstance(cause, AnmiError) else f"{type(cause).__name__}: {trainer.last_line(cause)}"
    if trial.error_file is not None and Path(trial.error_file).exists():
        return trainer.last_line(Path(trial.error_file).read_text(encoding="utf-8"))
    return "its process ended"
