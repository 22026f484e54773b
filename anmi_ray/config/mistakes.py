"""Turn pydantic's validation errors into one message: the setting's name, what is expected, what was given, the remedy.

Names are those of the file: which form of a group a setting is in is not part of them.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from pydantic import BaseModel, ValidationError

from anmi_ray.core.redaction import is_secret_name, quoted, scrub, shortened

_MOST = 5  # mistakes that a message lists
_LONGEST = 300  # characters of one mistake, or of names in a row
# pydantic's words for Python's types, in those of YAML
_SHAPES = {
    "tuple_type": "expected a list",
    "dict_type": "expected a mapping",
    "model_type": "expected a group of settings",
    "model_attributes_type": "expected a group of settings",
}
# where the sentences of validators say what to do
_REMEDY = re.compile(
    r"(.+)[:;] "
    r"((?:add|choose|divide|fix|give|keep|leave|lower|name|put|raise|remove|say|set(?! by)|use|write)\b.+)",
    re.DOTALL,
)
# Settings of the last release that are gone, without places in lists, and what to use instead.
REPLACED = {
    "compare.max_reject_fraction": "fix the file's malformed rows",
    "distill.clip": "leave it out: it is 1",
    "evaluate.also": "trained_by in a run of another collection measures the model there",
    "evaluate.rounds": "leave it out: it is 10,000",
    "execution.core_dollars_hour": "execution.gpu_dollars_hour prices the GPU hours of a plan",
    "judge.judges.endpoint.deadline_s": "the limit is five times timeout_s",
    "judge.judges.execution.enforce_eager": "write engine_kwargs: {enforce_eager: true}",
    "judge.judges.execution.max_num_seqs": "write engine_kwargs: {max_num_seqs: NUMBER}",
    "judge.judges.revision": "write model: org/model@revision",
    "judge.target_dollars": "set judge.target_hours, or a budget",
    "mine.gap": "leave it out: gaps are to the example's own anchor",
    "mine.top_rated_anchors": "use mine.anchors: confirmed, or rated",
    "refines": "leave it out; a larger compare.degree asks about more pairs and keeps the answers",
    "rate.inconsistent_strength": "leave it out: it is 1",
    "rate.tie_width": "leave it out: it is fitted",
    "rate.strength": "use rate.judge_weights",
    "retrieve.fusion.k": "leave it out: it is 60",
    "train.clip": "leave it out: it is 1",
    "train.decay": "leave it out: the learning rate falls linearly",
    "train.list_size": "use mine.negatives, the number of rated documents of a list",
    "train.warmup_fraction": "leave it out: it is .1",
    "train.weight_decay": "leave it out: it is .01",
}
_Mistake = tuple[str, str | None]  # what is wrong, and the remedy if there is one


def described(error: ValidationError, model: type[BaseModel], content: Any, otherwise: str) -> tuple[str, str]:
    """The mistakes in `content` as one message, and its remedy; `otherwise` if one of them has no remedy."""
    details = error.errors(include_url=False)
    places = [detail["loc"] for detail in details]
    mistakes: dict[str, _Mistake] = {}
    for detail in details:
        at = detail["loc"]
        if detail["type"] == "too_short" and any(other[: len(at)] == at and other != at for other in places):
            continue  # the list is short only because its members are wrong
        name, models = _named(at, content, model)
        message, remedy = _explained(detail, name, models)
        if name in mistakes and mistakes[name][0] != message:  # a setting that takes one of several forms
            message = f"{mistakes[name][0].partition(' (given: ')[0]}, or: {message.removeprefix(f'{name}: ')}"
        mistakes[name] = message, remedy
    if len(mistakes) == 1:
        ((message, remedy),) = mistakes.values()
        return shortened(message, _LONGEST), remedy or otherwise
    lines: list[str] = []
    shown: set[str | None] = {None}
    for message, remedy in [*mistakes.values()][:_MOST]:  # what a group holds is listed once
        text = message if remedy in shown else f"{message}; {remedy}"
        lines.append(shortened(text, 500 // min(len(mistakes), _MOST)))
        shown.add(remedy)
    lines += [f"and {len(mistakes) - _MOST} more"] if len(mistakes) > _MOST else []
    has_remedies = all(remedy for _, remedy in mistakes.values())
    return "\n  " + "\n  ".join(lines), "fix each of them" if has_remedies else otherwise


def without_places(name: str) -> str:
    """A dotted name without numbers of places in lists.

    >>> without_places("judge.judges.0.revision")
    'judge.judges.revision'
    """
    return re.sub(r"\.\d+(?=\.|$)", "", name)


def models_in(annotation: Any) -> list[type[BaseModel]]:
    """The groups of settings that a type is made of."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for argument in getattr(annotation, "__args__", ()) for model in models_in(argument)]


