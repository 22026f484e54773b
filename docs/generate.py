"""The parts of the reference that follow from the code: settings, commands, records and mining rules, as Markdown.

A page of docs/reference asks for a part with a line `<!-- generate: NAME -->`; `filled` puts it there when the site is
built. So a description is written once, where the code declares it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any, get_args

import yaml
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema
from typer.main import get_command

import anmi_ray
from anmi_ray.cli import app
from anmi_ray.config import rules
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.tune import CampaignConfig
from anmi_ray.core import records
from anmi_ray.core.identity import ID
from anmi_ray.core.schema import Record

Schema = Mapping[str, Any]
_LONGEST_DEFAULT = 90  # characters of a default in a table; `anmi config` prints longer ones
_SIGNS = {"minimum": "≥", "exclusiveMinimum": ">", "maximum": "≤", "exclusiveMaximum": "<"}
_WORDS = {"integer": "whole number", "number": "number", "string": "text", "boolean": "true or false", "null": "null"}


@dataclass(frozen=True)
class Row:
    """One setting: its dotted name, what it may hold, its default (empty: there is none), and what it is."""

    name: str
    values: str
    default: str
    description: str


@dataclass
class Group:
    """One group of settings, or one form of a group that has several, in the order in which it is declared."""

    name: str
    form: str
    description: str
    rows: list[Row] = field(default_factory=list[Row])

    @property
    def title(self) -> str:
        """What its heading says."""
        return f"`{self.name}`: {self.form}" if self.form else f"`{self.name}`" if self.name else "At the top"


@cache
def _texts(module: str) -> dict[str, dict[str, str]]:
    """The docstrings of attributes in a module: class name -> attribute -> text."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    texts: dict[str, dict[str, str]] = {}
    for group in (node for node in tree.body if isinstance(node, ast.ClassDef)):
        for node, text in pairwise(group.body):
            if isinstance(node, ast.AnnAssign) and isinstance(text, ast.Expr) and isinstance(text.value, ast.Constant):
                words = " ".join(str(text.value.value).split())
                texts.setdefault(group.name, {})[ast.unparse(node.target)] = words
    return texts


def docstrings(model: type[BaseModel]) -> dict[str, str]:
    """The docstring of each field of a model, its own or inherited."""
    bases = [base for base in reversed(model.__mro__) if base.__module__.startswith("anmi_ray.config")]
    return {name: text for base in bases for name, text in _texts(base.__module__).get(base.__name__, {}).items()}


class _WithDocstrings(GenerateJsonSchema):
    def model_schema(self, schema: Any) -> Any:
        made = super().model_schema(schema)
        texts = docstrings(schema["cls"])
        for name, value in made.get("properties", {}).items():
            value["description"] = texts.get(name, "")
        return made


def schema_of(model: type[BaseModel]) -> dict[str, Any]:
    """The JSON schema of a model, with the docstrings of its fields as descriptions."""
    return model.model_json_schema(schema_generator=_WithDocstrings)


