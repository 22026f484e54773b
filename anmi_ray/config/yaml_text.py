"""YAML as users write it: one reader for files of settings, overrides and front matter.

PyYAML's SafeLoader, with these differences: duplicate names are refused, names are text whatever they look like, and
dates and the number formats that only YAML 1.1 knows (1_000, 010, 1:30) are text.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, ScalarNode

from anmi_ray.core.errors import ConfigError
from anmi_ray.core.redaction import scrub, shortened

DEEPEST = 40  # lists and groups inside each other
_LONGEST_PROBLEM = 200
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # as escapes in double quotes
_TAG = "tag:yaml.org,2002:"
_PLAIN = "write settings as key: value, lists and plain values"
_INTEGER = re.compile(r"[-+]?(?:0|[1-9][0-9]{0,99})$|0x[0-9a-fA-F]{1,80}$")
_FLOAT = re.compile(r"[-+]?[0-9]+\.[0-9]*(?:[eE][-+][0-9]+)?$|\.[0-9]+(?:[eE][-+][0-9]+)?$|[-+]?\.inf$|\.nan$", re.I)


def load_file(path: str | Path) -> Any:
    """Content of a YAML file; None if it is empty. Raises ConfigError naming file and line."""
    place = str(path)
    try:
        content = Path(path).read_bytes()
    except FileNotFoundError:
        raise ConfigError(
            "no such configuration file", place, "give the path of a YAML file; `anmi init` lists examples"
        ) from None
    except (OSError, ValueError) as error:  # the latter: a path with a null character
        raise ConfigError(f"cannot be read: {error}", place, "give the path of a YAML file") from None
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"line {line}: expected text in UTF-8", place, "save the file as UTF-8") from None
    return parse(text, place)


def parse(text: str, place: str, first_line: int = 1) -> Any:
    """Content of a YAML text; None if it is empty.

    first_line: line of `place` where the text begins, for messages.
    Raises ConfigError. Aliases are copied, so each may be changed without the others.
    """
    try:
        return _plain(yaml.load(text, Loader=_Loader))
    except yaml.reader.ReaderError as error:
        line = text[: error.position].count("\n")
        message = f"line {first_line + line}: unexpected character U+{int(error.character):04X}"
        remedy = "remove it, or write it as an escape in double quotes"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = mark.line if mark is not None else 0
        problem = ", ".join(filter(None, (error.context, error.problem)))
        message = f"line {first_line + line}: not valid YAML: {shortened(scrub(problem), _LONGEST_PROBLEM)}"
        remedy = "fix that line; put text with : # [ ] { } or a leading * & ! % @ in quotes"
    except (ValueError, RecursionError) as error:
        message, remedy = shortened(str(error), _LONGEST_PROBLEM), _PLAIN
    raise ConfigError(message, place, remedy)


class _Loader(yaml.SafeLoader):
    yaml_implicit_resolvers = {
        first: [(tag, pattern) for tag, pattern in known if tag.rpartition(":")[2] not in ("int", "float", "timestamp")]
        for first, known in yaml.SafeLoader.yaml_implicit_resolvers.items()
    }

    def compose_mapping_node(self, anchor: Any) -> MappingNode:
        """A mapping whose names are text, each given once."""
        node = super().compose_mapping_node(anchor)
        lines: dict[str, int] = {}
        for key, _ in node.value:
            if not isinstance(key, ScalarNode):
                raise yaml.MarkedYAMLError(
                    problem="expected a name, got a list or a group", problem_mark=key.start_mark
                )
            if key.tag == f"{_TAG}merge":
                continue
            if key.value in lines:
                problem = f"{shortened(key.value)} is given twice, also in line {lines[key.value]}"
                raise yaml.MarkedYAMLError(problem=problem, problem_mark=key.start_mark)
            lines[key.value] = key.start_mark.line + 1
            key.tag = f"{_TAG}str"
        return node


_Loader.add_implicit_resolver(f"{_TAG}int", _INTEGER, list("-+0123456789"))
_Loader.add_implicit_resolver(f"{_TAG}float", _FLOAT, list("-+0123456789."))


def _plain(value: Any, depth: int = 0) -> Any:
    """A copy of lists, mappings and plain values. Raises ValueError for anything else."""
    if depth > DEEPEST:
        raise ValueError(f"expected at most {DEEPEST} lists and groups inside each other, got more")
    if isinstance(value, dict):
        return {_plain(key): _plain(member, depth + 1) for key, member in value.items()}
    if isinstance(value, list):
        return [_plain(member, depth + 1) for member in value]
    if isinstance(value, str) and (control := _CONTROL.search(value)):
        raise ValueError(f"unexpected character U+{ord(control[0]):04X} in {shortened(ascii(value))}")
    if value is not None and not isinstance(value, str | int | float):
        raise ValueError(f"expected a plain value, got a {type(value).__name__}")
    return value
