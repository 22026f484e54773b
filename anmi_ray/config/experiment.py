"""The whole configuration of an experiment: one frozen group of settings per stage, and how to carry it out.

`load` reads YAML, applies dotted overrides, and validates once; every mistake becomes one ConfigError that names the
setting, what is allowed and the nearest known name.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, Field, ValidationError, model_validator

from anmi_ray.config.base import Settings
from anmi_ray.config.compare import CompareConfig
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.evaluate import EvaluateConfig, RerankConfig
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.mine import MineConfig
from anmi_ray.config.paths import FOLDER
from anmi_ray.config.plan import PlanConfig
from anmi_ray.config.rate import RateConfig
from anmi_ray.config.recipes import RECIPES, clear, fill
from anmi_ray.config.retrieve import RetrieveConfig
from anmi_ray.config.rules import NAMED
from anmi_ray.config.train import TrainConfig, offload_needs
from anmi_ray.core.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)


class Experiment(Settings):
    """Everything one run needs to know. `name`, `execution` and `plan` change no result; other groups are a stage's."""

    name: str = Field(default="experiment", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,80}$", description="name of the run")
    seed: int = Field(default=0, ge=0, description="root of every derived seed")
    recipe: str | None = Field(
        default=None,
        description=f"{', '.join(RECIPES)}: fills the settings of mine and train that it is about where these are not "
        "given",
    )
    corpus: CorpusConfig = CorpusConfig()
    retrieve: RetrieveConfig = RetrieveConfig()
    compare: CompareConfig = CompareConfig()
    judge: JudgeConfig = JudgeConfig()
    distill: DistillConfig = DistillConfig()
    rate: RateConfig = RateConfig()
    mine: MineConfig = MineConfig()
    train: TrainConfig = TrainConfig()
    rerank: RerankConfig = RerankConfig()
    evaluate: EvaluateConfig = EvaluateConfig()
    execution: ExecutionConfig = Field(default_factory=ExecutionConfig)  # its root depends on the working directory
    plan: PlanConfig = PlanConfig()

    @model_validator(mode="before")
    @classmethod
    def _of_recipe(cls, data: Any) -> Any:
        return fill(data) if isinstance(data, dict) and data.get("recipe") is not None else data

    @model_validator(mode="after")
    def _stages_fit_together(self) -> Experiment:
        if self.compare.design == "k-regular" and self.compare.degree >= self.retrieve.candidates:
            raise ValueError(
                f"compare.degree is {self.compare.degree}, but a query has retrieve.candidates = "
                f"{self.retrieve.candidates} documents to compare: lower compare.degree below it, or raise "
                "retrieve.candidates"
            )
        if self.rerank.depth > self.retrieve.depth:
            raise ValueError(
                f"rerank.depth is {self.rerank.depth}, but a ranking holds retrieve.depth = {self.retrieve.depth} "
                "documents: lower rerank.depth or raise retrieve.depth"
            )
        partners = set(self.evaluate.over(self.retrieve.retrievers).partners)
        if strangers := sorted(partners - {"hybrid", *self.retrieve.retrievers}):
            raise ValueError(
                f"evaluate.partners names {', '.join(strangers)}, but retrieve.retrievers is "
                f"{', '.join(self.retrieve.retrievers)}: name those, or hybrid"
            )
        for config in (self.train, *([self.distill] if self.judge.distilled else [])):
            if wrong := offload_needs(self.execution.train.offload, config):
                raise ValueError(f"execution.train.offload: {wrong}")
        if self.judge.target_dollars is not None and self.execution.gpu_dollars_hour is None:
            raise ValueError("judge.target_dollars needs execution.gpu_dollars_hour, the price of a GPU for an hour")
        judges = [judge.name for judge in self.judge.judges]
        if strangers := sorted(set(self.rate.judge_weights) - set(judges)):
            raise ValueError(
                f"rate.judge_weights names {', '.join(strangers)}, but the panel (judge.judges) is {', '.join(judges)}"
            )
        return self

    def changed(self, **settings: Any) -> Experiment:
        """This experiment with other settings, given as to `anmi_ray.load`. Raises ConfigError."""
        return with_settings(self.model_dump(exclude_unset=True), settings, f"experiment {self.name}")

    @property
    def ensemble(self) -> JudgeConfig | None:
        """The judges that are asked about a sample of pairs where the panel holds a judge distilled from them."""
        return self.distill.judge if self.judge.distilled else None

    @property
    def simulated(self) -> tuple[str, JudgeConfig] | None:
        """The stage that asks simulated judges, and its panel; None where no judge behind the ratings is simulated."""
        panels = (("judge", self.judge), ("label", self.ensemble))
        return next(((stage, panel) for stage, panel in panels if panel is not None and panel.simulated), None)


def load(path: str | Path, overrides: Iterable[str] = ()) -> Experiment:
    """Read a YAML file, apply `key=value` overrides (dotted keys, YAML values), and validate.

    Relative paths inside the file are relative to the working directory. Raises ConfigError.
    """
    content = read(path)
    content.setdefault("name", run_name(path))
    for override in overrides:
        apply(content, override)
    return validate(content, str(path))


def read(path: str | Path) -> dict[str, Any]:
    """The settings that a YAML file holds, not validated yet. Raises ConfigError."""
    place = str(path)
    try:
        content = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            "no such configuration file", place, "give the path of a YAML file; see jobs/configs/"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot be read: {error}", place, "give the path of a YAML file") from None
    except yaml.YAMLError as error:
        raise ConfigError(f"not valid YAML: {error}", place, "correct the line it names") from None
    if content is None:
        content = {}
    if not isinstance(content, dict):
        raise ConfigError("must hold settings (key: value), not a list or a single value", place, "see jobs/configs/")
    return content


