"""Collections in TREC's formats: SGML documents or MS MARCO's tsv, topics (<top> or tsv), qrels of four columns.

A .tsv file holds lines `id<TAB>text` or, for documents only, `id<TAB>url<TAB>title<TAB>body`, perhaps below a header;
every other file of documents is SGML, every other file of queries classic topics. Each may be .gz or .zst.

TREC's SGML is not XML: entities are undeclared, tags stay open, files have no root. So tags are recognized by their
form, and anything else (a < b) is text.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Iterator
from functools import partial
from html.entities import html5
from itertools import chain

from anmi_ray.core.errors import DataError
from anmi_ray.corpus import parsing
from anmi_ray.corpus.parsing import Document, Judged, Query, judged_lines
from anmi_ray.corpus.sources import File, FilesReader
from anmi_ray.tables.rows import misread
from anmi_ray.tables.streams import MAX_LINE, TOO_LARGE, LineError, decode, parsed
from anmi_ray.tables.trec import DOC_COLUMNS, QUERY_COLUMNS, is_header

_TSV = ".tsv"
_TAB = "\t"
_ID = QUERY_COLUMNS | DOC_COLUMNS | {"id", "_id"}
_TEXT = frozenset({"text", "body", "query", "question", "passage", "document", "content", "contents", "title", "url"})
_HEADERS = ([_ID, _TEXT], [_ID, {"url"}, {"title"}, _TEXT])
_COLUMNS = {2: "id, text", 4: "id, url, title, body", 0: "id, text or id, url, title, body"}  # by width, 0 unknown

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


class TrecReader(FilesReader):
    """Reads TREC's formats. Raises DataError if a file is missing."""

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        for file in self._document_files:
            if file.kind == _TSV:
                rows = _cells(file, 0)
                yield from parsed(rows, lambda row: parsing.document_of(row[0], row[2] if row[3:] else "", row[-1]))
            else:
                yield from parsed(elements(file.lines(blank=True), "DOC"), document)

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        for file in self._query_files:
            if file.kind == _TSV:
                yield from parsed(_cells(file, 2), lambda row: parsing.query_of(*row))
            else:
                found = elements(file.lines(blank=True), "top")
                yield from parsed(found, partial(topic, fields=self.config.topic_fields))

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        for file in self._qrel_files[split]:
            yield from judged_lines(file.lines(), file.place)


def _cells(file: File, width: int) -> Iterator[tuple[str, list[str] | LineError]]:
    """Yield the id and the other fields of lines; `width` 0: as many as the first line with 2 or 4 has."""
    for place, line in _below_header(file):
        try:
            if isinstance(line, LineError):
                raise line
            text = decode(line)
            fields = text.split(_TAB)
            width = width or (len(fields) if len(fields) in _COLUMNS else 0)
            if len(fields) != width:
                reason = f"not the columns {_COLUMNS[width]}{misread(text, _TAB)}"
                raise LineError(reason, detail=f"{len(fields)} columns, separated by tabs")
            yield place, [parsing.key_of({"id": fields[0]}, "id"), *fields[1:]]
        except LineError as error:
            yield place, error


def _below_header(file: File) -> Iterator[tuple[str, bytes | LineError]]:
    """Yield the lines of a tsv file without a header. Raises DataError if that names other columns or another order."""
    lines = file.lines()
    for place, line in lines:
        cells = line.decode("utf-8", "replace").split(_TAB) if isinstance(line, bytes) else []
        if is_header(cells, [_ID | _TEXT] * max(2, len(cells))):
            if not any(is_header(cells, names) for names in _HEADERS):
                raise DataError(
                    f"expected columns {_COLUMNS[0]}, got {', '.join(cells)}",
                    file.place,
                    "set corpus.reader: table, which finds columns by their names",
                )
        else:
            yield place, line
        break
    yield from lines


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