class _Reference:
    """The groups of a settings model, read from its JSON schema. A group that stands in two places is told once."""

    def __init__(self, model: type[BaseModel]) -> None:
        schema = schema_of(model)
        self._definitions: Schema = schema.get("$defs", {})
        self._told: dict[str, str] = {}  # by definition, the name of the group where it is told
        self.groups: list[Group] = []
        self._tell(schema, "", "", {})

    def _tell(self, schema: Schema, name: str, form: str, defaults: Mapping[str, Any]) -> None:
        """Add the group of an object's schema, and after it those that it holds and that are not told yet."""
        group = Group(name, form, _prose(schema.get("description", "")))
        self.groups.append(group)
        below: list[tuple[Schema, str, str, Mapping[str, Any]]] = []
        for key, value in schema.get("properties", {}).items():
            if "const" in value:
                continue  # what tells the forms of a group apart stands in the heading
            dotted = f"{name}.{key}" if name else key
            default = defaults.get(key, value.get("default"))
            for inner_form, place, reference in self._held(value, dotted):
                known = self._definitions[reference]
                if known.get("type") != "object" or reference in self._told:
                    continue
                self._told[reference] = place
                given = default if isinstance(default, Mapping) and not inner_form else {}
                below.append((known, place, inner_form, given))
            group.rows.append(
                Row(dotted, self._values(value), self._default(key, value, default, schema), _said(value))
            )
        for inner in below:
            self._tell(*inner)

    def _default(self, key: str, value: Schema, default: Any, schema: Schema) -> str:
        """What stands in the column of defaults. A group's own settings have theirs."""
        if key in schema.get("required", ()):
            return "required"
        return "" if self._is_group(value) and default is not None else f"`{_default(default)}`"

    def _is_group(self, value: Schema) -> bool:
        """Whether a setting is one group of settings, or that or null."""
        options = [one for one in value.get("anyOf", [value]) if one.get("type") != "null"]
        return len(options) == 1 and self._definitions.get(_target(options[0]), {}).get("type") == "object"

    def _held(self, value: Schema, dotted: str) -> Iterator[tuple[str, str, str]]:
        """(form, dotted name, definition) of every group inside a setting."""
        discriminator = value.get("discriminator")
        if discriminator is not None:
            kind = discriminator["propertyName"]
            for word, reference in discriminator["mapping"].items():
                yield f"`{kind}: {word}`", dotted, reference.rpartition("/")[2]
            return
        if target := _target(value):
            yield "", dotted, target
        for option in value.get("anyOf", ()):
            yield from self._held(option, dotted)
        if isinstance(items := value.get("items"), Mapping):
            yield from self._held(items, f"{dotted}.N")
        if isinstance(members := value.get("additionalProperties"), Mapping):
            yield from self._held(members, f"{dotted}.NAME")

    def _values(self, value: Schema) -> str:
        """What a setting may hold, in words."""
        if target := _target(value):
            known = self._definitions[target]
            if known.get("type") != "object":
                return self._values(known)
            place = self._told[target]
            return f"group [`{place}`](#{anchor(place)})"
        if "enum" in value:
            return ", ".join(f"`{word}`" for word in value["enum"])
        if "const" in value:
            return f"`{value['const']}`"
        if "discriminator" in value:
            words = value["discriminator"]["mapping"]
            return f"group with `{value['discriminator']['propertyName']}` " + ", ".join(f"`{one}`" for one in words)
        if "anyOf" in value:
            return " or ".join(dict.fromkeys(self._values(one) for one in value["anyOf"]))
        kind = value.get("type")
        if kind == "array":
            return self._list(value)
        if kind == "object":
            members = value.get("additionalProperties")
            inside = self._values(members) if isinstance(members, Mapping) and members else "any value"
            return f"names with {inside}"
        if kind is None:
            return "any value"
        limits = " and ".join(f"{sign} {value[key]:,}" for key, sign in _SIGNS.items() if key in value)
        return f"{_WORDS[kind]} {limits}".strip()

    def _list(self, value: Schema) -> str:
        if "prefixItems" in value:
            return f"[{', '.join(self._values(one) for one in value['prefixItems'])}]"
        items = value.get("items")
        return f"list of {self._values(items) if items else 'any values'}"


def _target(value: Schema) -> str:
    """The definition that a schema refers to; empty where it refers to none."""
    options = [value, *value.get("allOf", ())]
    return next((one["$ref"].rpartition("/")[2] for one in options if "$ref" in one), "")


def _said(value: Schema) -> str:
    return value.get("description", "")


def _default(value: Any) -> str:
    """A default as it would stand in YAML, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**9, sort_keys=False, allow_unicode=True)
    text = text.removesuffix("\n").removesuffix("\n...").strip()
    return text if len(text) <= _LONGEST_DEFAULT else "…"


def anchor(name: str) -> str:
    """What the heading of a group is linked by."""
    return name.replace(".", "-").lower() or "top"


def _prose(text: str) -> str:
    """A docstring as Markdown: no line breaks inside paragraphs."""
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(text).partition("\n>>>")[0])
    return "\n\n".join(_escaped(" ".join(paragraph.split())) for paragraph in paragraphs if paragraph.strip())


def _escaped(text: str) -> str:
    """Text without Markdown or HTML of its own, but for what stands between backticks."""
    parts = re.split(r"(`[^`]*`)", text)
    return "".join(part if part.startswith("`") else re.sub(r"([*_\[\]<|])", r"\\\1", part) for part in parts)


def _cell(text: str) -> str:
    """Text for a cell of a table, code included."""
    return re.sub(r"(?<!\\)\|", r"\\|", text.replace("\n", " "))


def groups(model: type[BaseModel]) -> list[Group]:
    """Every group of settings of a model, the model's own first."""
    return _Reference(model).groups


