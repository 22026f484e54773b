"""TREC's SGML: extract elements from a stream of lines, and documents and topics from elements.

It is not XML: entities are undeclared, tags stay open, files have no root. So tags are recognized by their form, and
anything else (a < b) is text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from html.entities import html5
from itertools import chain

from anmi_ray.corpus import parsing
from anmi_ray.corpus.parsing import Document, Query
from anmi_ray.tables.streams import MAX_LINE, TOO_LARGE, LineError, decode

_TAG = r"<[!?][^<>]*>|<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]*)(?:\s[^<>]*)?/?>"
_BYTES_TAG = rb"<[!?/]?[A-Za-z][^<>]*>"
# Up to the last end of a comment, and after it, where searching for the end of another would take quadratic time.
_MARKUP = re.compile(rf"<!--.*?-->|{_TAG}", re.DOTALL), re.compile(_TAG)
_BYTES_MARKUP = re.compile(rb"<!--.*?-->|" + _BYTES_TAG), re.compile(_BYTES_TAG)
_ENTITY = re.compile(r"&(#\d+|#[xX][0-9a-fA-F]+|\w+);")
# The part of a document to which a tag's text belongs, if not to the text.
_PART_OF_TAG = {
    "docno": "docno",
    **dict.fromkeys(("title", "headline", "hl", "ti"), "title"),
    **dict.fromkeys(("docid", "docoldno", "dochdr"), "left out"),
    "text": "text",
}
_LABELS = {"num": "number", "title": "topic", "desc": "description", "narr": "narrative"}
_FIELD_OF_TAG = {"description": "desc", "narrative": "narr"}


def elements(lines: Iterable[tuple[str, bytes | LineError]], tag: str) -> Iterator[tuple[str, bytes | LineError]]:
    """Yield (place of its first line, content) of every <tag>…</tag>, in any case and with any line breaks.

    An element that never closes or is larger than MAX_LINE, a close without an open, and text between elements give a
    LineError at the place where they begin. Memory is that of one element.
    """
    marker = re.compile(rb"<(/?)" + tag.encode() + rb"(?:\s[^<>]*)?>", re.IGNORECASE)
    start = ""
    inside: list[bytes] | None = None  # content of an open element, unless it is too large
    size = 0
    stray = False

    def add(piece: bytes) -> None:
        nonlocal size
        assert inside is not None
        size += len(piece)
        inside.append(piece)
        if size > MAX_LINE:
            inside.clear()

    for place, line in lines:
        if isinstance(line, LineError):
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
                inside = []
                size = 0
            elif inside is None:
                yield place, LineError(f"</{tag}> without <{tag}>")
            else:
                add(before)
                too_large = LineError(TOO_LARGE, detail=f"{size:,} bytes")
                yield start, too_large if size > MAX_LINE else b"".join(inside)
                inside = None
        if inside is not None:
            add(line[at:] + b"\n")
        elif not stray and (error := _stray(line[at:], tag)):
            stray = True
            yield place, error
    if inside is not None:
        yield start, LineError(f"no </{tag}>")


def document(content: bytes) -> Document:
    """Return the document in <DOC>: its DOCNO, its titles (TITLE, HEADLINE, HL, TI), and the text of all other tags.

    Each piece of text between tags is stripped and becomes a line; white space inside a title is collapsed; HTML's
    entities are unescaped. Raises LineError.
    """
    parts = _parts(decode(content))
    key = parsing.key_of({"DOCNO": " ".join(parts["docno"])}, "DOCNO")
    return parsing.document_of(key, " ".join(" ".join(parts["title"]).split()), "\n".join(parts["text"]))


def topic(content: bytes, fields: Iterable[str]) -> Query:
    """Return the query in <top>: its num, and `fields` (title, desc, narr) joined by a space, white space collapsed.

    TREC's labels (Number:, Topic:, Description:, Narrative:) are removed. LineError if num or a field is missing.
    """
    pieces: dict[str, list[str]] = {}
    field = ""
    for piece, tag in _pieces(decode(content)):
        if field:
            words = " ".join(unescape(piece).split())
            if field in _LABELS and field not in pieces:
                words = re.sub(rf"^{_LABELS[field]}\s*:\s*", "", words, flags=re.IGNORECASE)
            pieces.setdefault(field, []).append(words)
        if tag and (name := (tag["name"] or "").lower()):
            field = "" if tag["close"] else _FIELD_OF_TAG.get(name, name)
    found = {name: " ".join(filter(None, words)) for name, words in pieces.items()}
    key = parsing.key_of(found, "num")
    for name in fields:
        if not found.get(name):
            raise LineError(f"missing {name}", key)
    return parsing.query_of(key, " ".join(found[name] for name in fields))


def unescape(text: str) -> str:
    """Resolve HTML's entities in a text; unknown ones (TREC's &hyph;) stay.

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
    except ValueError:  # too many digits for Python: not a character, like other numbers out of range
        return "\ufffd"


def _pieces(text: str) -> Iterator[tuple[str, re.Match[str] | None]]:
    """Yield the text before each tag with the tag, and the text after the last one, in time linear in the text."""
    end = _comments_end(text.rfind("-->"))
    at = 0
    for tag in chain(_MARKUP[0].finditer(text, 0, end), _MARKUP[1].finditer(text, end)):
        yield text[at : tag.start()], tag
        at = tag.end()
    yield text[at:], None


def _comments_end(last: int) -> int:
    """Return where the last comment ends, given its last `-->` (-1: none)."""
    return 0 if last < 0 else last + len("-->")


def _parts(text: str) -> dict[str, list[str]]:
    """Return the pieces of text by part, stripped, without empty ones."""
    parts: dict[str, list[str]] = {"docno": [], "title": [], "left out": [], "text": []}
    part = "text"
    opened = ""
    for piece, tag in _pieces(text):
        if stripped := unescape(piece).strip():
            parts[part].append(stripped)
        name = (tag["name"] or "").lower() if tag else ""
        if tag and tag["close"]:
            if name == opened:
                part = "text"
                opened = ""
        elif (wanted := _PART_OF_TAG.get(name, part)) != part:
            part = wanted
            opened = name
    return parts


def _stray(text: bytes, tag: str) -> LineError | None:
    """Return an error for text between elements other than tags and comments."""
    end = _comments_end(text.rfind(b"-->"))
    rest = (_BYTES_MARKUP[0].sub(b"", text[:end]) + _BYTES_MARKUP[1].sub(b"", text[end:])).strip()
    return LineError(f"text outside <{tag}>", detail=rest[:200].decode("utf-8", "replace")) if rest else None
