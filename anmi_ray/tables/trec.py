"""Read and write runs, with the collection's own ids.

A line of TREC's text format is `qid Q0 docid rank score tag`; the tag is the system. Also read are MS MARCO's lines,
`qid docid rank` with or without a score, and tables with a header.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Literal, NamedTuple

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import doc_id, normalize_id, query_id
from anmi_ray.core.records import RUN
from anmi_ray.tables import formats, streams
from anmi_ray.tables.rows import Rows, misread, real_of, whole_of

FIELD = re.compile(r"[^ \t\r\n\f]+")  # not str.split: a no-break space may be part of an id
# Names of columns, in lower case, by which a header is recognized.
QUERY_COLUMNS = frozenset({"query-id", "query_id", "queryid", "query", "qid", "q_id", "topic", "topic_id", "topic-id"})
DOC_COLUMNS = frozenset(
    {"corpus-id", "corpus_id", "doc-id", "doc_id", "docid", "doc", "docno", "document", "document_id", "did", "pid"}
    | {"passage_id", "passage-id", "passage"}
)
_RUN_HEADER = (
    QUERY_COLUMNS,
    frozenset({"q0", "iter", "iteration"}),
    DOC_COLUMNS,
    frozenset({"rank"}),
    frozenset({"score", "sim", "similarity"}),
    frozenset({"tag", "system", "run", "runid", "run_id", "run-id", "run_name", "runtag", "run_tag", "name"}),
)
_QUERY, _, _DOC, _RANK, _SCORE, _SYSTEM = _RUN_HEADER
_HEADERS = {6: _RUN_HEADER, 4: (_QUERY, _DOC, _RANK, _SCORE), 3: (_QUERY, _DOC, _RANK | _SCORE)}  # by number of fields
_SYSTEM_OF_TABLE = _SYSTEM - {"name"}  # which may be a document's
# The order of equal scores: by written rank, then document id; or as in trec_eval, which reads scores as 32 bits, by
# descending bytes of the document id.
Ties = Literal["rank", "trec_eval"]
_SHOWN = 40  # characters of a field in a message
_WRITE = "write each line as: qid Q0 docid rank score tag"


def format_run(run: pa.Table, queries: pa.Table, documents: pa.Table) -> str:
    """Return the run as TREC text, sorted by (tag, external query id, rank), with exact scores.

    `queries` needs columns query_id and external_id, `documents` doc_id and external_id.
    Raises DataError for an unknown id, and for an external id or tag with white space, which the format cannot express.
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


class NamedRun(NamedTuple):
    """A run, as read from a file.

    table: Run rows.
    queries, documents: internal ids by the ids in the file.
    """

    table: pa.Table
    queries: Mapping[str, bytes]
    documents: Mapping[str, bytes]


class _Line(NamedTuple):
    """A parsed line of a run file, and its number."""

    tag: str
    query: str
    doc: str
    rank: int
    score: float
    number: int


def parse_run(
    lines: Iterable[str], place: str, ties: Ties = "rank", say: Callable[[str], None] | None = None
) -> NamedRun:
    """Parse TREC lines into a run, with a system per tag in the order of the file, and ids hashed from external ones.

    Ranks are 1..n by descending score; `ties` orders equal scores. A header is skipped. `say` receives a message if
    written ranks contradict the scores, or blanks around ids were removed. Raises DataError naming `place` and line for
    a line without six fields, a rank or score that is not a number, and a repeated document.
    """
    return _run(_text_records(lines, place), place, ties, say)


def _run(
    records: Iterable[tuple[int, list[str]]], place: str, ties: Ties, say: Callable[[str], None] | None
) -> NamedRun:
    """Return the run of numbered records of six fields."""
    ordered = _ordered(records, place, ties, say)
    ranks: list[int] = []
    for i, line in enumerate(ordered):
        ranks.append(ranks[-1] + 1 if i and ordered[i - 1][:2] == line[:2] else 1)
    query_ids = {name: query_id(name) for name in {line.query for line in ordered}}
    doc_ids = {name: doc_id(name) for name in {line.doc for line in ordered}}
    table = RUN.table(
        {
            "query_id": [query_ids[line.query] for line in ordered],
            "doc_id": [doc_ids[line.doc] for line in ordered],
            "system": [line.tag for line in ordered],
            "rank": ranks,
            "score": [line.score for line in ordered],
        }
    )
    return NamedRun(table, query_ids, doc_ids)


