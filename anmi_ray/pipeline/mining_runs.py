"""Runs that differ only in mining: the settings of a run under another rule, and `anmi mine`."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from anmi_ray.config.base import Settings
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import apply, validate, validate_record
from anmi_ray.config.mine import MineConfig
from anmi_ray.config.rules import NAMED, nearest
from anmi_ray.core import redaction
from anmi_ray.core.errors import ConfigError
from anmi_ray.mining.mixture import Mixture
from anmi_ray.pipeline import run as main
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.stages import MINE, RATE, TRAIN
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import ray_session
from anmi_ray.store import Artifact, Store, runs
from anmi_ray.store.runs import find_run

PLACE = "command line"
_PHASES = (["allow"], ["weigh"], ["sample"])
_MAY_CHANGE = ("mine", "execution", "name")


def under_rule(mine: MineConfig, rule: str | None) -> dict[str, Any]:
    """Return settings of mine, not validated, under a named composition; phases that it does not name stay.

    Every rule is a group with what differs from its defaults, so that overrides can change its parameters.
    """
    found = mine.model_dump(mode="json", exclude_defaults=True)
    named: Mapping[str, Any] = {} if rule is None else NAMED[rule]
    found |= {} if rule is None else {"rule": rule}
    found["allow"] = [_group(one) for one in named.get("allow", mine.allow)]
    return found | {phase: _group(named.get(phase, getattr(mine, phase))) for phase in ("weigh", "sample")}


def _group(rule: Settings | str | Mapping[str, Any]) -> dict[str, Any]:
    if isinstance(rule, Settings):
        short = rule.model_dump(mode="json", exclude_defaults=True)
        # some forms have their own defaults, which the short notation would restore
        return short if type(rule).model_validate(short) == rule else rule.model_dump(mode="json")
    return {"rule": rule} if isinstance(rule, str) else dict(rule)


def from_run(name: str, root: str, rule: str | None, overrides: Iterable[str]) -> Experiment:
    """Return the settings of a finished run under another rule and overrides of mine, as another run.

    Its name is `<name>-<rule>` with the overrides, if any, unless name=… is one of them.
    Raises ConfigError for an unknown run or rule, or overrides that change more than mining.
    """
    given = _overrides(overrides)
    rule = given.pop("mine.rule", rule)
    if rule is None and not any(key.startswith("mine.") for key in given):
        raise ConfigError("nothing would change", PLACE, "give --rule NAME, or settings such as mine.negatives=8")
    if rule is not None and rule not in NAMED:
        what = f"no composition of rules is called {redaction.quoted(rule)}"
        raise ConfigError(what, PLACE, nearest(rule, NAMED))
    store, record = find_run(name, root)
    before = _recorded(record, store.where(f"runs/{name}.json"))
    content: dict[str, Any] = {"execution": {"root": root}, "mine": under_rule(before.mine, rule)}
    if rule is None and any(key.split(".")[1:2] in _PHASES for key in given):
        content["mine"].pop("rule", None)  # the rules differ from the named ones now
    words = [f"{key.removeprefix('mine.')}-{value}" for key, value in given.items() if key.startswith("mine.")]
    words = [re.sub(r"[^A-Za-z0-9.]+", "-", word).strip("-") for word in words]
    content["name"] = "-".join([name, *([rule] if rule else []), *words])
    for key, value in given.items():
        apply(content, f"{key}={value}")
    if content["name"] == name:
        raise ConfigError(f"name={name} is the run itself, whose record would change", PLACE, "give another name")
    changed = validate(content, PLACE)
    before = before.model_copy(update={"execution": changed.execution})
    _check_rated(before, record, store)
    return before.model_copy(update={"mine": changed.mine, "name": changed.name, "recipe": None})


def _recorded(record: Mapping[str, Any], place: str) -> Experiment:
    """The settings of a run. Raises ConfigError if this version does not know some of them."""
    default = CorpusConfig().model_dump(mode="json")
    corpus = record["config"]["corpus"]
    # a record has every setting, but a corpus may only set those of its own reader
    given = {name: value for name, value in corpus.items() if name not in default or value != default[name]}
    try:
        return validate_record({**record["config"], "corpus": given}, place)
    except ConfigError as error:
        remedy = "the run is of another version: run it again with this one (anmi run CONFIG)"
        raise ConfigError(error.message, place, remedy) from None


def _overrides(overrides: Iterable[str]) -> dict[str, str]:
    """Values by key, the last one given. Raises ConfigError for a key that is not mining's."""
    given: dict[str, str] = {}
    for override in overrides:
        apply({}, override)  # check its form
        key, _, value = override.partition("=")
        given[key.strip()] = value
        if key.strip().partition(".")[0] not in _MAY_CHANGE:
            raise ConfigError(
                f"{key.strip()} is not a setting of mine, and the run's ratings stay as they are",
                PLACE,
                f"run it with that setting: anmi run CONFIG {shlex.quote(override)}",
            )
    return given


