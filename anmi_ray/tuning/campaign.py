"""A tuning campaign as the store keeps it: one small JSON file a trial, from which a campaign that was killed goes on.

`campaigns/<fingerprint>/trials/00003.json` is written when trial 3 is chosen, at each of its dev points, and when it
ends. Nothing else is needed to go on: the sampler and early stopping are given the trials that are there, a trial under
way resumes by its training's checkpoints, and one that has ended is never run again.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from anmi_ray.config.base import result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import put, validate
from anmi_ray.config.tune import CampaignConfig, Loaded
from anmi_ray.core.errors import ConfigError, StoreError, from_os_error
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.pipeline.resolve import Resolved, resolve
from anmi_ray.pipeline.stages import FIRST, MINE, TRAIN
from anmi_ray.store import Artifact, Store, fingerprint

VERSION = 1  # of what a campaign's fingerprint stands for
MEASURE = "nDCG@10"  # on dev queries, by which trials are compared
Status = Literal["running", "complete", "stopped", "failed"]


@dataclass(frozen=True)
class Point:
    """A trial's dev measure after `step` of its steps; share is step over all of them."""

    step: int
    share: float
    dev: float


@dataclass
class Trial:
    """One trial: what was chosen, how far it came, and what of it is in the store.

    params: by the space's names, of a choice its label. dev: the best on dev of one that ran to its end, whose model is
    kept; message: why one failed; seconds: under way, restarts included.
    """

    number: int
    run: str
    params: dict[str, Any]
    fingerprints: dict[str, str]
    status: Status = "running"
    curve: list[Point] = field(default_factory=list)
    dev: float | None = None
    message: str | None = None
    seconds: float = 0.0

    @property
    def ended(self) -> bool:
        """It is not run again."""
        return self.status != "running"

    def reached(self, point: Point) -> bool:
        """Add a point of its curve; False where one at this step or a later one is there."""
        if self.curve and point.step <= self.curve[-1].step:
            return False
        self.curve.append(point)
        return True


@dataclass(frozen=True)
class Campaign:
    """A campaign over one root: its settings, the experiment around which it searches, and its identity.

    working_folder: to what relative paths in its settings are relative, in whichever process they are read.
    """

    config: CampaignConfig
    place: str
    working_folder: str
    base: Experiment
    resolved: Mapping[str, Resolved]
    fingerprint: str
    store: Store

    @property
    def folder(self) -> str:
        """Where its records stand in the store."""
        return f"campaigns/{self.fingerprint}"

    @property
    def content(self) -> str:
        """The content hash of its collection."""
        return self.resolved[FIRST].content

    @property
    def shared(self) -> tuple[str, ...]:
        """The stages that all trials share, in order."""
        names = tuple(self.resolved)
        return names[: names.index(MINE)]

    def experiment(self, settings: Mapping[str, Any], run: str, **more: Any) -> Experiment:
        """The experiment with `settings` by dotted name, and `more` settings of train. Raises ConfigError."""
        given = {**settings, **{f"train.{key}": value for key, value in more.items()}}
        return validate(self.written(given, run), f"{self.place}, {_settings_text(settings)}", self.working_folder)

    def written(self, settings: Mapping[str, Any], run: str) -> dict[str, Any]:
        """The experiment with `settings`, as a file would have it: what its own file says, and these."""
        content = deepcopy(self.config.experiment)
        for name, value in settings.items():
            put(content, name, deepcopy(value))
        return {**content, "name": run}

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """What a point of the space puts into the experiment, by dotted name, in the order in which it does."""
        return self.config.drawn(lambda name, _: params[name])[1]

    def run_name(self, what: str) -> str:
        """The name of one of its runs, which no other campaign's has."""
        return f"{self.config.name}-{self.fingerprint[:8]}-{what}"

    def read(self) -> list[Trial]:
        """All trials that were begun, by number."""
        names = sorted(self.store.names(f"{self.folder}/trials"))
        return [self.trial(int(name.removesuffix(".json"))) for name in names if name.endswith(".json")]

    def trial(self, number: int) -> Trial:
        """The record of a trial that was begun."""
        remedy = f"delete {self.store.where(self.folder)}: trials are chosen anew, and trained models found again"
        record = self.store.read_json(self._record(number), remedy)
        return Trial(**{**record, "curve": [Point(**point) for point in record["curve"]]})

    def write(self, trial: Trial) -> None:
        """Publish the record of a trial, whole."""
        self.store.publish_json(self._record(trial.number), asdict(trial))

    def _record(self, number: int) -> str:
        return f"{self.folder}/trials/{number:05d}.json"

    def trained(self, trial: Trial) -> Artifact:
        """What a trial's stage train makes, complete or not."""
        return Artifact(self.store, TRAIN, trial.fingerprints[TRAIN])

    def curve(self, trial: Trial) -> list[Point]:
        """The dev points of a trial that has trained its model, as its training log has them."""
        rows = self.trained(trial).read_json("log.json") or []
        steps = max((row["step"] for row in rows), default=1)
        return [Point(row["step"], row["step"] / steps, row["dev"]) for row in rows if row["dev"] is not None]

    def repeat_seeds(self) -> list[int]:
        """Training seeds of the repeats: fresh ones, the same for the best and for the default."""
        return [derived_seed("repeat", self.config.seed, k) % 2**31 for k in range(self.config.repeats)]


