"""Runs and judgments in TREC's text formats, the tongue that retrieval tools share; ids are the collection's own.

A run line is `qid Q0 docid rank score tag`, a qrels line `qid 0 docid grade`; the tag is the system.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Iterable, Iterator
from itertools import chain, pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import doc_id, query_id
from anmi_ray.core.records import QREL, RUN
from anmi_ray.tables import formats, streams
from anmi_ray.tables.rows import misread, real_of, whole_of

BEIR_QRELS = ("query-id", "corpus-id", "score")
FIELD = re.compile(r"[^ \t\r\n\f]+")  # not str.split: a no-break space may be part of an id
# How equal scores go: by the written rank, then by document id; or as in trec_eval, which reads scores as 32 bits, by
# document id, the last in the order of bytes first.
Ties = Literal["rank", "trec_eval"]
_SHOWN = 40  # characters of a field that a message quotes


def format_run(run: pa.Table, queries: pa.Table, documents: pa.Table) -> str:
    """The run as TREC text, sorted by (tag, external query id, rank); scores read back as the same numbers.

    `queries` needs columns query_id and external_id, `documents` doc_id and external_id.
    Raises DataError for an id without a name, or a name or tag with white space in it, which the format cannot hold.
    """
    if not run.num_rows:
        return ""
    names = named(run, queries, documents).rename_columns({"query_id": "query", "doc_id": "doc", "system": "tag"})
    for column in ("query", "doc", "tag"):
        spaced = names[column].filter(pc.match_substring_regex(names[column], r"^$|\s"))
        if len(spaced):
            raise DataError(
                f"{column} {spaced[0].as_py()!r} is empty or holds white space, which separates the fields of a line",
                "TREC run",
                "rename it in the collection, or write the run as Parquet",
            )
    rank, score = (names[column].cast(pa.string()) for column in ("rank", "score"))
    lines = pc.binary_join_element_wise(names["query"], "Q0", names["doc"], rank, score, names["tag"], " ")
    return "\n".join(lines.to_pylist()) + "\n"


class _Line(NamedTuple):
    """What a line of a run file says, and its number."""

    tag: str
    query: str
    doc: str
    rank: int
    score: float
    number: int


def parse_run(
    lines: Iterable[str], place: str, ties: Ties = "rank", say: Callable[[str], None] | None = None
) -> pa.Table:
    """Run table of TREC lines, ids hashed from the external ones: a system for each tag, in the order of the file.

    Ranks are 1..n by falling score; `ties` says how equal scores go. `say` is told once where the written ranks
    contradict the scores. Raises DataError naming `place` and line for a line without six fields, a rank or score that
    is no number, and a document that occurs twice.
    """
    return _run_table(_ordered(lines, place, ties, say))


def _ordered(lines: Iterable[str], place: str, ties: Ties, say: Callable[[str], None] | None) -> list[_Line]:
    """The lines of a run file by system and query, each ranking in its order."""
    found: dict[tuple[str, str, str], _Line] = {}
    for number, line, fields in _fields(lines):
        here = f"{place}:{number}"
        if len(fields) != 6:
            raise DataError(
                f"{len(fields)} fields, must be 6{misread(line, ' ')}",
                here,
                "write each line as: qid Q0 docid rank score tag",
            )
        query, _, doc, rank, score, tag = fields
        line = _Line(tag, query, doc, _integer(rank, "rank", here), _number(score, "score", here), number)
        first = found.setdefault((tag, query, doc), line)
        if first is not line:
            what = f"document {doc!r} stands twice under query {query!r} and tag {tag!r}: first in line {first.number}"
            raise DataError(what, here, "keep one of the lines")
    tags = {line.tag: at for at, line in enumerate(reversed(found.values()))}
    ordered = sorted(found.values(), key=lambda line: (-tags[line.tag], line.query, -line.score, line.rank, line.doc))
    if say is not None:
        _say_contradictions(ordered, place, say)
    if ties == "trec_eval":
        ordered.sort(key=lambda line: line.doc, reverse=True)
        ordered.sort(key=lambda line: (-tags[line.tag], line.query, -ctypes.c_float(line.score).value))
    return ordered


def _run_table(ordered: list[_Line]) -> pa.Table:
    """The Run table of lines in order."""
    ranks: list[int] = []
    for i, line in enumerate(ordered):
        ranks.append(ranks[-1] + 1 if i and ordered[i - 1][:2] == line[:2] else 1)
    query_ids = {name: query_id(name) for name in {line.query for line in ordered}}
    doc_ids = {name: doc_id(name) for name in {line.doc for line in ordered}}
    return RUN.table(
        {
            "query_id": [query_ids[line.query] for line in ordered],
            "doc_id": [doc_ids[line.doc] for line in ordered],
            "system": [line.tag for line in ordered],
            "rank": ranks,
            "score": [line.score for line in ordered],
        }
    )


def _say_contradictions(ordered: list[_Line], place: str, say: Callable[[str], None]) -> None:
    """Tell of written ranks that fall where the score does; lines are in order of score, then of written rank."""
    odd = [after for before, after in pairwise(ordered) if before[:2] == after[:2] and before.rank > after.rank]
    if odd:
        count = len({line[:2] for line in odd})
        some = "1 ranking" if count == 1 else f"{count:,} rankings"
        first = min(line.number for line in odd)
        say(f"{place}:{first}: the written ranks of {some} contradict the scores: the scores decide")


def parse_qrels(lines: Iterable[str], place: str) -> pa.Table:
    """Qrel table of TREC lines, or of BEIR's three columns under their header, sorted as written.

    Raises DataError naming `place` and line, as `parse_run`.
    """
    grades: dict[tuple[str, str], int] = {}
    seen: dict[tuple[str, str], int] = {}
    for number, query, doc, grade in _graded(lines, place):
        here = f"{place}:{number}"
        if (first := seen.setdefault((query, doc), number)) != number:
            what = f"document {doc!r} is judged twice for query {query!r}: first in line {first}"
            raise DataError(what, here, "keep one of the lines")
        grades[query, doc] = _integer(grade, "grade", here)
    return QREL.table(
        {
            "query_id": [query_id(query) for query, _ in grades],
            "doc_id": [doc_id(doc) for _, doc in grades],
            "grade": list(grades.values()),
        }
    )


def named(run: pa.Table, queries: pa.Table, documents: pa.Table) -> pa.Table:
    """A run, and what other columns it has, under external ids, in the order of `format_run`. Errors as there."""
    for place, key, table in ((0, "query_id", queries), (1, "doc_id", documents)):
        run = run.set_column(place, key, _named(run[key], table, key))
    return run.sort_by([("system", "ascending"), ("query_id", "ascending"), ("rank", "ascending")])


def read_run(path: str | Path, ties: Ties = "rank", say: Callable[[str], None] | None = None) -> pa.Table:
    """The Run table of a TREC run file; .gz and .zst are unpacked, `-` is standard input.

    StoreError if it cannot be read, DataError if it is malformed.
    """
    return parse_run(formats.text_lines(Path(path)), place_of(path), ties, say)


def read_named_run(path: str | Path, say: Callable[[str], None] | None = None) -> tuple[pa.Table, list[str]]:
    """As `read_run`, with the documents' names of its rows as they stand in the file."""
    ordered = _ordered(formats.text_lines(Path(path)), place_of(path), "rank", say)
    return _run_table(ordered), [line.doc for line in ordered]


