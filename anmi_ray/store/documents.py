"""JSON documents whose last key, `checksum`, is a SHA-256 of all other content.

Content that is not an object is stored under `content`. Documents without a checksum, of older versions, are read as
they are.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

KEY = "checksum"
_WRAPPED = {"content"}


def to_text(content: Any) -> str:
    """`content` as a document. Equal content gives equal bytes."""
    if not isinstance(content, dict) or KEY in content or content.keys() == _WRAPPED:
        content = {"content": content}
    return with_checksum(json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False), "\n ")


def with_checksum(text: str, before: str = "\n") -> str:
    """Add the checksum to the text of a JSON object, whatever its layout; `before` precedes the key."""
    content = json.loads(text)
    body = text.rstrip().removesuffix("}").rstrip()
    return f'{body}{"," if content else ""}{before}"{KEY}": "{_digest(content)}"\n}}\n'


def parse(data: bytes) -> Any:
    """The content of a document. Raises ValueError where it is damaged."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict) or KEY not in content:
            return content
        if content.pop(KEY) != _digest(content):
            raise ValueError("its checksum does not match its content")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return content["content"] if content.keys() == _WRAPPED else content


def _digest(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