def open_campaign(loaded: Loaded) -> Campaign:
    """The campaign of a file: its experiment validated, its space checked against it. Raises ConfigError."""
    config = loaded.config
    place = loaded.place
    folder = os.getcwd()
    base = validate(config.experiment, f"{place}, experiment", folder)
    if not base.train.dev_points:
        raise ConfigError(
            "train.dev_points is empty, and trials are compared by their dev points",
            place,
            "set it for all: settings: {train.dev_points: [0.25, 0.5, 0.75, 1.0]}",
        )
    resolved = resolve(base)
    made_of = [f"train={resolved[TRAIN].fingerprint}"]
    name = fingerprint("tune", VERSION, result_settings(config), made_of)
    return Campaign(config, place, folder, base, resolved, name, Store(base.execution.root))


@contextmanager
def alone(store: Store, name: str) -> Iterator[None]:
    """Hold the lock `name` of a local store, which the system frees when this process ends, however. Raises StoreError.

    Two processes that train the same run at once would disturb each other's checkpoints. Object storage has no locks.
    """
    if store.local is None:
        yield
        return
    with ExitStack() as held:
        try:
            store.local.mkdir(parents=True, exist_ok=True)
            file = held.enter_context((store.local / f".{name}.lock").open("w"))
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise StoreError(
                "another process is at work here", store.where(name), "wait for it, or give another root"
            ) from None
        except OSError as error:
            raise from_os_error(error, str(store.local)) from None
        yield


def best(trials: Iterable[Trial]) -> Trial | None:
    """The trial whose model is best on dev, of those that ran to their end; equal ones: the first."""
    finished = [trial for trial in trials if trial.dev is not None]
    return max(finished, key=lambda trial: (trial.dev, -trial.number), default=None)


def check_shared(campaign: Campaign, experiment: Experiment, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError where a trial with these settings would not share all stages before mine."""
    for stage, resolved in resolve(experiment, campaign.content).items():
        if stage == MINE:
            return
        shared = campaign.resolved.get(stage)
        if shared is None or shared.fingerprint != resolved.fingerprint:
            raise ConfigError(
                f"{_settings_text(settings)} needs a stage {stage} of its own, and all that comes before mine is made "
                "once for all trials",
                f"{campaign.place}, space",
                "leave it out, or fix it for all in settings: each value is then a campaign",
            )


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items()) or "no change"
