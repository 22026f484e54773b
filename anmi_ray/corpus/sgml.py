"""TREC's SGML: elements cut out of a stream of lines, documents and topics made of them.

It is no XML: entities are undeclared, tags stay open, files have no root. So tags are found by their form, and what
is no tag (a < b) is text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from html.entities import html5

from anmi_ray.corpus import parsing
from anmi_ray.corpus.parsing import Document, LineError, Query

SETTING = "corpus.encoding"
_MARKUP = re.compile(r"<!--.*?-->|<[!?][^<>]*>|<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]*)(?:\s[^<>]*)?/?>", re.DOTALL)
_BYTES_MARKUP = re.compile(rb"<!--.*?-->|<[!?/]?[A-Za-z][^<>]*>")
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


def elements(lines: Iterable[tuple[str, bytes]], tag: str) -> Iterator[tuple[str, bytes | LineError]]:
    """(place of its first line, content) of every <tag>…</tag>, whatever the case and however lines are broken.

    An element that never closes, a close without an open, and text between elements come as a LineError each, at the
    place where they begin. Memory is that of one element.
    """
    marker = re.compile(rb"<(/?)" + tag.encode() + rb"(?:\s[^<>]*)?>", re.IGNORECASE)
    start = ""
    inside = None
    stray = False
    for place, line in lines:
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
                inside = []
            elif inside is None:
                yield place, LineError(f"</{tag}> without <{tag}>")
            else:
                yield start, b"".join([*inside, before])
                inside = None
        if inside is not None:
            inside.append(line[at:] + b"\n")
        elif not stray and (error := _stray(line[at:], tag)):
            stray = True
            yield place, error
    if inside is not None:
        yield start, LineError(f"no </{tag}>")


def document(content: bytes, encoding: str) -> Document:
    """The document in <DOC>: its DOCNO, its titles (TITLE, HEADLINE, HL, TI), and the text of all other tags.

    Each stretch of text between tags is stripped and becomes a line; white space inside a title is collapsed; entities
    that HTML knows are unescaped. LineError where it cannot be used.
    """
    parts = _parts(parsing.decode(content, encoding, SETTING))
    key = " ".join(parts["docno"])
    if not key:
        raise LineError("missing DOCNO")
    return parsing.document_of(key, " ".join(" ".join(parts["title"]).split()), "\n".join(parts["text"]))


def topic(content: bytes, encoding: str, fields: Iterable[str]) -> Query:
    """The query in <top>: its num, and `fields` (title, desc, narr) joined by a space, white space collapsed.

    TREC's labels (Number:, Topic:, Description:, Narrative:) are taken off. LineError where num or a field is missing.
    """
    found: dict[str, str] = {}
    text = parsing.decode(content, encoding, SETTING)
    field = ""
    at = 0
    for tag in (*_MARKUP.finditer(text), None):
        _keep(found, field, text[at : tag.start() if tag else len(text)])
        if tag is None:
            break
        at = tag.end()
        name = (tag["name"] or "").lower()
        if name:
            field = "" if tag["close"] else _FIELD_OF_TAG.get(name, name)
    key = found.get("num", "")
    if not key:
        raise LineError("missing num")
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
    return html.unescape(found[0]) if name.startswith("#") else html5.get(f"{name};", found[0])


def _parts(text: str) -> dict[str, list[str]]:
    """Stretches of text, stripped and not empty, by what they are part of."""
    parts: dict[str, list[str]] = {"docno": [], "title": [], "left out": [], "text": []}
    part = "text"
    opened = ""
    at = 0

    def keep(end: int) -> None:
        if stretch := unescape(text[at:end]).strip():
            parts[part].append(stretch)

    for tag in _MARKUP.finditer(text):
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


def _keep(found: dict[str, str], field: str, text: str) -> None:
    """Add a stretch of a topic to its field, without the field's label; what stands outside of fields is no part."""
    if not field:
        return
    words = " ".join(unescape(text).split())
    if field in _LABELS and field not in found:
        words = re.sub(rf"^{_LABELS[field]}\s*:\s*", "", words, flags=re.IGNORECASE)
    found[field] = f"{found[field]} {words}".strip() if field in found else words


def _stray(text: bytes, tag: str) -> LineError | None:
    """What is wrong with text outside of elements, if it is more than other tags and comments."""
    rest = _BYTES_MARKUP.sub(b"", text).strip() if text.strip() else b""
    return LineError(f"text outside <{tag}>", detail=rest[:200].decode("utf-8", "replace")) if rest else None
