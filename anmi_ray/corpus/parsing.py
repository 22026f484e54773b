"""What one record of a collection must hold, whatever the layout it stands in, and why one cannot be used."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeVar

from anmi_ray.core.identity import normalize_id
from anmi_ray.tables.rows import whole_of
from anmi_ray.tables.streams import MAX_LINE, TOO_LARGE

Document = tuple[str, str, str]  # id, title, text
Query = tuple[str, str]  # id, text
Judged = tuple[str, str, int]  # query, document, grade

ENCODING = "corpus.encoding"
NOT_TEXT = f"not UTF-8, see {ENCODING}"
_UNFIT = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]")
_UNFIT_ID = "white space or control characters in an id: write _ or %20 in their place, in the labels too"
_SHOWN = 200  # characters of a record that a reject quotes
Raw = TypeVar("Raw")
Row = TypeVar("Row")


class LineError(Exception):
    """Why one record cannot be used; caught where records are read, and turned into a reject.

    sample: of a record that is not UTF-8, bytes by which its encoding may be guessed.
    """

    def __init__(self, reason: str, key: str = "", detail: str = "", sample: bytes = b"") -> None:
        super().__init__(reason)
        self.reason = reason
        self.key = key
        self.detail = detail
        self.sample = sample


class TrimmedId(str):
    """An id that was written with white space or invisible characters around it; these are removed, and counted."""


def trimmed(text: str) -> str:
    """An id without white space and invisible characters at its ends, a TrimmedId if it had some."""
    clean = normalize_id(text)
    return text if clean == text else TrimmedId(clean)


def parsed(
    records: Iterable[tuple[str, Raw | LineError]], parse: Callable[[Raw], Row]
) -> Iterator[tuple[str, Row | LineError]]:
    """(place, what `parse` makes of a record) or (place, why it cannot be used)."""
    for place, record in records:
        if isinstance(record, LineError):
            yield place, record
            continue
        try:
            yield place, parse(record)
        except LineError as error:
            yield place, error


def too_large(size: int) -> LineError:
    """Why a record of more than MAX_LINE bytes is refused."""
    return LineError(TOO_LARGE, detail=f"{size:,} bytes")


def decode(line: bytes) -> str:
    """The text of bytes. LineError if they are not UTF-8, which lines in another encoding were converted to."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise LineError(NOT_TEXT, detail=f"byte {error.start}", sample=line) from None


def json_object(line: bytes) -> dict[str, object]:
    """The object that a line of JSON holds. LineError where it holds none."""
    try:
        value = json.loads(decode(line))
    except (ValueError, RecursionError) as error:
        raise LineError("broken JSON", detail=str(error)) from None
    if not isinstance(value, dict):
        raise LineError("broken JSON", detail="not an object")
    return value


def key_of(value: Mapping[str, object], name: str) -> str:
    """The id under `name`: a whole number, or a text without white space and control characters; else LineError.

    White space separates the fields of run files, and an id must be visible on a terminal. At its ends it is removed.
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
    return _checked(key, key)


def text_of(value: Mapping[str, object], name: str, key: str, default: str | None = None) -> str:
    """The text under `name`, else `default`. LineError where it is missing and has no default, or is no text."""
    text = value.get(name, default)
    if text is None and default is not None:
        text = default
    if not isinstance(text, str):
        raise LineError(f"missing {name}", key, detail=", ".join(value)[:_SHOWN])
    return _checked(text, key)


def document_of(key: str, title: str, text: str) -> Document:
    """A document, stripped. LineError where title and text are both blank, or together larger than MAX_LINE."""
    if len(title) + len(text) > MAX_LINE:
        raise LineError(TOO_LARGE, key, f"{len(title) + len(text):,} characters")
    title = title.strip()
    text = text.strip()
    if not title and not text:
        raise LineError("empty document", key)
    return key, title, text


def query_of(key: str, text: str) -> Query:
    """A query, stripped. LineError where it is blank."""
    text = text.strip()
    if not text:
        raise LineError("empty query", key)
    return key, text


def judged_of(query: str, document: str, grade: object) -> Judged:
    """A judged pair. LineError if an id is missing, or the grade is not a whole number (2.0 is one, 1.5 is not)."""
    query = trimmed(query)
    document = trimmed(document)
    if not query or not document:
        raise LineError("missing id of the query or the document", f"{query} {document}")
    number = None if isinstance(grade, bool) else whole_of(str(grade))
    if number is None:
        raise LineError("grade is not an integer", f"{query} {document}", str(grade)[:_SHOWN])
    return query, document, number


def _checked(text: str, key: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON may spell half of a surrogate pair, which no UTF-8 column can hold
        raise LineError("not valid Unicode", key) from None
    return text