def settings(model: type[BaseModel]) -> str:
    """The settings of a model: a heading and a table for each group."""
    blocks: list[str] = []
    seen: set[str] = set()
    for group in groups(model):
        if group.name and "." not in group.name:
            level = "##"
        else:
            level = "###" if group.name else "##"
        mark = "" if group.name in seen else f" {{#{anchor(group.name)}}}"
        seen.add(group.name)
        blocks.append(f"{level} {group.title}{mark}")
        blocks.append(group.description)
        if group.rows:
            blocks.append(_table(group.rows))
    return "\n\n".join(filter(None, blocks))


def _table(rows: list[Row]) -> str:
    lines = ["| setting | may be | default | |", "|---|---|---|---|"]
    for row in rows:
        name = row.name.replace(".", ".<wbr>")  # a long name breaks after a dot
        cells = (f"<code>{name}</code>", row.values, row.default, _escaped(row.description))
        lines.append("| " + " | ".join(_cell(cell) for cell in cells) + " |")
    return "\n".join(lines)


def experiment() -> str:
    """Every setting of an experiment."""
    return settings(Experiment)


def campaign() -> str:
    """Every setting of a tuning campaign."""
    return settings(CampaignConfig)


def commands() -> str:
    """Every command with its arguments and options, as `--help` has them."""
    group = get_command(app)
    blocks: list[str] = []
    for name, command in _commands(group):
        written = [parameter for parameter in command.params if parameter.param_type_name == "argument"]
        usage = " ".join(["anmi", name, *(one.metavar or one.name.upper() for one in written), "[OPTIONS]"])
        blocks += [f"## anmi {name}", f"```text\n{usage}\n```", _prose(command.help or "")]
        lines = ["| | |", "|---|---|"]
        for parameter in command.params:
            lines.append(f"| {_cell(_signature(parameter))} | {_cell(_meaning(parameter))} |")
        if len(lines) > 2:
            blocks.append("\n".join(lines))
    return "\n\n".join(filter(None, blocks))


