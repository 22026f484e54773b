"""JSON documents that tell a changed digit: the last key of each is a SHA-256 of all that it says besides.

`{…, "checksum": "<64 hexadecimal digits>"}`; what is no object stands under `content`. Documents of versions before
these bear no checksum and are read as they are, unless their end looks like one: a changed byte there hides none.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

KEY = "checksum"
_WRAPPED = {"content"}
_HEAD = f'"{KEY}": "'
_END = '"\n}\n'
_TAIL = len(_HEAD) + 64 + len(_END)
_ALIKE = 9  # of the 13 bytes before the digits: damage leaves more, no older document has as many


def to_text(content: Any) -> str:
    """`content` as a document (sorted keys, so that equal content is equal bytes)."""
    if not isinstance(content, dict) or KEY in content or content.keys() == _WRAPPED:
        content = {"content": content}
    return with_checksum(json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False), "\n ")


def with_checksum(text: str, before: str = "\n") -> str:
    """The text of a JSON object, however it is laid out, with its checksum; `before`: what stands before a key."""
    content = json.loads(text)
    body = text.rstrip().removesuffix("}").rstrip()
    return f"{body}{',' if content else ''}{before}{_HEAD}{_digest(content)}{_END}"


def parse(data: bytes) -> Any:
    """What a document says. Raises ValueError saying what is wrong with it."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict) or KEY not in content:
            if bears_checksum(data):
                raise ValueError("its checksum is damaged")
            return content
        if _digest({key: value for key, value in content.items() if key != KEY}) != content.pop(KEY):
            raise ValueError("its checksum is that of another content")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return content["content"] if content.keys() == _WRAPPED else content


def bears_checksum(data: bytes) -> bool:
    """Whether a document ends as those with a checksum do, or nearly so."""
    head = data[-_TAIL:][: len(_HEAD)]
    return sum(mine == theirs for mine, theirs in zip(head, _HEAD.encode(), strict=False)) >= _ALIKE


def _digest(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
