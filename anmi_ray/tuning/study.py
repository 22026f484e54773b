"""A campaign's trials in Optuna's storage, the next point by its sampler, and the importances of parameters.

The next point depends on the seed, the trial's number, and the earlier trials, so a killed campaign continues as it
would have. Only this module imports optuna (extra `tune`), inside functions.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import cached_property, partial
from typing import TYPE_CHECKING, Any, cast

from anmi_ray.config.tune import Choice, Domain, Integer, LogUniform
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.stages import TRAIN
from anmi_ray.reports.campaign import Status, Trial
from anmi_ray.store import Store
from anmi_ray.tuning.campaign import Campaign, check_shared

if TYPE_CHECKING:
    import optuna

_TRIES = 100  # points drawn for a trial, until one is new and valid
_DRAWS = 100  # random points, at least one of which must be valid with a value
_STEPS = 1_000_000  # of Optuna's intermediate values: millionths of a trial's steps
_FEWEST = 4  # complete trials for importances
_STATUS: dict[str, Status] = {"COMPLETE": "complete", "PRUNED": "stopped", "FAIL": "failed", "RUNNING": "running"}


def check_installed() -> None:
    """Raise ConfigError if optuna is not installed. Imports nothing."""
    environment.need("optuna", "anmi tune", environment.install("tune"))


class Trials:
    """The trials of a campaign, in Optuna's storage below its root; written by one process (`campaign.alone`)."""

    def __init__(self, campaign: Campaign) -> None:
        self._campaign = campaign
        self._journal = _Journal(campaign.store, f"{campaign.folder}/optuna.json")

    @cached_property
    def _study(self) -> optuna.Study:
        check_installed()
        import optuna

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        storage = optuna.storages.JournalStorage(cast(Any, self._journal))
        sampler = optuna.samplers.RandomSampler()  # never asked: points are chosen by `_ask`
        if self._journal.logs:
            return optuna.load_study(study_name=self._campaign.fingerprint, storage=storage, sampler=sampler)
        return optuna.create_study(
            study_name=self._campaign.fingerprint, storage=storage, sampler=sampler, direction="maximize"
        )

    def read(self) -> list[Trial]:
        """Return all trials by number, the last attempt of retried ones."""
        if not self._journal.logs:
            return []
        found = {one.user_attrs["run"]: one for one in self._study.get_trials(deepcopy=False)}
        return sorted(map(_trial, found.values()), key=lambda trial: trial.number)

    def next(self) -> Trial | None:
        """Begin a trial at a new valid point of the space; None if all were tried.

        Raises ConfigError if no point is valid.
        """
        campaign = self._campaign
        known = self._study.get_trials()
        taken = {one.user_attrs["trained"] for one in known}
        number, problem = len(known), None
        for attempt in range(_TRIES):
            asked = self._ask(attempt, known)
            _, settings = campaign.config.drawn(partial(_suggest, asked))
            run = campaign.run_name(f"t{number:03d}")
            try:
                experiment = campaign.experiment(settings, run)
                check_shared(campaign, experiment, settings)
            except ConfigError as error:
                problem = error
                continue
            train = resolve(experiment, campaign.content)[TRAIN].fingerprint
            if train not in taken:
                return self._begin(asked.params, asked.distributions, run, train)
        if problem is not None and not taken:
            raise problem
        return None

    def _ask(self, attempt: int, known: Sequence[optuna.trial.FrozenTrial]) -> optuna.Trial:
        """Ask a sampler seeded by the trial's number, so that the point does not depend on restarts."""
        import optuna

        config = self._campaign.config
        seed = derived_seed("tune", config.seed, len(known), attempt) % 2**32
        if len(known) < config.random:
            return optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=seed)).ask()
        sampler = optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
        study = optuna.create_study(direction="maximize", sampler=sampler)
        study.add_trials(known)
        return study.ask()

    def _begin(
        self,
        params: Mapping[str, Any],
        distributions: Mapping[str, optuna.distributions.BaseDistribution],
        run: str,
        train: str,
    ) -> Trial:
        from optuna.trial import TrialState, create_trial

        self._study.add_trial(
            create_trial(
                state=TrialState.RUNNING,
                params=dict(params),
                distributions=dict(distributions),
                user_attrs={"run": run, "trained": train},
            )
        )
        return _trial(self._study.get_trials(deepcopy=False)[-1])

    def measured(self, number: int, share: float, dev: float, seconds: float) -> None:
        """Record a dev point of a trial, once each, and its run time."""
        step = round(_STEPS * share)
        if step not in self._study.get_trials(deepcopy=False)[number].intermediate_values:
            self._handle(number).report(dev, step)
        self._handle(number).set_user_attr("seconds", seconds)

    def end(self, number: int, status: Status, dev: float | None, message: str | None, seconds: float) -> Trial:
        """Record the end of a trial."""
        from optuna.trial import TrialState

        self._handle(number).set_user_attr("seconds", seconds)
        self._handle(number).set_user_attr("message", message)
        state = next(state for state, ours in _STATUS.items() if ours == status)
        self._study.tell(number, dev, TrialState[state])
        return _trial(self._study.get_trials(deepcopy=False)[number])

    def _handle(self, number: int) -> optuna.Trial:
        import optuna

        return optuna.Trial(self._study, number)  # a journal of one study: its trials' ids are their numbers

    def retry_failed(self) -> None:
        """Begin failed trials again with the same settings."""
        for trial in self.read():
            if trial.status == "failed":
                known = self._study.get_trials(deepcopy=False)[trial.number]
                self._begin(known.params, known.distributions, trial.run, trial.train)

    def importances(self) -> dict[str, float]:
        """Return Optuna's importances of the parameters for dev, shares of 1, largest first.

        Empty if fewer than four trials are complete, or all have the same dev.
        """
        import optuna

        devs = [trial.dev for trial in self.read() if trial.dev is not None]
        if len(devs) < _FEWEST or len(set(devs)) < 2:
            return {}
        shares = optuna.importance.get_param_importances(self._study)
        return dict(sorted(shares.items(), key=lambda item: -item[1]))