def _commands(group: Any) -> Iterator[tuple[str, Any]]:
    """(name, command) of all commands, those of a group after its name."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from ((f"{name} {inner}", one) for inner, one in _commands(command))
        else:
            yield name, command


def _signature(parameter: Any) -> str:
    """How an argument or option is written."""
    if parameter.param_type_name == "argument":
        return f"`{parameter.metavar or parameter.name.upper()}`"
    names = ", ".join([*parameter.opts, *parameter.secondary_opts])
    return f"`{names}`" if parameter.is_flag else f"`{names} {parameter.metavar or _kind(parameter)}`"


def _kind(parameter: Any) -> str:
    """What an option without a name for its value takes."""
    kinds = {Path: "PATH", int: "NUMBER", float: "NUMBER"}
    annotation = parameter.type_descriptor.annotation
    inner = get_args(annotation) or (annotation,)
    return next((kinds[one] for one in inner if one in kinds), "TEXT")


def _meaning(parameter: Any) -> str:
    """What an argument or option is, whether it must be given, and its default."""
    notes = [_escaped(parameter.help or "")]
    if parameter.required:
        notes.append("required")
    words = getattr(parameter.type_descriptor.annotation, "__members__", {}).values()
    if words := words or get_args(parameter.type_descriptor.annotation):
        names = [str(getattr(word, "value", word)) for word in words if not isinstance(word, type)]
        notes.append(f"one of {', '.join(f'`{name}`' for name in names)}" if names else "")
    default = getattr(parameter.default, "value", parameter.default)
    if default not in (None, "", False) and not (parameter.is_flag if hasattr(parameter, "is_flag") else False):
        notes.append(f"default `{default}`")
    if parameter.envvar:
        given = [parameter.envvar] if isinstance(parameter.envvar, str) else parameter.envvar
        notes.append(f"else from the environment: {', '.join(f'`{one}`' for one in given)}")
    return "; ".join(filter(None, notes))


def python() -> str:
    """Every name of `import anmi_ray`, as its docstring has it, with its example; of a class its methods too."""
    blocks: list[str] = []
    for name in anmi_ray.__all__:
        member = getattr(anmi_ray, name)
        if isinstance(member, type) and issubclass(member, Exception):
            continue  # the page says of all errors together
        blocks += [f"## anmi_ray.{name}", *_told(f"anmi_ray.{name}", member)]
        if isinstance(member, type):
            for method, body in vars(member).items():
                if not method.startswith("_"):
                    blocks += [f"### {name}.{method}", *_told(f"run.{method}", body)]
    return "\n\n".join(blocks)


def _told(name: str, member: Any) -> list[str]:
    """How a function is called, what it does, and its example. A property is not called."""
    text = inspect.cleandoc(inspect.getdoc(member) or "")
    call = name
    if not isinstance(member, property):
        signature = re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(member)))
        signature = signature.replace("(self, ", "(").replace("(self)", "()")
        call = f"{name}{re.sub(r' -> None$', '', signature)}"
    _, mark, example = text.partition("\n>>>")
    blocks = [f"```text\n{call}\n```", _prose(text)]
    return [*blocks, f"```python\n>>>{example}\n```"] if mark else blocks


def data_dictionary() -> str:
    """Every record: what it is, its key, its columns, and what is refused where a table is read or written."""
    source = inspect.getsource(records)
    blocks: list[str] = []
    for name, record in vars(records).items():
        if not isinstance(record, Record):
            continue
        comment = re.search(rf"((?:^#.*\n)*)^{name} = Record\(", source, flags=re.MULTILINE)
        said = " ".join(line.removeprefix("#").strip() for line in comment[1].splitlines()) if comment else ""
        key = ", ".join(f"`{column}`" for column in record.key)
        blocks += [f"## {record.name}", _escaped(said), f"Version {record.version}. Key: {key}."]
        lines = ["| column | type | |", "|---|---|---|"]
        for column in record.schema:
            kind = _escaped(str(column.type).replace(str(ID), "id"))
            lines.append(f"| `{column.name}` | {kind} | {'may be null' if column.nullable else ''} |")
        blocks.append("\n".join(lines))
        if record.invariants:
            blocks.append("\n".join(f"- {_prose(one.__doc__ or '')}" for one in record.invariants))
    return "\n\n".join(filter(None, blocks))


def compositions() -> str:
    """Every value of `mine.rule`, and the three rules that it stands for."""
    lines = ["| `mine.rule` | `allow` | `weigh` | `sample` |", "|---|---|---|---|"]
    for name, phases in rules.NAMED.items():
        cells = [_short(phases.get(phase)) for phase in ("allow", "weigh", "sample")]
        lines.append(f"| `{name}` | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def _short(value: Any) -> str:
    if value is None:
        return ""
    return f"`{_default(value)}`" if value != [] else "everyone"


def mining_settings() -> str:
    """The settings of every rule of allow, weigh and sample."""
    blocks: list[str] = []
    for group in groups(Experiment):
        if group.name.split(".")[:2] not in (["mine", "allow"], ["mine", "weigh"], ["mine", "sample"]):
            continue
        blocks += [f"### {group.title}", group.description]
        if group.rows:
            blocks.append(_table(group.rows))
    return "\n\n".join(filter(None, blocks))


PARTS: dict[str, Callable[[], str]] = {
    "experiment": experiment,
    "campaign": campaign,
    "commands": commands,
    "python": python,
    "records": data_dictionary,
    "compositions": compositions,
    "mining-settings": mining_settings,
}


def filled(markdown: str) -> str:
    """A page with the parts that it asks for. Raises KeyError where it asks for one that there is not."""
    return re.sub(r"<!-- generate: ([\w-]+) -->", lambda match: PARTS[match[1]](), markdown)
