"""What pydantic refuses in settings, said for whoever wrote them: the setting's name, what is allowed, and the remedy.

Names are those of the file: which form of a group a setting is in is no part of them. No message shows a credential.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, cast

from pydantic import BaseModel, ValidationError

from anmi_ray.config.dropped import RENAMED, Dropped, dropped
from anmi_ray.core.redaction import is_secret_name, quoted, scrub_given, shortened

_LONGEST = 450  # characters of all mistakes; place and remedy come to them
_LONGEST_ONE = 300
# what pydantic says of Python's types, for users of YAML
_SHAPES = {
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a group of settings",
    "model_attributes_type": "expected a group of settings",
}
# where the sentences of validators say what to do
_REMEDY = re.compile(
    r"(.+)[:;] "
    r"((?:add|choose|divide|fix|give|keep|leave|lower|mend|name|put|raise|remove|say|set(?! by)|use|write)\b.+)",
    re.DOTALL,
)


class Mistake(NamedTuple):
    """What is wrong, and what to do where that is known."""

    message: str
    remedy: str | None = None


def described(error: ValidationError, model: type[BaseModel], content: Any, otherwise: str) -> tuple[str, str]:
    """The mistakes in `content` as one message, and its remedy: `otherwise` where a mistake has none of its own."""
    details = error.errors(include_url=False)
    below = [detail["loc"] for detail in details]
    details = [detail for detail in details if not _follows(detail, below)]
    found: dict[str, Mistake] = {}
    for detail in details:
        name, models = _named(detail["loc"], content, model)
        one = _explained(detail, name, models)
        before = found.get(name)
        if before is not None and one.message != before.message:  # of a setting that takes one of several forms
            given = one.message[at:] if (at := one.message.rfind(" (given: ")) >= 0 else ""
            other = f"{before.message.removesuffix(given)}, or: {one.message.removeprefix(f'{name}: ')}"
            one = Mistake(other, one.remedy)
        found[name] = one
    if len(found) == 1:
        (one,) = found.values()
        return shortened(one.message, _LONGEST), one.remedy or otherwise
    lines: list[str] = []
    told: set[str | None] = {None}
    for one in found.values():  # what a group holds is said once
        lines.append(shortened(one.message if one.remedy in told else f"{one.message}; {one.remedy}", _LONGEST_ONE))
        told.add(one.remedy)
    remedies = all(one.remedy for one in found.values())
    return "\n  " + "\n  ".join(_first(lines)), "mend each of them" if remedies else otherwise


def is_fixed(name: str, setting: Dropped) -> str:
    """What to say to whoever gives a setting that was dropped."""
    return f"no such setting: {name} is fixed now, at {json.dumps(setting.value)}" + (
        f"; {setting.instead}" if setting.instead else ""
    )


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The groups of settings that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [found for argument in getattr(annotation, "__args__", ()) for found in models_in(argument)]


def members(names: Iterable[str]) -> str:
    """Names in a row, as many as a message has room for."""
    names = list(names)
    room = next((at for at in range(len(names)) if len(", ".join(names[: at + 1])) > _LONGEST_ONE), len(names))
    more = f" and {len(names) - room} more" if room < len(names) else ""
    return ", ".join(names[:room]) + more


def _first(lines: Sequence[str]) -> list[str]:
    kept: list[str] = []
    for line in lines:
        if kept and sum(map(len, kept)) + len(line) > _LONGEST:
            return [*kept, f"and {len(lines) - len(kept)} more"]
        kept.append(line)
    return kept


def _follows(detail: Mapping[str, Any], places: Iterable[tuple[Any, ...]]) -> bool:
    """Whether a list is short only because what stands in it is wrong."""
    place = detail["loc"]
    return detail["type"] == "too_short" and any(one[: len(place)] == place and one != place for one in places)


def _named(location: Sequence[Any], content: Any, model: type[BaseModel]) -> tuple[str, list[type[BaseModel]]]:
    """The dotted name of a location, and the groups that its last part stands in.

    What pydantic adds to a location to say which form of a group it read is neither in the content nor a setting.
    """
    node = content
    models = inside = [model]
    parts: list[str] = []
    for part in location:
        fields = [one.model_fields[part] for one in models if part in one.model_fields]
        is_member = (isinstance(node, Mapping) and part in node) or (
            isinstance(node, list | tuple) and isinstance(part, int) and part < len(node)
        )
        if not fields and not is_member:
            models = [one for one in models if part in _forms(one)] or models
            continue
        inside = models
        parts.append(shortened(scrub_given(str(part))))
        node = cast(Any, node)[part] if is_member else None
        models = [below for field in fields for below in models_in(field.annotation)] if fields else models
    return ".".join(parts), inside


def _forms(model: type[BaseModel]) -> tuple[Any, ...]:
    """How a form of a group is called, where it is one of several."""
    fields = (model.model_fields.get(name) for name in ("kind", "rule"))
    return next((getattr(field.annotation, "__args__", ()) for field in fields if field is not None), ())


def _explained(detail: Mapping[str, Any], name: str, models: Sequence[type[BaseModel]]) -> Mistake:
    if detail["type"] == "extra_forbidden":
        return _unknown(name, models)
    if detail["type"] == "value_error":
        said = scrub_given(str(detail["ctx"]["error"]))
        within = said.partition(":")[0] in {field for one in models_below(name, models) for field in one.model_fields}
        joint = "." if within else ": "
        split = _REMEDY.fullmatch(said)
        said, remedy = (split[1], split[2]) if split is not None else (said, None)
        return Mistake(f"{name}{joint}{said}" if name else said, remedy)
    if detail["type"] in ("union_tag_invalid", "union_tag_not_found"):
        return _of_no_form(detail, name, models_below(name, models))
    given = detail.get("input")
    if isinstance(given, str) and (renamed := RENAMED.get(name, {}).get(given)):
        return Mistake(f"{name}: {given} is called {renamed} now", f"write {renamed}")
    wanted = _SHAPES.get(detail["type"]) or scrub_given(detail["msg"])
    shown = "" if detail["type"] == "missing" else f" (given: {_given(given, name)})"
    forms = [form for one in models_below(name, models) for form in _forms(one)]
    remedy = f"write {{kind: {given}}}" if detail["type"] == "model_attributes_type" and given in forms else None
    return Mistake(f"{name or 'the configuration'}: {wanted}{shown}", remedy)


def _given(value: object, name: str) -> str:
    """The value that was given for setting `name`; only the type of one that holds others."""
    if value is None:
        return "null"
    if isinstance(value, str | int | float):
        return quoted(value, name.split("."))
    kinds = {dict: "a mapping", list: "a list", tuple: "a list"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def models_below(name: str, models: Sequence[type[BaseModel]]) -> list[type[BaseModel]]:
    """The groups that a setting of `models` may hold; a place in a list is told by the list's."""
    last = name.rpartition(".")[2]
    fields = [one.model_fields[last] for one in models if last in one.model_fields]
    return [below for field in fields for below in models_in(field.annotation)] if fields else list(models)