def members(names: Iterable[str]) -> str:
    """Names in a row, shortened."""
    return shortened(", ".join(names), _LONGEST)


def _named(location: Sequence[Any], content: Any, model: type[BaseModel]) -> tuple[str, list[type[BaseModel]]]:
    """The dotted name of a location, and the groups that its last part is in.

    What pydantic adds to a location to say which form of a group it read is neither in the content nor a setting.
    """
    node = content
    models = inside = [model]
    parts: list[str] = []
    for part in location:
        fields = [group.model_fields[part] for group in models if part in group.model_fields]
        is_member = (isinstance(node, Mapping) and part in node) or (
            isinstance(node, list | tuple) and isinstance(part, int) and part < len(node)
        )
        if not fields and not is_member:
            models = [group for group in models if part in _forms(group)] or models
            continue
        inside = models
        parts.append(shortened(scrub(str(part))))
        node = cast(Any, node)[part] if is_member else None
        models = [below for field in fields for below in models_in(field.annotation)] if fields else models
    return ".".join(parts), inside


def _forms(model: type[BaseModel]) -> tuple[Any, ...]:
    """The names of a form of a group, where it is one of several."""
    fields = (model.model_fields.get(name) for name in ("kind", "rule"))
    return next((getattr(field.annotation, "__args__", ()) for field in fields if field is not None), ())


def _explained(detail: Mapping[str, Any], name: str, models: Sequence[type[BaseModel]]) -> _Mistake:
    last, value = name.rpartition(".")[2], detail.get("input")
    fields = [group.model_fields[last] for group in models if last in group.model_fields]
    below = [group for field in fields for group in models_in(field.annotation)] if fields else list(models)
    forms = [str(form) for group in below for form in _forms(group)]
    match detail["type"]:
        case "extra_forbidden":
            return _unknown(name, models)
        case "value_error":
            text = scrub(str(detail["ctx"]["error"]))
            joint = "." if any(text.partition(":")[0] in group.model_fields for group in below) else ": "
            split = _REMEDY.fullmatch(text)
            text, remedy = (split[1], split[2]) if split is not None else (text, None)
            return f"{name}{joint}{text}" if name else text, remedy
        case "union_tag_not_found":
            return f"{name}.{_key(detail)} is missing", f"give one of {members(forms)}"
        case "union_tag_invalid":
            value = value[_key(detail)] if isinstance(value, Mapping) else detail["ctx"]["tag"]
            near = difflib.get_close_matches(str(value), forms, n=1, cutoff=0.6)
            if not isinstance(value, str):  # an unquoted null of YAML is not text
                forms = [json.dumps(form) if form == "null" else form for form in forms]
            remedy = f"did you mean {near[0]}?" if near else f"give one of {members(forms)}"
            return f"{name}.{_key(detail)}: expected a known name (given: {_given(value, name)})", remedy
    wanted = _SHAPES.get(detail["type"]) or scrub(detail["msg"])
    shown = "" if detail["type"] == "missing" else f" (given: {_given(value, name)})"
    remedy = f"write {{kind: {value}}}" if detail["type"] == "model_attributes_type" and value in forms else None
    return f"{name or 'the configuration'}: {wanted}{shown}", remedy


def _key(detail: Mapping[str, Any]) -> str:
    return detail["ctx"]["discriminator"].strip("'")


def _given(value: object, name: str) -> str:
    """The value that was given for setting `name`; only the type of one that holds others."""
    if value is None:
        return "null"
    if isinstance(value, str | int | float):
        return quoted(value, name.split("."))
    kinds = {dict: "a mapping", list: "a list", tuple: "a list"}
    return kinds.get(type(value), f"a {type(value).__name__}")


def _unknown(name: str, models: Sequence[type[BaseModel]]) -> _Mistake:
    if instead := REPLACED.get(without_places(name).removeprefix("distill.")):
        return f"unknown setting {name}", instead
    group, _, last = name.rpartition(".")
    settings = sorted({field for model in models for field in model.model_fields})
    if is_secret_name(last) and "key_env" in settings:
        return f"unknown setting {name}", f"name the environment variable that holds the key in {group}.key_env"
    near = difflib.get_close_matches(last, settings, n=1, cutoff=0.5)
    nearest = ".".join(filter(None, (group, *near)))
    return f"unknown setting {name}", f"did you mean {nearest}?" if near else f"known here: {members(settings)}"