def _text_records(lines: Iterable[str], place: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and six fields of each line. The first line tells TREC's format from MS MARCO's."""
    width, scored, tag = 0, False, _tag(place)
    for number, line in enumerate(lines, 1):
        fields = FIELD.findall(line)
        if not fields:
            continue
        if not width:
            width = len(fields) if len(fields) in _HEADERS else 6
            if is_header(fields, _HEADERS[width]):
                scored = width == 3 and fields[2].strip('"').lower() in _RUN_HEADER[4]
                continue
        if len(fields) != width:
            what = f"{len(fields)} fields, must be {width}{misread(line, ' ')}"
            raise DataError(what, f"{place}:{number}", _WRITE)
        if width < 6:  # a smaller rank is a larger score
            query, doc, rank, *score = [*fields[:2], "0", fields[2]] if scored else fields
            fields = [query, "Q0", doc, rank, *(score or [f"-{rank}"]), tag]
        yield number, fields


def _table_records(path: Path) -> Iterator[tuple[int, list[str]]]:
    """Yield the number and six fields of each row of a table, whose columns are recognized by their names."""
    for rows in formats.read_batches(path, [*_QUERY, *_DOC, *_SYSTEM_OF_TABLE], [*_RANK, *_SCORE]):
        for refused in rows.refused.slice(0, 1).to_pylist():
            raise DataError(refused["reason"], refused["place"], "correct it")
        query, doc, rank, score, system = (
            _named(rows, names) for names in (_QUERY, _DOC, _RANK, _SCORE, _SYSTEM_OF_TABLE)
        )
        needed = {"query_id": query, "doc_id": doc, "score": score or rank}
        rows.need([found or name for name, found in needed.items()], [query, doc, rank, score, system])
        count = rows.table.num_rows
        ids = [rows.text(name).to_pylist() if name else [_tag(path)] * count for name in (query, doc, system)]
        ranks = rows.number(rank)[0].tolist() if rank else [0.0] * count
        scores = rows.number(score)[0].tolist() if score else [-place for place in ranks]
        numbers = range(1, count + 1) if rows.numbers is None else rows.numbers.tolist()
        for number, *names, place, value in zip(numbers, *ids, ranks, scores, strict=True):
            yield number, [names[0] or "", "Q0", names[1] or "", repr(place), repr(value), names[2] or ""]


def _named(rows: Rows, names: frozenset[str]) -> str:
    """Return the column with one of these names, or ""; query_id rather than query, which may hold the text."""
    return max(sorted(names & set(rows.columns)), key=lambda name: name.endswith(("id", "no")), default="")


def _tag(path: str | Path) -> str:
    """Return the name of a file's system, if the file names none."""
    return Path(path).name.split(".")[0] or "run"


def _ordered(
    records: Iterable[tuple[int, list[str]]], place: str, ties: Ties, say: Callable[[str], None] | None
) -> list[_Line]:
    """Return the lines of a run file by system and query, each ranking in order."""
    found: dict[tuple[str, str, str], _Line] = {}
    trimmed = 0
    for number, fields in records:
        here = f"{place}:{number}"
        written = fields[0], fields[2], fields[5]
        query, doc, tag = names = tuple(map(normalize_id, written))
        trimmed += names != written
        if not all(names):
            raise DataError("an id or the tag is blank", here, _WRITE)
        rank, score = whole_of(fields[3]), real_of(fields[4])
        if rank is None:
            message = f"rank {fields[3][:_SHOWN]!r} is not a whole number"
            raise DataError(message, here, "write the rank as a whole number of at most nine digits")
        if score is None:
            point = ", with a point for its comma" if "," in fields[4] else ""
            message = f"score {fields[4][:_SHOWN]!r} is not a finite number"
            raise DataError(message, here, f"write the score as a decimal number{point}")
        line = _Line(tag, query, doc, rank, score, number)
        first = found.setdefault((tag, query, doc), line)
        if first is not line:
            message = f"document {doc!r} is repeated for query {query!r} and tag {tag!r}: first in line {first.number}"
            raise DataError(message, here, "keep one of the lines")
    tags = {line.tag: at for at, line in enumerate(reversed(found.values()))}
    ordered = sorted(found.values(), key=lambda line: (-tags[line.tag], line.query, -line.score, line.rank, line.doc))
    if say is not None and trimmed:
        say(f"{place}: invisible characters around the ids of {trimmed:,} lines were removed")
    if say is not None:
        _say_contradictions(ordered, place, say)
    if ties == "trec_eval":
        ordered.sort(key=lambda line: line.doc, reverse=True)
        ordered.sort(key=lambda line: (-tags[line.tag], line.query, -ctypes.c_float(line.score).value))
    return ordered


def _say_contradictions(ordered: list[_Line], place: str, say: Callable[[str], None]) -> None:
    """Report written ranks that contradict the scores; lines are sorted by score, then written rank."""
    odd = [after for before, after in pairwise(ordered) if before[:2] == after[:2] and before.rank > after.rank]
    if odd:
        count = len({line[:2] for line in odd})
        some = "1 ranking" if count == 1 else f"{count:,} rankings"
        first = min(line.number for line in odd)
        say(f"{place}:{first}: the written ranks of {some} contradict the scores: the scores decide")


def named(run: pa.Table, queries: pa.Table, documents: pa.Table) -> pa.Table:
    """Return a run with external ids, in the order of `format_run`. Errors as there."""
    for place, key, table in ((0, "query_id", queries), (1, "doc_id", documents)):
        found = pc.index_in(run[key], value_set=table[key].combine_chunks())
        if found.null_count:
            missing = run[key].filter(pc.is_null(found))[0].as_py().hex()
            raise DataError(f"{key} {missing} has no external id", "TREC run", "give the collection that was searched")
        run = run.set_column(place, key, table["external_id"].take(found))
    return run.sort_by([("system", "ascending"), ("query_id", "ascending"), ("rank", "ascending")])


def read_run(path: str | Path, ties: Ties = "rank", say: Callable[[str], None] | None = None) -> NamedRun:
    """Return the run of a file; .gz and .zst are unpacked, `-` is standard input.

    A table (.csv, .json, .jsonl, .parquet) needs columns query_id, doc_id, and score or rank.
    Raises StoreError if it cannot be read, DataError if it is malformed.
    """
    path, place = Path(path), place_of(path)
    if {".csv", ".json", ".jsonl", ".parquet"} & {suffix.lower() for suffix in path.suffixes[-2:]}:
        return _run(_table_records(path), place, ties, say)
    return parse_run(formats.text_lines(path), place, ties, say)


def one_system(path: Path, say: Callable[[str], None] | None) -> NamedRun:
    """Return the run of a file with one system. Raises DataError if it has none or several, else as `read_run`."""
    run = read_run(path, say=say)
    tags = pc.unique(run.table["system"]).to_pylist()
    if len(tags) != 1:
        what = f"holds {len(tags)} systems ({', '.join(tags[:3])})" if tags else "holds no ranking"
        raise DataError(what, place_of(path), "give the rankings of one system")
    return run


def is_header(cells: Sequence[str], names: Sequence[Collection[str]]) -> bool:
    """Return whether a first line is a header: every cell is a known name of its column."""
    words = (normalize_id(cell).strip('"').lower() for cell in cells)
    return len(cells) == len(names) and all(word in known for word, known in zip(words, names, strict=True))


def place_of(path: str | Path) -> str:
    """Return the name of a file or of standard input for messages."""
    return streams.INPUT if Path(path) == streams.STANDARD else str(path)