def _unknown(name: str, models: Sequence[type[BaseModel]]) -> Mistake:
    if gone := dropped(name):
        return Mistake(is_fixed(name, gone), "leave it out")
    group, _, last = name.rpartition(".")
    known = sorted({field for one in models for field in one.model_fields})
    if is_secret_name(last) and "key_env" in known:
        return Mistake(
            f"unknown setting {name}", f"name the environment variable that holds the key in {group}.key_env"
        )
    near = difflib.get_close_matches(last, known, n=1, cutoff=0.5)
    nearest = ".".join(filter(None, (group, *near)))
    return Mistake(f"unknown setting {name}", f"did you mean {nearest}?" if near else f"known here: {members(known)}")


def _of_no_form(detail: Mapping[str, Any], name: str, models: Sequence[type[BaseModel]]) -> Mistake:
    """What tells the forms of a group apart is missing, or another word."""
    key = detail["ctx"]["discriminator"].strip("'")
    forms = [str(form) for one in models for form in _forms(one)]
    if detail["type"] == "union_tag_not_found":
        return Mistake(f"{name}.{key} is missing", f"give one of {members(forms)}")
    given = detail["input"][key] if isinstance(detail["input"], Mapping) else detail["ctx"]["tag"]
    if not isinstance(given, str):
        forms = [json.dumps(form) if form == "null" else form for form in forms]  # unquoted, YAML's null is no text
        return Mistake(f"{name}.{key}: expected a name (given: {_given(given, name)})", f"give one of {members(forms)}")
    tag = str(detail["ctx"]["tag"])
    near = difflib.get_close_matches(tag, forms, n=1, cutoff=0.6)
    known = f"did you mean {near[0]}?" if near else f"give one of {members(forms)}"
    return Mistake(f"{name}.{key}: {quoted(tag)} is none of its forms", known)
