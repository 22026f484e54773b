"""YAML as users write it: one reader for files of settings, overrides and front matter, and one message for a mistake.

It reads YAML's mappings, lists, texts, numbers, true, false and null. Names are texts whatever they look like, and so
are dates. What YAML 1.1 reads otherwise than it looks (1_000, 010, 1:30), tags, and names that stand twice are refused,
as is what would never end: deep nesting, and aliases that multiply.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml
from yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from anmi_ray.core.errors import ConfigError
from anmi_ray.core.redaction import quoted, scrub, shortened

DEEPEST = 40  # lists and groups inside each other
_MOST_VALUES = 100_000  # of a file, aliases written out
_MOST_BYTES = 4 << 20
_LONGEST_NUMBER = 100
_LONGEST_PROBLEM = 200
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f\ud800-\udfff]")  # as escapes in double quotes
_TAG = "tag:yaml.org,2002:"
_PLAIN = "write settings as key: value, lists and plain values"


def load_file(path: str | Path) -> Any:
    """What a YAML file holds; None where it is empty. Raises ConfigError naming file and line."""
    place = str(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(_MOST_BYTES + 1)
    except FileNotFoundError:
        raise ConfigError(
            "no such configuration file", place, "give the path of a YAML file; `anmi init` lists examples"
        ) from None
    except (OSError, ValueError) as error:  # the latter: a path with a null character
        raise ConfigError(f"cannot be read: {error}", place, "give the path of a YAML file") from None
    if len(content) > _MOST_BYTES:
        raise ConfigError(f"larger than {_MOST_BYTES >> 20} MiB", place, "give a file of settings")
    try:
        text = content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content[: error.start].count(b"\n") + 1
        raise ConfigError(f"line {line}: not text in UTF-8", place, "save the file as UTF-8") from None
    return parse(text, place)


def parse(text: str, place: str, first_line: int = 1) -> Any:
    """What a YAML text holds; None where it is empty. `first_line`: where the text begins in `place`, for messages.

    Raises ConfigError. Every value is its own: what aliases repeat may be changed apart.
    """
    try:
        reader = _Reader(text)
        root = reader.get_single_node()
        return None if root is None else _value(root)
    except _RefusedError as error:
        at, message, remedy = error.line, error.message, error.remedy
    except yaml.reader.ReaderError as error:
        at = text[: error.position].count("\n")
        message = f"the character U+{int(error.character):04X} may not stand in YAML"
        remedy = "remove it, or write it as an escape in double quotes"
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        at = mark.line if mark is not None else 0
        said = ", ".join(filter(None, (error.context, error.problem)))
        message = f"not valid YAML: {shortened(scrub(said), _LONGEST_PROBLEM)}"
        remedy = "mend that line; a text with : # [ ] { } or a leading * & ! % @ stands in quotes"
    raise ConfigError(f"line {first_line + at}: {message}", place, remedy)


class _RefusedError(Exception):
    """What this reader does not take, at a line from 0."""

    def __init__(self, node: Node | yaml.Event, message: str, remedy: str) -> None:
        super().__init__(message)
        mark = node.start_mark
        self.line = mark.line if mark is not None else 0
        self.message = message
        self.remedy = remedy


class _Reader(yaml.SafeLoader):
    """Makes nodes of a text, and counts what they would come to, aliases written out."""

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = 0
        self._values = 0
        self._sizes = dict[str, int]()  # of what an anchor names, once it is whole

    def compose_node(self, parent: Node | None, index: Any) -> Node | None:
        """One node with all below it."""
        event = self.peek_event()
        anchor: str | None = event.anchor
        before = self._values
        if isinstance(event, yaml.AliasEvent):
            if anchor in self.anchors and anchor not in self._sizes:
                raise _RefusedError(event, f"*{anchor} stands inside what it names", "write its value out")
            self._values += self._sizes.get(str(anchor), 1)
        else:
            self._values += 1
            if event.tag is not None and event.tag not in ("!", f"{_TAG}str"):
                raise _RefusedError(event, f"the tag {quoted(event.tag)} is not read", f"leave the tag out: {_PLAIN}")
        if self._values > _MOST_VALUES:
            raise _RefusedError(event, f"more than {_MOST_VALUES:,} values, aliases written out", "use fewer aliases")
        self._depth += 1
        if self._depth > DEEPEST:
            raise _RefusedError(event, f"more than {DEEPEST} lists and groups inside each other", _PLAIN)
        node = super().compose_node(parent, index)
        self._depth -= 1
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._sizes[anchor] = self._values - before
        return node


def _value(node: Node) -> Any:
    if isinstance(node, ScalarNode):
        return _scalar(node)
    if isinstance(node, SequenceNode):
        return [_value(one) for one in node.value]
    assert isinstance(node, MappingNode)
    return _mapping(node)


def _mapping(node: MappingNode) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    own: dict[str, Any] = {}
    lines: dict[str, int] = {}
    for key, value in node.value:
        if not isinstance(key, ScalarNode):
            raise _RefusedError(key, "a list or a group stands where a name must", _PLAIN)
        name = _text(key)
        if key.tag == f"{_TAG}merge":
            merged = {**_merged(value), **merged}
            continue
        if name in own:
            message = f"{quoted(name)} stands twice, in line {lines[name]} too"
            raise _RefusedError(key, message, "keep one of them")
        own[name] = _value(value)
        lines[name] = key.start_mark.line + 1 if key.start_mark is not None else 0
    return {**merged, **own}


def _merged(node: Node) -> dict[str, Any]:
    """What << brings: of several groups the first that has a name counts."""
    groups: Sequence[Node] = node.value if isinstance(node, SequenceNode) else [node]
    found: dict[str, Any] = {}
    for group in groups:
        if not isinstance(group, MappingNode):
            raise _RefusedError(node, "<< takes groups", "write << with an alias of a group, such as *name")
        found = {**_mapping(group), **found}
    return found


def _scalar(node: ScalarNode) -> Any:
    text = _text(node)
    if node.tag == f"{_TAG}null":
        return None
    if node.tag == f"{_TAG}bool":
        return text.lower() in ("yes", "true", "on")
    if node.tag in (f"{_TAG}int", f"{_TAG}float"):
        return _number(node, text)
    return text  # dates, times, = and << as values too


def _text(node: ScalarNode) -> str:
    text: str = node.value
    if found := _CONTROL.search(text):
        raise _RefusedError(node, f"the character U+{ord(found[0]):04X} may not stand in settings", "remove its escape")
    return text


def _number(node: ScalarNode, text: str) -> int | float:
    digits = text.lstrip("+-").lower()
    if len(text) > _LONGEST_NUMBER:
        raise _RefusedError(node, f"a number of {len(text):,} characters", "quote it where it is a text")
    if "_" in text or ":" in text:
        plain = f"{text.replace('_', '')}; " if ":" not in text else "the number in digits; "
        raise _RefusedError(node, f"{shortened(text)} is no plain number", f"write {plain}quote it where it is a text")
    if node.tag == f"{_TAG}float":
        return float(text.lower().replace(".inf", "inf").replace(".nan", "nan"))
    if digits.isdecimal() and digits != "0" and digits.startswith("0"):
        raise _RefusedError(
            node, f"{shortened(text)} begins with 0, which YAML reads as octal", "leave the 0 out, or quote it as text"
        )
    return int(text, 0)