def run_name(path: str | Path) -> str:
    """What a run is called whose file does not name it: as the file."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem)


def validate(content: Mapping[str, Any], place: str, folder: str | None = None) -> Experiment:
    """Validate settings. Raises ConfigError with every mistake, one line each, and the nearest known key.

    Relative paths are relative to `folder`; None: the working directory.
    """
    every = "`anmi config jobs/configs/quickstart.yaml` prints every setting with its value"
    return validate_as(Experiment, content, place, every, folder)


def validate_as(
    model: type[_Model], content: Mapping[str, Any], place: str, remedy: str, folder: str | None = None
) -> _Model:
    """`validate` for any group of settings; `remedy` says where to read what it may hold."""
    try:
        return model.model_validate(content, context={FOLDER: folder})
    except ValidationError as error:
        lines = [_explain(detail, model) for detail in error.errors(include_url=False)]
        message = lines[0] if len(lines) == 1 else "\n  " + "\n  ".join(lines)
        raise ConfigError(message, place, remedy) from None


def apply(content: dict[str, Any], override: str) -> None:
    """Put one `key=value` (dotted key, YAML value) into settings that are not validated yet. Raises ConfigError."""
    key, sign, raw = override.partition("=")
    if not sign or not key.strip():
        raise ConfigError(f"'{override}' is not an override", "command line", "write key=value, such as train.epochs=2")
    try:
        value = yaml.safe_load(raw) if raw else None
    except yaml.YAMLError:
        raise ConfigError(f"the value of '{override}' is not YAML", "command line", "quote it as in YAML") from None
    _put(content, key, value)


def with_settings(content: dict[str, Any], settings: Mapping[str, Any], place: str) -> Experiment:
    """Settings that are not validated yet, changed by others, by dotted name or a mapping for a group; then validated.

    Raises ConfigError as `validate`.
    """
    for name, value in settings.items():
        group = Experiment.model_fields[name].annotation if name in Experiment.model_fields else None
        if isinstance(value, Mapping) and _models_in(group):
            for member, inner in value.items():
                _put(content, f"{name}.{member}", inner)
        else:
            _put(content, name, value)
    return validate(content, place)


def _put(content: dict[str, Any], key: str, value: Any) -> None:
    """Put a value under a dotted key into settings that are not validated yet. Raises ConfigError."""
    node: Any = content
    *parents, last = key.strip().split(".")
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else node[_position(node, parent, key)]
        if not isinstance(node, dict | list):
            raise ConfigError(f"'{key}': {parent} is a single value, not a group", "command line", "see `anmi config`")
    at: Any = last if isinstance(node, dict) else _position(node, last, key)
    node[at] = value
    if key.strip() == "recipe":
        clear(content, value)
    if key.strip() == "mine.rule" and isinstance(node, dict):
        for phase in NAMED.get(str(value), {}):  # what is said later wins, here over what the file says in detail
            node.pop(phase, None)


def check_setting(name: str, place: str) -> None:
    """Raise ConfigError where no setting of an experiment has this dotted name; it says the nearest that are."""
    parts = name.split(".")
    for depth, part in enumerate(parts):
        if part in _fields_at(parts[:depth]) or (part.isdecimal() and depth):
            continue
        known = list(_dotted(Experiment, ""))
        near = difflib.get_close_matches(name, known, n=3, cutoff=0.6)
        near = list(dict.fromkeys([*near, *(one for one in known if one.endswith(f".{parts[-1]}"))]))
        hint = f"did you mean {' or '.join(near[:3])}?" if near else "`anmi config` prints every setting"
        raise ConfigError(f"no setting is called {name}", place, hint)


def _dotted(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """The dotted names of all settings below a group, of every form where it has several."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for below in _models_in(field.annotation):
            yield from _dotted(below, f"{prefix}{name}.")


def _position(members: list[Any], word: str, key: str) -> int:
    """Where in a list a part of a dotted key points, such as the 0 of judge.judges.0.name."""
    if word.isdecimal() and int(word) < len(members):
        return int(word)
    raise ConfigError(
        f"'{key}': the file lists {len(members)} there, and {word} is none of their numbers from 0",
        "command line",
        "see `anmi config`",
    )


def _explain(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    location = [str(part) for part in detail["loc"]]
    name = ".".join(location) or "the configuration"
    if detail["type"] == "extra_forbidden":
        known = sorted(_fields_at(location[:-1], model))
        near = difflib.get_close_matches(location[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {'.'.join([*location[:-1], near[0]])}?" if near else f"known here: {', '.join(known)}"
        return f"unknown setting {name}; {hint}"
    if detail["type"] == "value_error":
        said = str(detail["ctx"]["error"])
        field = said.partition(":")[0]
        within = location and field in _fields_at(location, model)
        return f"{name}.{said}" if within else f"{name}: {said}" if location else said
    given = detail.get("input")
    shown = f" (given: {given!r})" if isinstance(given, str | int | float | bool | None) else ""
    return f"{name}: {detail['msg']}{shown}"


def _fields_at(location: list[str], model: type[BaseModel] = Experiment) -> set[str]:
    """Names of the settings in the group at `location`; for a choice of groups, those of all its forms."""
    models: list[type[BaseModel]] = [model]
    for part in location:
        models = (
            [found for model in models for found in _models_in(model.model_fields[part].annotation)]
            if all(part in model.model_fields for model in models)
            else models
        )
    return {field for model in models for field in model.model_fields}


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in getattr(annotation, "__args__", ()) for found in _models_in(argument)]