def read_qrels(path: str | Path) -> pa.Table:
    """The Qrel table of a qrels file, TREC's or BEIR's; errors as `read_run`."""
    return parse_qrels(formats.text_lines(Path(path)), place_of(path))


def place_of(path: str | Path) -> str:
    """What a message calls a file, or standard input."""
    return streams.INPUT if Path(path) == streams.STANDARD else str(path)


def _fields(lines: Iterable[str]) -> Iterable[tuple[int, str, list[str]]]:
    """(line number from 1, line, fields) of the lines that are not blank."""
    return ((number, line, fields) for number, line in enumerate(lines, 1) if (fields := FIELD.findall(line)))


def _graded(lines: Iterable[str], place: str) -> Iterator[tuple[int, str, str, str]]:
    """(line number, query, document, grade) of qrels in either format."""
    numbered = ((number, line) for number, line in enumerate(lines, 1) if line.strip())
    first = next(numbered, (0, ""))
    names = [name.strip() for name in first[1].removeprefix("\ufeff").split("\t")]
    beir = sorted(names) == sorted(BEIR_QRELS)
    wanted, remedy = (3, "query-id, corpus-id, score, tab-separated") if beir else (4, "qid 0 docid grade")
    columns = [names.index(name) for name in BEIR_QRELS] if beir else [0, 2, 3]
    for number, line in numbered if beir else chain([first], numbered):
        fields = [field.strip() for field in line.split("\t")] if beir else FIELD.findall(line)
        if not fields:
            continue
        if len(fields) != wanted:
            here = f"{place}:{number}"
            raise DataError(
                f"{len(fields)} fields, must be {wanted}{misread(line, ' ')}", here, f"write each line as: {remedy}"
            )
        query, doc, grade = (fields[column] for column in columns)
        yield number, query, doc, grade


def _named(ids: pa.ChunkedArray, table: pa.Table, key: str) -> pa.ChunkedArray:
    found = pc.index_in(ids, value_set=table[key].combine_chunks())
    if found.null_count:
        missing = ids.filter(pc.is_null(found))[0].as_py().hex()
        raise DataError(f"{key} {missing} has no external id", "TREC run", "give the collection that was searched")
    return table["external_id"].take(found)


def _number(text: str, what: str, place: str) -> float:
    value = real_of(text)
    if value is None:
        remedy = f"write the {what} as a decimal number{_point(text)}"
        raise DataError(f"{what} {text[:_SHOWN]!r} is not a finite number", place, remedy)
    return value


def _integer(text: str, what: str, place: str) -> int:
    value = whole_of(text)
    if value is None:
        remedy = f"write the {what} as a whole number of at most nine digits"
        raise DataError(f"{what} {text[:_SHOWN]!r} is not a whole number", place, remedy)
    return value


def _point(text: str) -> str:
    """What a remedy says more of a number with a decimal comma."""
    return ", with a point for its comma" if real_of(text.replace(",", ".", 1)) is not None else ""
