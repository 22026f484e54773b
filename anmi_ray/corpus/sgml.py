"""TREC's SGML: elements cut out of a stream of lines, documents and topics made of them.

It is no XML: entities are undeclared, tags stay open, files have no root. So tags are found by their form, and what
is no tag (a < b) is text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from html.entities import html5
from itertools import chain

from anmi_ray.corpus import parsing
from anmi_ray.corpus.parsing import Document, LineError, Query
from anmi_ray.tables.streams import MAX_LINE

_TAG = r"<[!?][^<>]*>|<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]*)(?:\s[^<>]*)?/?>"
_BYTES_TAG = rb"<[!?/]?[A-Za-z][^<>]*>"
# Before the last end of a comment, and behind it, where one that opens would be looked for to the end in vain.
_MARKUP = re.compile(rf"<!--.*?-->|{_TAG}", re.DOTALL), re.compile(_TAG)
_BYTES_MARKUP = re.compile(rb"<!--.*?-->|" + _BYTES_TAG), re.compile(_BYTES_TAG)
_ENTITY = re.compile(r"&(#\d+|#[xX][0-9a-fA-F]+|\w+);")
# What a tag's text is; the text of all others is the document's. What names or describes the record is no text of it.
_PART_OF_TAG = {
    "docno": "docno",
    **dict.fromkeys(("title", "headline", "hl", "ti"), "title"),
    **dict.fromkeys(("docid", "docoldno", "dochdr"), "left out"),
    "text": "text",
}
_LABELS = {"num": "number", "title": "topic", "desc": "description", "narr": "narrative"}
_FIELD_OF_TAG = {"description": "desc", "narrative": "narr"}


def elements(lines: Iterable[tuple[str, bytes | LineError]], tag: str) -> Iterator[tuple[str, bytes | LineError]]:
    """(place of its first line, content) of every <tag>…</tag>, whatever the case and however lines are broken.

    An element that never closes or is larger than MAX_LINE, a close without an open, and text between elements come as
    a LineError each, at the place where they begin. Memory is that of one element.
    """
    marker = re.compile(rb"<(/?)" + tag.encode() + rb"(?:\s[^<>]*)?>", re.IGNORECASE)
    start = ""
    inside: _Inside | None = None
    stray = False
    for place, line in lines:
        if isinstance(line, LineError):  # whatever it is a part of
            yield place, line
            inside = None
            stray = True
            continue
        at = 0
        for found in marker.finditer(line):
            before = line[at : found.start()]
            at = found.end()
            if inside is None and not stray and (error := _stray(before, tag)):
                yield place, error
            stray = False
            if not found[1]:
                if inside is not None:
                    yield start, LineError(f"no </{tag}>")
                start = place
                inside = _Inside()
            elif inside is None:
                yield place, LineError(f"</{tag}> without <{tag}>")
            else:
                inside.add(before)
                yield start, inside.content
                inside = None
        if inside is not None:
            inside.add(line[at:] + b"\n")
        elif not stray and (error := _stray(line[at:], tag)):
            stray = True
            yield place, error
    if inside is not None:
        yield start, LineError(f"no </{tag}>")


class _Inside:
    """What stands in an element, as long as it is not too large."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def add(self, piece: bytes) -> None:
        self._size += len(piece)
        self._pieces.append(piece)
        if self._size > MAX_LINE:
            self._pieces.clear()

    @property
    def content(self) -> bytes | LineError:
        return parsing.too_large(self._size) if self._size > MAX_LINE else b"".join(self._pieces)


def document(content: bytes) -> Document:
    """The document in <DOC>: its DOCNO, its titles (TITLE, HEADLINE, HL, TI), and the text of all other tags.

    Each stretch of text between tags is stripped and becomes a line; white space inside a title is collapsed; entities
    that HTML knows are unescaped. LineError where it cannot be used.
    """
    parts = _parts(parsing.decode(content))
    key = parsing.key_of({"DOCNO": " ".join(parts["docno"])}, "DOCNO")
    return parsing.document_of(key, " ".join(" ".join(parts["title"]).split()), "\n".join(parts["text"]))