class _Journal:
    """The backend of Optuna's journal: one document of the store, published whole after each change."""

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path
        remedy = f"delete {store.where(path)}: trials are chosen anew, and trained models found again"
        self.logs: list[dict[str, Any]] = store.read_json(path, remedy) or []

    def read_logs(self, log_number_from: int) -> list[dict[str, Any]]:
        """Return the entries from a number on."""
        return self.logs[log_number_from:]

    def append_logs(self, logs: list[dict[str, Any]]) -> None:
        """Add entries."""
        self.logs += json.loads(json.dumps(logs, sort_keys=True))
        self._store.publish_json(self._path, self.logs)


def _trial(frozen: optuna.trial.FrozenTrial) -> Trial:
    status = _STATUS[frozen.state.name]
    return Trial(
        number=frozen.number,
        status=status,
        params=frozen.params,
        curve=tuple((step / _STEPS, dev) for step, dev in sorted(frozen.intermediate_values.items())),
        dev=frozen.value if status == "complete" else None,
        seconds=frozen.user_attrs.get("seconds", 0.0),
        message=frozen.user_attrs.get("message"),
        run=frozen.user_attrs["run"],
        train=frozen.user_attrs["trained"],
    )


def check_space(campaign: Campaign) -> None:
    """Raise ConfigError if a bound or a value of the space is never valid, or changes a stage before mine.

    A value may need others (debiased needs a bound), so it is tried in random points of the space.
    """
    check_installed()
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(sampler=optuna.samplers.RandomSampler(seed=campaign.config.seed % 2**32))
    for point in campaign.config.corners():
        problem: ConfigError | None = None
        for _ in range(_DRAWS):
            study.enqueue_trial(point)
            _, settings = campaign.config.drawn(partial(_suggest, study.ask()))
            try:
                experiment = campaign.experiment(settings, campaign.base.name)
            except ConfigError as error:
                problem = problem or error
                continue
            check_shared(campaign, experiment, settings)
            break
        else:
            assert problem is not None
            name, value = list(point.items())[-1]
            message = f"{name} = {value!r} is valid nowhere in the space: {problem.message}"
            raise ConfigError(
                message, f"{campaign.place}, space", "leave it out, or search the settings that it needs too"
            )


def _suggest(trial: optuna.Trial, name: str, domain: Domain) -> Any:
    if isinstance(domain, Choice):
        return trial.suggest_categorical(name, list(domain.labels))
    if isinstance(domain, Integer):
        return trial.suggest_int(name, domain.low, domain.high)
    return trial.suggest_float(name, domain.low, domain.high, log=isinstance(domain, LogUniform))
