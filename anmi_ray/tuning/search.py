"""Where a campaign's next trial is, by Optuna: a function of the seed, its number and the trials that are known.

Nothing is kept between two questions, so a campaign that was killed asks for trial n what it would have asked anyway.
The only module that imports optuna, inside functions: it comes with the part `tune`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from anmi_ray.config.tune import CampaignConfig, Choice, Domain, Integer, LogUniform
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import rng
from anmi_ray.core.identity import seed as derived_seed
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.stages import MINE, TRAIN
from anmi_ray.tuning.campaign import Campaign, Trial, check_shared

if TYPE_CHECKING:
    import numpy as np
    import optuna

_TRIES = 100  # points drawn for a trial, until one is new and its settings fit together
_DRAWS = 100  # random points in which a value must fit once


class Exhausted(Exception):  # noqa: N818
    """The space has no point left that was not tried."""


def check_installed() -> None:
    """Raise ConfigError where optuna is not there. Imports nothing."""
    environment.need("optuna", "anmi tune", environment.install("tune"))


def check_space(campaign: Campaign) -> None:
    """Raise ConfigError where an end or a value of the space fits nowhere in it, or asks for a stage before mine anew.

    A value may need others (debiased needs a bound), so it is put into random points of the space until it fits.
    """
    for number, (name, value) in enumerate(campaign.config.corners()):
        problem: ConfigError | None = None
        for draw in range(_DRAWS):
            _, settings = campaign.config.drawn(_random(name, value, rng("space", campaign.config.seed, number, draw)))
            try:
                experiment = campaign.experiment(settings, campaign.base.name)
            except ConfigError as error:
                problem = problem or error
                continue
            check_shared(campaign, experiment, settings)
            break
        else:
            assert problem is not None
            message = f"{name} = {value!r} fits nowhere in the space: {problem.message}"
            raise ConfigError(message, f"{campaign.place}, space", "leave it out, or search what it needs too")


def _random(parameter: str, value: Any, random: np.random.Generator) -> Callable[[str, Domain], Any]:
    """Draws at random, but `parameter` as this value (and the option that has it)."""

    def drawn(name: str, domain: Domain) -> Any:
        if name == parameter:
            return value
        if parameter.startswith(f"{name}="):
            return parameter.removeprefix(f"{name}=").partition(": ")[0]
        if isinstance(domain, Choice):
            return list(domain.labels)[random.integers(len(domain.values))]
        if isinstance(domain, Integer):
            return int(random.integers(domain.low, domain.high + 1))
        if isinstance(domain, LogUniform):
            return float(domain.low * (domain.high / domain.low) ** random.random())
        return float(random.uniform(domain.low, domain.high))

    return drawn


def suggest(campaign: Campaign, number: int, trials: Sequence[Trial]) -> Trial:
    """Trial `number`: a point that is new among `known`, with settings that fit together.

    The first `random` trials follow from the seed and their number alone, the others from the trials that ended too, in
    whatever order these are given. Raises Exhausted where no new point is found, ConfigError where none fits.
    """
    taken = {trial.fingerprints[TRAIN] for trial in trials}
    problem = None
    run = campaign.run_name(f"t{number:03d}")
    for attempt in range(_TRIES):
        params, settings = campaign.config.drawn(partial(_ask, _asked(campaign.config, number, attempt, trials)))
        try:
            experiment = campaign.experiment(settings, run)
            check_shared(campaign, experiment, settings)
        except ConfigError as error:
            problem = error
            continue
        resolved = resolve(experiment, campaign.content)
        made = {name: resolved[name].fingerprint for name in (MINE, TRAIN)}
        if made[TRAIN] not in taken:
            return Trial(number, run, params, made)
    raise problem if problem is not None and not taken else Exhausted


def _asked(config: CampaignConfig, number: int, attempt: int, trials: Sequence[Trial]) -> optuna.Trial:
    """A fresh study's next trial, after those of `known` that ended."""
    import optuna

    first = number < config.random
    seed = derived_seed("tune", config.seed, number, attempt) % 2**32
    sampler = (
        optuna.samplers.RandomSampler(seed=seed)
        if first
        else optuna.samplers.TPESampler(seed=seed, n_startup_trials=0, constant_liar=True)
    )
    study = _study(sampler)
    if not first:
        study.add_trials([_frozen(config, trial) for trial in sorted(trials, key=lambda trial: trial.number)])
    return study.ask()


def _study(sampler: optuna.samplers.BaseSampler | None = None) -> optuna.Study:
    """An empty study in memory, about which Optuna writes no lines."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(direction="maximize", sampler=sampler)


def _ask(trial: optuna.Trial, name: str, domain: Domain) -> Any:
    return trial._suggest(name, distribution(domain))  # pyright: ignore[reportPrivateUsage]


def distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    """A domain as Optuna has it."""
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution

    if isinstance(domain, Choice):
        return CategoricalDistribution(tuple(domain.labels))
    if isinstance(domain, Integer):
        return IntDistribution(domain.low, domain.high, log=domain.log)
    return FloatDistribution(domain.low, domain.high, log=isinstance(domain, LogUniform))


def _frozen(config: CampaignConfig, trial: Trial) -> optuna.trial.FrozenTrial:
    """A known trial as Optuna has it: stopped ones are pruned, with their curve; those under way have no value yet."""
    from optuna.trial import TrialState, create_trial

    states = {"complete": TrialState.COMPLETE, "stopped": TrialState.PRUNED, "failed": TrialState.FAIL}
    return create_trial(
        state=states.get(trial.status, TrialState.RUNNING),
        value=trial.dev if trial.status == "complete" else None,
        params=trial.params,
        distributions=_distributions(config, trial),
        intermediate_values={round(1000 * point.share): point.dev for point in trial.curve},
    )


def _distributions(config: CampaignConfig, trial: Trial) -> dict[str, optuna.distributions.BaseDistribution]:
    """Where each of a trial's parameters was drawn from."""
    distributions: dict[str, optuna.distributions.BaseDistribution] = {}

    def again(name: str, domain: Domain) -> Any:
        distributions[name] = distribution(domain)
        return trial.params[name]

    config.drawn(again)
    return distributions


def importance(
    config: CampaignConfig, params: Sequence[Mapping[str, Any]], values: Sequence[float]
) -> dict[str, float]:
    """How much each parameter that all points have tells good points from the others, as shares of 1, largest first.

    PED-ANOVA (Watanabe, Bansal and Hutter 2023), on points with their values, of which larger is better. Empty where
    nothing can be said: fewer than four points, or all alike.
    """
    import optuna

    common = [name for name in config.dimensions() if all(name in given for given in params)]
    if len(values) < 4 or len(set(values)) < 2 or not common:
        return {}
    study = _study()
    for given, value in zip(params, values, strict=True):
        trial = Trial(0, "", dict(given), {}, "complete", dev=value)
        study.add_trial(_frozen(config, trial))
    evaluator = optuna.importance.PedAnovaImportanceEvaluator()
    shares = optuna.importance.get_param_importances(study, evaluator=evaluator, params=common)
    return dict(sorted(shares.items(), key=lambda item: -item[1]))
