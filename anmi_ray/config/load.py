"""Settings from YAML: read, overridden by dotted keys, and validated once.

Every mistake becomes one ConfigError that names the setting, what is allowed and the nearest known name.
"""

from __future__ import annotations

import difflib
import re
import shlex
from collections.abc import Iterable, Iterator, Mapping
from copy import deepcopy
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from anmi_ray.config import yaml_text
from anmi_ray.config.corpus import DOCUMENTS_ALONE
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.mistakes import REPLACED, described, models_in, without_places
from anmi_ray.config.paths import FOLDER, check_address
from anmi_ray.config.rules import NAMED, clear
from anmi_ray.core import redaction
from anmi_ray.core.errors import ConfigError

_Model = TypeVar("_Model", bound=BaseModel)


def load(path: str | Path, overrides: Iterable[str] = (), documents_alone: bool = False) -> Experiment:
    """Read a YAML file, apply `key=value` overrides (dotted keys, YAML values), and validate.

    Relative paths inside the file are relative to the working directory. `documents_alone`: of the collection nothing
    else is read, so it need not have queries and labels. Raises ConfigError.
    """
    content = read_experiment(path)
    for override in overrides:
        apply(content, override)
    return validate(content, str(path), documents_alone=documents_alone)


def read_experiment(path: str | Path) -> dict[str, Any]:
    """The settings of an experiment's file, not validated yet, with its name. Raises ConfigError."""
    content = read(path)
    if "space" in content:
        message = "this file is a campaign's (it has space), and what is wanted is an experiment's"
        file = shlex.quote(str(path))
        remedy = f"carry it out with anmi tune {file} (on a cluster: anmi jobs submit tune {file})"
        raise ConfigError(message, str(path), remedy)
    return {"name": run_name(path)} | content


def read(path: str | Path) -> dict[str, Any]:
    """The settings that a YAML file holds, not validated yet. Raises ConfigError."""
    content = yaml_text.load_file(path)
    if content in (None, {}):
        remedy = "say at least what is read, such as corpus: {reader: beir, path: FOLDER}; `anmi init` lists examples"
        raise ConfigError("holds no settings", str(path), remedy)
    if not isinstance(content, dict):
        message = "must hold settings (key: value), not a list or a single value"
        raise ConfigError(message, str(path), "`anmi init` lists examples")
    return content


def run_name(path: str | Path) -> str:
    """The name of a run whose file does not give one: the file's, as far as a run may be called so."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", Path(path).stem).lstrip("._-") or "experiment"


def validate(
    content: Mapping[str, Any], place: str, folder: str | None = None, documents_alone: bool = False
) -> Experiment:
    """Validate settings. Raises ConfigError with every mistake, one line each, and the nearest known key.

    Relative paths are relative to `folder`; None: the working directory.
    """
    every = "`anmi init --example quickstart`, then `anmi config quickstart.yaml`, prints every setting with its value"
    return validate_as(Experiment, content, place, every, folder, documents_alone)


def validate_record(content: Mapping[str, Any], place: str) -> Experiment:
    """`validate` for the settings of a run's record, which may hold settings that this version no longer has."""
    _refuse_credentials(content, place)
    try:
        return Experiment.model_validate(content)
    except ValidationError as error:
        known = deepcopy(dict(content))
        for detail in error.errors(include_url=False):
            place_of: list[Any] = list(detail["loc"])
            node: Any = known
            for part in place_of[:-1]:
                if isinstance(node, list) or part in node:  # else the name of a form of a group
                    node = node[part]
            if detail["type"] == "extra_forbidden":
                node.pop(place_of[-1], None)
        return validate(known, place)


def validate_as(
    model: type[_Model],
    content: Mapping[str, Any],
    place: str,
    remedy: str,
    folder: str | None = None,
    documents_alone: bool = False,
) -> _Model:
    """`validate` for any group of settings; `remedy` says where to read what it may hold."""
    _refuse_credentials(content, place)
    try:
        return model.model_validate(content, context={FOLDER: folder, DOCUMENTS_ALONE: documents_alone})
    except ValidationError as error:
        message, remedy = described(error, model, content, remedy)
        raise ConfigError(message, place, remedy) from None