def topic(content: bytes, fields: Iterable[str]) -> Query:
    """The query in <top>: its num, and `fields` (title, desc, narr) joined by a space, white space collapsed.

    TREC's labels (Number:, Topic:, Description:, Narrative:) are taken off. LineError where num or a field is missing.
    """
    stretches: dict[str, list[str]] = {}
    text = parsing.decode(content)
    field = ""
    at = 0
    for tag in chain(_tags(text), [None]):
        _keep(stretches, field, text[at : tag.start() if tag else len(text)])
        if tag is None:
            break
        at = tag.end()
        name = (tag["name"] or "").lower()
        if name:
            field = "" if tag["close"] else _FIELD_OF_TAG.get(name, name)
    found = {name: " ".join(filter(None, words)) for name, words in stretches.items()}
    key = parsing.key_of(found, "num")
    for name in fields:
        if not found.get(name):
            raise LineError(f"missing {name}", key)
    return parsing.query_of(key, " ".join(found[name] for name in fields))


def unescape(text: str) -> str:
    """Text with HTML's entities resolved; unknown ones (TREC's &hyph;) stay as they are.

    >>> unescape("AT&amp;T &lt; &#233; &hyph; R&D;")
    'AT&T < é &hyph; R&D;'
    """
    return _ENTITY.sub(_character, text)


def _character(found: re.Match[str]) -> str:
    name = found[1]
    if not name.startswith("#"):
        return html5.get(f"{name};", found[0])
    try:
        return html.unescape(found[0])
    except ValueError:  # of more digits than Python makes a number of: no character, as other numbers out of range
        return "\ufffd"


def _tags(text: str) -> Iterator[re.Match[str]]:
    """The markup of a text, in time linear in it."""
    end = _behind_comments(text.rfind("-->"))
    return chain(_MARKUP[0].finditer(text, 0, end), _MARKUP[1].finditer(text, end))


def _behind_comments(last: int) -> int:
    """Where no comment ends any more, from where its last end is; no tag reaches over it."""
    return 0 if last < 0 else last + len("-->")


def _parts(text: str) -> dict[str, list[str]]:
    """Stretches of text, stripped and not empty, by what they are part of."""
    parts: dict[str, list[str]] = {"docno": [], "title": [], "left out": [], "text": []}
    part = "text"
    opened = ""
    at = 0

    def keep(end: int) -> None:
        if stretch := unescape(text[at:end]).strip():
            parts[part].append(stretch)

    for tag in _tags(text):
        keep(tag.start())
        at = tag.end()
        name = (tag["name"] or "").lower()
        if tag["close"]:
            if name == opened:
                part = "text"
                opened = ""
        elif (wanted := _PART_OF_TAG.get(name, part)) != part:
            part = wanted
            opened = name
    keep(len(text))
    return parts


def _keep(found: dict[str, list[str]], field: str, text: str) -> None:
    """Add a stretch of a topic to its field, without the field's label; what stands outside of fields is no part."""
    if not field:
        return
    words = " ".join(unescape(text).split())
    if field in _LABELS and field not in found:
        words = re.sub(rf"^{_LABELS[field]}\s*:\s*", "", words, flags=re.IGNORECASE)
    found.setdefault(field, []).append(words)


def _stray(text: bytes, tag: str) -> LineError | None:
    """What is wrong with text outside of elements, if it is more than other tags and comments."""
    end = _behind_comments(text.rfind(b"-->"))
    rest = (_BYTES_MARKUP[0].sub(b"", text[:end]) + _BYTES_MARKUP[1].sub(b"", text[end:])).strip()
    return LineError(f"text outside <{tag}>", detail=rest[:200].decode("utf-8", "replace")) if rest else None