def _check_rated(experiment: Experiment, record: Mapping[str, Any], store: Store) -> None:
    """Raise ConfigError unless the run's ratings exist and are those of its settings."""
    place, name = store.where(f"runs/{record['name']}.json"), record["name"]
    if RATE not in record["stages"]:
        raise ConfigError(
            "the run has no ratings: stage rate is not complete",
            place,
            f"anmi run CONFIG --until rate, with the settings of {name}",
        )
    for stage, resolved in resolve(experiment).items():
        known = record["stages"].get(stage, {}).get("fingerprint")
        if resolved.fingerprint != known:
            raise ConfigError(
                f"stage {stage} would not be what it was: the collection, a file or the stage's version has changed",
                place,
                "run it again (anmi run CONFIG), then choose its negatives",
            )
        if resolved.artifact(store).manifest() is None:
            raise ConfigError(
                f"the artifact of stage {stage} is gone",
                store.where(f"artifacts/{stage}/{resolved.fingerprint}"),
                "run it again: anmi run CONFIG",
            )
        if stage == RATE:
            return


def from_run_by_rule(name: str, root: str, rules: str | None, overrides: Iterable[str]) -> list[Experiment]:
    """Apply `from_run` to each of several rules, separated by commas."""
    given = list(overrides)
    wanted = dict.fromkeys(rule.strip() for rule in rules.split(",")) if rules is not None else [None]
    experiments = [from_run(name, root, rule, given) for rule in wanted]
    if len({experiment.name for experiment in experiments}) < len(experiments):
        raise ConfigError("name=… would name the runs of several rules", PLACE, "leave it out, or give one rule")
    return experiments


def mine(experiments: Sequence[Experiment], reporter: Reporter | None = None) -> list[dict[str, Any]]:
    """Choose the negatives of experiments made by `from_run`, in one Ray session.

    Return JSON values for each: run, composition of the rules, artifact (its fingerprint), flows, and the figures of
    mining.summary.

    A record that has this mining already stays as it is. Raises ConfigError if a name belongs to a run that was trained
    on other negatives.
    """
    mined: list[dict[str, Any]] = []
    with ExitStack() as session:
        for experiment in experiments:
            store, item = Store(experiment.execution.root), resolve(experiment)[MINE]
            artifact = item.artifact(store)
            stages = (runs.recorded(store, experiment.name) or {"stages": {}})["stages"]
            if stages.get(MINE, {}).get("fingerprint") != item.fingerprint or artifact.manifest() is None:
                if TRAIN in stages:
                    raise ConfigError(
                        "the name belongs to a run that trained a model on other negatives",
                        store.where(f"runs/{experiment.name}.json"),
                        "give another name with name=…",
                    )
                if len(experiments) > 1:
                    session.enter_context(ray_session(experiment.execution))
                main.run(experiment, reporter, last=MINE)
            mined.append(_mined(experiment, artifact))
    return mined


def _mined(experiment: Experiment, artifact: Artifact) -> dict[str, Any]:
    found: dict[str, Any] = {"run": experiment.name, "composition": experiment.mine.composition}
    found |= {"artifact": artifact.fingerprint, "flows": (artifact.manifest() or {"flows": []})["flows"]}
    found |= artifact.read_json("summary.json")
    if (fitted := artifact.read_json("mixture.json")) is not None:
        mixture = Mixture.from_dict(fitted)
        found["thresholds"] = [at for at in mixture.thresholds if at is not None]
        found["mixture"] = mixture.summary()
    return found