def apply(content: dict[str, Any], override: str) -> None:
    """Put one `key=value` (dotted key, YAML value) into settings that are not validated yet. Raises ConfigError."""
    key, sign, raw = override.partition("=")
    if not sign or not key.strip():
        message = f"{redaction.quoted(override)} is not an override"
        raise ConfigError(message, "command line", "write key=value, such as train.epochs=2")
    put(content, key, yaml_text.parse(raw, f"command line, {redaction.shortened(key.strip())}=…, its value as YAML"))


def with_settings(content: dict[str, Any], settings: Mapping[str, Any], place: str) -> Experiment:
    """Settings that are not validated yet, changed by others, by dotted name or a mapping for a group; then validated.

    Raises ConfigError as `validate`.
    """
    for name, value in settings.items():
        group = Experiment.model_fields[name].annotation if name in Experiment.model_fields else None
        if isinstance(value, Mapping) and models_in(group):
            for member, inner in value.items():
                put(content, f"{name}.{member}", inner)
        else:
            put(content, name, value)
    return validate(content, place)


def put(content: dict[str, Any], key: str, value: Any) -> None:
    """Put a value under a dotted key into settings that are not validated yet. Raises ConfigError."""
    node: Any = content
    *parents, last = key.strip().split(".")
    if len(parents) > yaml_text.DEEPEST:
        raise ConfigError(f"{redaction.quoted(key)} has {len(parents)} dots", "command line", "see `anmi config`")
    for parent in parents:
        node = node.setdefault(parent, {}) if isinstance(node, dict) else node[_position(node, parent, key)]
        if not isinstance(node, dict | list):
            raise ConfigError(
                f"{redaction.quoted(key)}: {parent} is a single value, not a group", "command line", "see `anmi config`"
            )
    at: Any = last if isinstance(node, dict) else _position(node, last, key)
    node[at] = value
    if key.strip() == "recipe":
        clear(content, value)
    if key.strip() == "mine.rule" and isinstance(node, dict):
        for phase in NAMED.get(str(value), {}):  # later values win, here over details in the file
            node.pop(phase, None)


def check_setting(name: str, place: str) -> None:
    """Raise ConfigError where no setting of an experiment has this dotted name; it says the nearest that are."""
    names = list(_dotted(Experiment, ""))
    if without_places(name) in names:
        return
    if instead := REPLACED.get(without_places(name)):
        raise ConfigError(f"no setting is called {name}", place, instead)
    near = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    near = list(dict.fromkeys([*near, *(other for other in names if other.endswith(f".{name.rpartition('.')[2]}"))]))
    hint = f"did you mean {' or '.join(near[:3])}?" if near else "`anmi config` prints every setting"
    raise ConfigError(f"no setting is called {redaction.shortened(redaction.scrub(name))}", place, hint)


def _dotted(model: type[BaseModel], prefix: str) -> Iterator[str]:
    """The dotted names of all settings below a group, of every form where it has several."""
    for name, field in model.model_fields.items():
        yield f"{prefix}{name}"
        for below in models_in(field.annotation):
            yield from _dotted(below, f"{prefix}{name}.")


def _position(members: list[Any], word: str, key: str) -> int:
    """Where in a list a part of a dotted key points, such as the 0 of judge.judges.0.name."""
    if word.isdecimal() and int(word) < len(members):
        return int(word)
    raise ConfigError(
        f"{redaction.quoted(key)}: expected a number below {len(members)}, a place in the file's list, got {word}",
        "command line",
        "see `anmi config`",
    )


def _refuse_credentials(content: Any, place: str) -> None:
    """Raise ConfigError where settings hold a credential, by its name or its look: they are recorded."""
    credential = redaction.in_value(content)
    if credential is None:
        return
    name, value = credential
    shown = redaction.shortened(redaction.scrub(name))
    check_address(value, f"{place}, {shown}")
    before, is_endpoint, _ = shown.partition("endpoint.")
    if is_endpoint:
        remedy = f"export it, and name its environment variable: {before}endpoint.key_env: OPENAI_API_KEY"
    else:
        remedy = (
            "leave it out: processes read keys from the environment that they are started with (HF_TOKEN, "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, for a server the variable that its endpoint.key_env names)"
        )
    message = f"{shown} holds a credential, and settings are recorded (runs, reports, model cards)"
    raise ConfigError(message, place, remedy)
