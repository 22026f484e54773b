"""Check one record of a collection, whatever its layout: documents, queries, and relevance grades as lines of text."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import normalize_id
from anmi_ray.tables.delimited import delimiter_of
from anmi_ray.tables.rows import misread, whole_of
from anmi_ray.tables.streams import MAX_LINE, TOO_LARGE, LineError, decode, valid
from anmi_ray.tables.trec import DOC_COLUMNS, FIELD, QUERY_COLUMNS

Document = tuple[str, str, str]  # id, title, text
Query = tuple[str, str]  # id, text
Judged = tuple[str, str, int]  # query, document, grade

ENCODING = "corpus.encoding"
_UNFIT = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]")
_UNFIT_ID = "white space or control characters in an id: write _ or %20 in their place, in the labels too"
_SHOWN = 200  # characters of a record or header that a message quotes
FORMS = "`query 0 document grade`, or tab-separated `query document grade`"
_GRADE_COLUMNS = frozenset({"score", "grade", "relevance", "relevancy", "rel", "label", "judgment", "judgement"})
_ITERATION_COLUMNS = frozenset({"iteration", "iter", "q0", "0", "unused"})
_ROLES = (QUERY_COLUMNS, DOC_COLUMNS, _GRADE_COLUMNS)
_COLUMNS = {3: (0, 1, 2), 4: (0, 2, 3)}  # by number of columns, those of the query, the document and the grade


class TrimmedId(str):
    """An id that had white space or invisible characters around it; they are removed and counted."""


def trimmed(text: str) -> str:
    """Remove white space and invisible characters around an id; a TrimmedId if there were any."""
    clean = normalize_id(text)
    return text if clean == text else TrimmedId(clean)


def key_of(value: Mapping[str, object], name: str) -> str:
    """Return the id under `name`: a whole number, or text without white space and control characters.

    White space separates the fields of run files, and ids must be visible; around an id it is removed.
    Raises LineError.
    """
    key = value.get(name)
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if key is not None and not isinstance(key, str):
        raise LineError(f"{name} is not text or a whole number", detail=json.dumps(key, default=str)[:_SHOWN])
    key = trimmed(key or "")
    if not key:
        raise LineError(f"missing {name}", detail=", ".join(value)[:_SHOWN])
    if _UNFIT.search(key):
        raise LineError(_UNFIT_ID, key, repr(key)[:_SHOWN])
    return valid(key, key)


def text_of(value: Mapping[str, object], name: str, key: str, default: str | None = None) -> str:
    """Return the text under `name`, or `default` if it is missing or null. Raises LineError."""
    text = value.get(name, default)
    if text is None and default is not None:
        text = default
    if not isinstance(text, str):
        raise LineError(f"missing {name}", key, detail=", ".join(value)[:_SHOWN])
    return valid(text, key)


def document_in(value: Mapping[str, object], id_name: str, text: str | None = None) -> Document:
    """Return the document in an object with keys `id_name`, title (optional) and text (default: `text`).

    Raises LineError.
    """
    key = key_of(value, id_name)
    return document_of(key, text_of(value, "title", key, ""), text_of(value, "text", key, text))


def document_of(key: str, title: str, text: str) -> Document:
    """Return a stripped document. LineError if title and text are blank, or together larger than MAX_LINE."""
    if len(title) + len(text) > MAX_LINE:
        raise LineError(TOO_LARGE, key, f"{len(title) + len(text):,} characters")
    title = title.strip()
    text = text.strip()
    if not title and not text:
        raise LineError("empty document", key)
    return key, title, text


def query_in(value: Mapping[str, object], id_name: str) -> Query:
    """Return the query in an object with keys `id_name` and text. Raises LineError."""
    key = key_of(value, id_name)
    return query_of(key, text_of(value, "text", key))


def query_of(key: str, text: str) -> Query:
    """Return a stripped query. LineError if it is blank."""
    text = text.strip()
    if not text:
        raise LineError("empty query", key)
    return key, text


def judged_of(query: str, document: str, grade: object) -> Judged:
    """Return a judged pair. LineError if an id is missing, or the grade is not a whole number (2.0 is one)."""
    query = trimmed(query)
    document = trimmed(document)
    if not query or not document:
        raise LineError("missing id of the query or the document", f"{query} {document}")
    number = None if isinstance(grade, bool) else whole_of(str(grade))
    if number is None:
        raise LineError("grade is not an integer", f"{query} {document}", str(grade)[:_SHOWN])
    return query, document, number


def judged_lines(
    lines: Iterable[tuple[str, bytes | LineError]], place: str
) -> Iterator[tuple[str, Judged | LineError]]:
    """Yield (place, judged pair or LineError) of TREC's four columns, or BEIR's three with or without a header.

    A header may name the columns in any order. Raises DataError if it does not name them all.
    """
    columns: tuple[int, ...] = ()
    width = 0
    for where, raw in lines:
        try:
            if isinstance(raw, LineError):
                raise raw
            line = decode(raw)
            if not width:
                width, columns, is_header = _layout(line, where, place)
                if is_header:
                    continue
            fields = _fields(line, width)
            if len(fields) != width:
                wanted = f"{width} columns" if width else "3 or 4 columns"
                raise LineError(f"not the {wanted} of a grade{misread(line, ' ')}", detail=f"{len(fields)} columns")
            yield where, judged_of(*(fields[column] for column in columns))
        except LineError as error:
            yield where, error


def holds_grades(line: str) -> bool:
    """Return whether a line is a judged pair in one of the two forms, not the header of a table."""
    fields = FIELD.findall(line)
    return len(fields) in _COLUMNS and whole_of(fields[-1]) is not None


def _layout(line: str, where: str, place: str) -> tuple[int, tuple[int, ...], bool]:
    """Return the number of columns (0: unknown), those of query, document and grade, and whether `line` is a header."""
    fields = next((fields for width in _COLUMNS if len(fields := _fields(line, width)) == width), [])
    words = [normalize_id(field).strip('"').lower() for field in (fields or line.split(delimiter_of(line, "\t")))]
    named = [[at for at, word in enumerate(words) if word in names] for names in _ROLES]
    numeric = bool(fields) and whole_of(fields[-1]) is not None
    if numeric or not any(named):
        return len(fields), _COLUMNS.get(len(fields), ()), False
    others = [word for word in words if word not in QUERY_COLUMNS | DOC_COLUMNS | _GRADE_COLUMNS | _ITERATION_COLUMNS]
    if not fields or others or any(len(found) != 1 for found in named):
        shown = ", ".join(map(repr, words))[:_SHOWN]
        raise DataError(
            f"expected columns query-id, corpus-id, score, got {shown}{misread(line, ' ')}",
            f"{place}:{where.rpartition(':')[2]}",
            f"name them so, separated by tabs; or write each line as {FORMS}, without a header",
        )
    return len(fields), tuple(found[0] for found in named), True


def _fields(line: str, width: int) -> list[str]:
    """Split at tabs if that gives `width` fields, else at white space."""
    fields = line.split("\t")
    return fields if len(fields) == width else FIELD.findall(line)
