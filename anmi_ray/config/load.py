"""Settings from YAML: read, overridden by dotted keys, and validated once.

Every mistake becomes one ConfigError that names the setting, what is allowed and the nearest known name.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ValidationError

from anmi_ray.config.corpus import DOCUMENTS_ALONE
from anmi_ray.config.dropped import RENAMED, Dropped, dropped, without
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.paths import FOLDER
from anmi_ray.config.recipes import clear
from anmi_ray.config.rules import NAMED
from anmi_ray.core.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)


def load(path: str | Path, overrides: Iterable[str] = (), documents_alone: bool = False) -> Experiment:
    """Read a YAML file, apply `key=value` overrides (dotted keys, YAML values), and validate.

    Relative paths inside the file are relative to the working directory. `documents_alone`: of the collection nothing
    else is read, so it need not have queries and labels. Raises ConfigError.
    """
    content = read(path)
    content.setdefault("name", run_name(path))
    for override in overrides:
        apply(content, override)
    return validate(content, str(path), documents_alone=documents_alone)


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


def validate(
    content: Mapping[str, Any], place: str, folder: str | None = None, documents_alone: bool = False
) -> Experiment:
    """Validate settings. Raises ConfigError with every mistake, one line each, and the nearest known key.

    Relative paths are relative to `folder`; None: the working directory.
    """
    every = "`anmi config jobs/configs/quickstart.yaml` prints every setting with its value"
    return validate_as(Experiment, content, place, every, folder, documents_alone)


def validate_record(content: Mapping[str, Any], place: str) -> Experiment:
    """`validate` for the settings that a run's record holds: those that are fixed by now at the value they had may be
    among them.
    """
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        return validate(without(dict(content), error), place)


def validate_as(
    model: type[_Model],
    content: Mapping[str, Any],
    place: str,
    remedy: str,
    folder: str | None = None,
    documents_alone: bool = False,
) -> _Model:
    """`validate` for any group of settings; `remedy` says where to read what it may hold."""
    try:
        return model.model_validate(content, context={FOLDER: folder, DOCUMENTS_ALONE: documents_alone})
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
        if gone := dropped(name):
            raise ConfigError(_is_fixed(name, gone), place, "leave it out")
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


def _is_fixed(name: str, setting: Dropped) -> str:
    """What to say to whoever gives a setting that was dropped."""
    return f"no such setting: {name} is fixed now, at {json.dumps(setting.value)}" + (
        f"; {setting.instead}" if setting.instead else ""
    )


def _without_forms(location: list[str], model: type[BaseModel]) -> str:
    """The dotted name of a location without the words that say which form of a group it is in."""
    models = [model]
    parts: list[str] = []
    for part in location[:-1]:
        fields = [one.model_fields[part] for one in models if part in one.model_fields]
        if fields:
            models = [below for field in fields for below in _models_in(field.annotation)]
        if fields or part.isdecimal():
            parts.append(part)
    return ".".join([*parts, location[-1]])


def _explain(detail: Mapping[str, Any], model: type[BaseModel]) -> str:
    location = [str(part) for part in detail["loc"]]
    name = ".".join(location) or "the configuration"
    if detail["type"] == "extra_forbidden":
        if gone := dropped(_without_forms(location, model)):
            return _is_fixed(name, gone)
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
    if isinstance(given, str) and (renamed := RENAMED.get(name, {}).get(given)):
        return f"{name}: {given} is called {renamed} now"
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
