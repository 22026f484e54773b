"""A tuning campaign: its settings, the experiment that it varies, its identity, and what its trials share."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

from anmi_ray.config.base import result_settings
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import put, validate
from anmi_ray.config.tune import CampaignConfig
from anmi_ray.core.errors import ConfigError, StoreError, from_os_error
from anmi_ray.pipeline.resolve import Resolved, resolve
from anmi_ray.pipeline.stages import FIRST, MINE, TRAIN
from anmi_ray.reports.campaign import Trial
from anmi_ray.store import Artifact, Store, fingerprint

VERSION = 1  # of the contents of a campaign's fingerprint
MEASURE = "nDCG@10"  # on dev queries, by which trials are compared


@dataclass(frozen=True)
class Campaign:
    """A campaign over one root.

    config, place: its settings, and the file they come from.
    working_folder: base of relative paths in the settings.
    base, resolved: the experiment that it varies, and its stages.
    fingerprint: of everything that determines its trials.
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
        """The folder of its trials in the store."""
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
        """The experiment with `settings`, in the form of a file."""
        content = deepcopy(self.config.experiment)
        for name, value in settings.items():
            put(content, name, deepcopy(value))
        return {**content, "name": run}

    def settings(self, params: Mapping[str, Any]) -> dict[str, Any]:
        """Settings of a point of the space, by dotted name, in the order of their application."""
        return self.config.drawn(lambda name, _: params[name])[1]

    def run_name(self, what: str) -> str:
        """The name of one of its runs, unique to this campaign."""
        return f"{self.config.name}-{self.fingerprint[:8]}-{what}"

    def trained(self, train: str) -> Artifact:
        """The artifact of stage train with this fingerprint, complete or not."""
        return Artifact(self.store, TRAIN, train)

    def curve(self, train: str) -> list[tuple[float, float]]:
        """(share of the steps, dev) at each dev point, from the log of a complete training."""
        rows = self.trained(train).read_json("log.json") or []
        steps = max((row["step"] for row in rows), default=1)
        return [(row["step"] / steps, row["dev"]) for row in rows if row["dev"] is not None]


def open_campaign(config: CampaignConfig, place: str = "the campaign") -> Campaign:
    """The campaign of a file, with its experiment validated; `place` names it in errors. Raises ConfigError."""
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
    """Hold the lock `name` of a local store until this process ends. Raises StoreError if another process holds it.

    Two processes that train the same run would overwrite each other's checkpoints. Object storage has no locks.
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
                "another process is running this campaign", store.where(name), "wait for it, or give another root"
            ) from None
        except OSError as error:
            raise from_os_error(error, str(store.local)) from None
        yield


def best(trials: Iterable[Trial]) -> Trial | None:
    """The complete trial with the highest dev; ties go to the first."""
    finished = [trial for trial in trials if trial.dev is not None]
    return max(finished, key=lambda trial: (trial.dev, -trial.number), default=None)


def check_shared(campaign: Campaign, experiment: Experiment, settings: Mapping[str, Any]) -> None:
    """Raise ConfigError if a trial with these settings would not share all stages before mine."""
    for stage, resolved in resolve(experiment, campaign.content).items():
        if stage == MINE:
            return
        shared = campaign.resolved.get(stage)
        if shared is None or shared.fingerprint != resolved.fingerprint:
            raise ConfigError(
                f"{_settings_text(settings)} changes stage {stage}, but trials share all stages before mine",
                f"{campaign.place}, space",
                "leave it out, or set it for all trials in settings",
            )


def _settings_text(settings: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={json.dumps(value)}" for name, value in settings.items()) or "no change"
