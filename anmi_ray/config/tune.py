"""Settings of a tuning campaign: an experiment, the space that is searched around it, and how it is searched.

A space names settings of mine and train by their dotted names; every trial shares all stages before mine. `load` reads
a campaign's file, and every mistake becomes one ConfigError.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BeforeValidator, Field, field_validator

from anmi_ray.config.base import Kind, Settings, Word
from anmi_ray.config.load import apply, check_setting, put, read, read_experiment, run_name, validate_as
from anmi_ray.core.errors import ConfigError

GROUPS = ("mine", "train")  # whose settings a trial may change
# what trials are compared by, and what repeats vary
_SHARED = {
    "train.seed": "the repeats of the best vary it",
    "train.dev_points": "trials are compared there",
    "train.dev_depth": "trials are compared on these documents",
}
_REMEDY = "`anmi init --example tune-quickstart` writes an example"


Number = TypeVar("Number", int, float)
_LIMIT = 2**53  # samplers compute in floating point
Whole = Annotated[int, Field(ge=-_LIMIT, le=_LIMIT)]
Real = Annotated[float, Field(ge=-_LIMIT, le=_LIMIT)]
Positive = Annotated[float, Field(gt=0, le=_LIMIT)]


class Bounds(Kind[Word], Generic[Word, Number]):
    """Base of what is searched between two numbers."""

    low: Number
    """The least value."""
    high: Number
    """The largest value."""

    def _problems(self) -> Iterator[str]:
        if self.low >= self.high:
            yield f"low is {self.low} and high {self.high}: low must be smaller"


class Uniform(Bounds[Literal["uniform"], Real]):
    """A number between two, all alike."""


class LogUniform(Bounds[Literal["loguniform"], Positive]):
    """A number between two, alike in its logarithm."""


class Integer(Bounds[Literal["integer"], Whole]):
    """A whole number between two, both included, all alike."""


class Choice(Kind[Literal["choice"]]):
    """One of several values, of any type that the setting takes."""

    values: tuple[Any, ...] = Field(min_length=2)
    """The values."""

    @field_validator("values")
    @classmethod
    def _distinct(cls, values: tuple[Any, ...]) -> tuple[Any, ...]:
        if len({label(value) for value in values}) < len(values):
            raise ValueError(f"a value is listed twice in {list(values)}")
        return values

    @property
    def labels(self) -> dict[str, Any]:
        """The values by what they are called."""
        return {label(value): value for value in self.values}


def label(value: Any) -> str:
    """Name of a value."""
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


Domain = Uniform | LogUniform | Integer | Choice
_DOMAINS = (Uniform, LogUniform, Integer, Choice)
KINDS: dict[str, type[Domain]] = {"uniform": Uniform, "loguniform": LogUniform, "integer": Integer, "choice": Choice}


def _domain_or_value(value: Any) -> Any:
    """In an option a setting has a value, or a domain: what has the `kind` of one."""
    kind = value.get("kind") if isinstance(value, dict) else None
    return KINDS[kind].model_validate(value) if isinstance(kind, str) and kind in KINDS else value


OptionValue = Annotated[Any, BeforeValidator(_domain_or_value)]


class Options(Kind[Literal["options"]]):
    """One of several groups of settings, such as a mining rule with its parameters.

    An option's settings are applied in order; a value with a `kind` is searched if the option is chosen.
    """

    options: dict[str, dict[str, OptionValue]] = Field(min_length=2)
    """The groups, by any name."""


Dimension = Annotated[Uniform | LogUniform | Integer | Choice | Options, Field(discriminator="kind")]
Ask = Callable[[str, Domain], Any]  # (name of a parameter, its domain) -> a value of it, of a Choice its label


class AshaConfig(Settings):
    """Asynchronous successive halving stops trials that are not among the best at a rung (Li et al. 2020).

    Rungs are at grace, grace·reduction, grace·reduction², … of a trial's steps. A trial continues if its dev measure is
    in the best 1/reduction of the trials that reached the rung before.
    """

    grace: float = Field(default=0.25, gt=0, lt=1)
    """Share of its steps before which no trial is stopped."""
    reduction: float = Field(default=2.0, gt=1, le=16)
    """Keep one trial in `reduction` at a rung."""


class CampaignConfig(Settings):
    """A campaign: what is tuned, where it is searched, how many trials there are, and what becomes of the best."""

    # what a resumed campaign may change; the experiment counts by its stages' fingerprints
    how_only = frozenset({"name", "experiment", "settings", "trials", "repeats", "max_concurrent"})

    name: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,55}$")
    """Name of the campaign and its runs."""
    experiment: dict[str, Any]
    """Settings of the experiment, or the path of a file that has them."""
    settings: dict[str, Any] = Field(default_factory=dict)
    """By dotted name, what all trials have otherwise than the experiment's file."""
    space: dict[str, Dimension] = Field(min_length=1)
    """By dotted name of a setting of mine or train what is searched; options by any name."""
    trials: int = Field(default=16, ge=1, le=10_000)
    """Number of trials; if it is raised later, the campaign continues."""
    seed: int = Field(default=0, ge=0)
    """Seed of the search and of the repeats."""
    random: int = Field(default=8, ge=1)
    """Trials drawn at random, before the sampler (TPE) learns from those that ended."""
    asha: AshaConfig | None = AshaConfig()
    """Early stopping; null: every trial runs to its end."""
    repeats: int = Field(default=3, ge=0, le=100)
    """Fresh seeds that the best and the default are trained with at the end."""
    max_concurrent: int = Field(default=1, ge=1)
    """Trials at once; with one, a campaign of the same seed has the same trials again."""

    def drawn(self, ask: Ask) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return one point of the space: (parameters by name, settings by dotted name), with the answers of `ask`."""
        params: dict[str, Any] = {}
        settings: dict[str, Any] = {}
        for name, setting, value, option in self._parts():
            if not params.items() >= option.items():
                continue
            if isinstance(value, _DOMAINS):
                params[name] = ask(name, value)
                value = value.labels[params[name]] if isinstance(value, Choice) else params[name]
            if setting:
                settings[setting] = value
        return params, settings

    def corners(self) -> Iterator[dict[str, Any]]:
        """Yield points of one parameter: both ends of each interval, each value of each choice, by parameter name.

        A parameter of an option comes with that option.
        """
        for name, _, domain, option in self._parts():
            if isinstance(domain, _DOMAINS):
                ends = domain.labels if isinstance(domain, Choice) else (domain.low, domain.high)
                yield from ({**option, name: value} for value in ends)

    def values(self) -> Iterator[tuple[str, Any]]:
        """Yield (dotted name of a setting, a value that the space gives it), except values of intervals."""
        for _, setting, given, _ in self._parts():
            if isinstance(given, Choice):
                yield from ((setting, value) for value in given.values if setting)
            elif setting and not isinstance(given, _DOMAINS):
                yield setting, given

    def tuned(self) -> Iterator[str]:
        """Yield the dotted names of all settings that a trial may change."""
        yield from (setting for _, setting, _, _ in self._parts() if setting)

    def _parts(self) -> Iterator[tuple[str, str, Any, dict[str, str]]]:
        """Yield (parameter, its setting, its domain or value, the option that has it); options have no setting."""
        for name, dimension in self.space.items():
            if not isinstance(dimension, Options):
                yield name, name, dimension, {}
                continue
            yield name, "", Choice(kind="choice", values=tuple(dimension.options)), {}
            for option, settings in dimension.options.items():
                for setting, given in settings.items():
                    yield f"{name}={option}: {setting}", setting, given, {name: option}


def load(path: str | Path, overrides: Iterable[str] = ()) -> CampaignConfig:
    """Read a campaign's file and apply `key=value` overrides. Raises ConfigError.

    A key is the campaign's (trials, space.NAME, …) or the experiment's (train.max_steps, execution.root, …); those of
    both (name, seed) are the campaign's, the experiment's are called experiment.name and experiment.seed.
    """
    place, content = str(path), read(path)
    content.setdefault("name", run_name(path))
    _read_experiment(content, place)
    own = CampaignConfig.model_fields.keys()
    for override in overrides:
        key, _, value = override.partition("=")
        first, _, name = key.strip().partition(".")
        if first == "settings":  # those of the file are in the experiment already
            remedy = "give each by its own name, such as train.max_steps=7"
            raise ConfigError("settings cannot be given on the command line", "command line", remedy)
        if first == "space" and name and isinstance(space := content.setdefault("space", {}), dict):
            apply(given := {}, f"value={value}")
            space[name] = given["value"]  # the whole name, dots and all
        else:
            apply(content if first in own else content["experiment"], override)
    config = validate_as(CampaignConfig, content, place, _REMEDY)
    for name in config.tuned():
        _check_tuned(name, f"{place}, space")
    return config


def _read_experiment(content: dict[str, Any], place: str) -> None:
    """Replace the path of the experiment by its settings, changed by `settings`."""
    experiment = content.get("experiment")
    if isinstance(experiment, str):
        content["experiment"] = read_experiment(experiment)
    elif isinstance(experiment, dict):
        content["experiment"] = {"name": content["name"], **deepcopy(experiment)}
    elif "space" not in content and not CampaignConfig.model_fields.keys() >= content.keys():
        message = "this file is an experiment's (it has no space), and what is wanted is a campaign's"
        remedy = f"carry it out with anmi run {shlex.quote(place)}, or give a campaign's file: {_REMEDY}"
        raise ConfigError(message, place, remedy)
    else:
        raise ConfigError("experiment is missing", place, "give the path of an experiment's file, or its settings")
    settings = content.get("settings") or {}
    if not isinstance(settings, Mapping):
        raise ConfigError("settings must be dotted names with values", place, _REMEDY)
    for name, value in settings.items():
        put(content["experiment"], str(name), deepcopy(value))


def _check_tuned(name: str, place: str) -> None:
    """Raise ConfigError where no trial may change this setting."""
    if name == "recipe":
        return
    check_setting(name, place)
    first = name.split(".")[0]
    if first not in GROUPS or name in GROUPS:
        why = f"{name} is not a setting of mine or train, and what comes before mine is made once for all trials"
        raise ConfigError(why, place, f"fix it for all: settings: {{{name}: …}}; each value is then a campaign")
    if name in _SHARED:
        raise ConfigError(f"{name} cannot be searched: {_SHARED[name]}", place, "fix it for all, in settings")
