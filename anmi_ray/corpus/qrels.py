"""Relevance grades as lines of text: TREC's four columns, or three as BEIR has them, with or without a header."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import normalize_id
from anmi_ray.corpus import parsing
from anmi_ray.corpus.parsing import Judged, LineError
from anmi_ray.tables.rows import delimiter_of, misread, whole_of
from anmi_ray.tables.trec import DOC_COLUMNS, FIELD, QUERY_COLUMNS

FORMS = "`query 0 document grade`, or tab-separated `query document grade`"
_GRADE_COLUMNS = frozenset({"score", "grade", "relevance", "relevancy", "rel", "label", "judgment", "judgement"})
_ITERATION_COLUMNS = frozenset({"iteration", "iter", "q0", "0", "unused"})
_ROLES = (QUERY_COLUMNS, DOC_COLUMNS, _GRADE_COLUMNS)
_COLUMNS = {3: (0, 1, 2), 4: (0, 2, 3)}  # by number of columns, those of the query, the document and the grade
_SHOWN = 200  # characters of a header that a message quotes


def judged_lines(
    lines: Iterable[tuple[str, bytes | LineError]], place: str
) -> Iterator[tuple[str, Judged | LineError]]:
    """(place, judged pair or why there is none) of every line; a header may name the columns in any order.

    Raises DataError, which names `place`, for a header that does not name them all.
    """
    columns: tuple[int, ...] = ()
    width = 0
    for where, raw in lines:
        try:
            if isinstance(raw, LineError):
                raise raw
            line = parsing.decode(raw)
            if not width:
                width, columns, is_header = _layout(line, where, place)
                if is_header:
                    continue
            fields = _fields(line, width)
            if len(fields) != (width or 4):
                wanted = f"{width} columns" if width else "3 or 4 columns"
                raise LineError(f"not the {wanted} of a grade{_instead(line)}", detail=f"{len(fields)} columns")
            yield where, parsing.judged_of(*(fields[column] for column in columns))
        except LineError as error:
            yield where, error


def holds_grades(line: str) -> bool:
    """Whether a line is a judged pair in one of the two forms, not the header of a table."""
    fields = FIELD.findall(line)
    return len(fields) in _COLUMNS and whole_of(fields[-1]) is not None


def _layout(line: str, where: str, place: str) -> tuple[int, tuple[int, ...], bool]:
    """How many columns there are (0: unknown), which are query, document and grade, and whether `line` names them."""
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
            f"expected columns query-id, corpus-id, score, got {shown}{_instead(line)}",
            f"{place}:{where.rpartition(':')[2]}",
            f"name them so, separated by tabs; or write each line as {FORMS}, without a header",
        )
    return len(fields), tuple(found[0] for found in named), True


def _fields(line: str, width: int) -> list[str]:
    """The fields between tabs if there are `width` of them, else those between white space."""
    fields = line.split("\t")
    return fields if len(fields) == width else FIELD.findall(line)


def _instead(line: str) -> str:
    return misread(line, " ")
