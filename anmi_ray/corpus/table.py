"""Collections as tables: Parquet, JSON (lines or one array), csv or tsv with a header, the text ones also .gz or .zst.

Documents, queries and qrels are files or folders on any filesystem that pyarrow knows. Files are read one after the
other, sorted by path, and a Parquet file page by page, so memory is that of a shard of documents. Rows that cannot be
used become rejects with file and row; too many of them are an error. Queries may lack ids, as in a log, and be lines of
a .txt file; qrels may also be lines in TREC's or BEIR's form.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from contextlib import closing
from itertools import chain, islice

import pyarrow as pa

from anmi_ray.config.corpus import Columns
from anmi_ray.core.errors import DataError, visible
from anmi_ray.corpus import parsing
from anmi_ray.corpus.judged import FilesReader
from anmi_ray.corpus.parsing import Document, Judged, LineError, Query, parsed
from anmi_ray.corpus.qrels import holds_grades, judged_lines
from anmi_ray.corpus.reader import text_key
from anmi_ray.corpus.sources import File
from anmi_ray.tables import parquet_rows
from anmi_ray.tables.rows import DELIMITERS, delimiter_of, is_text
from anmi_ray.tables.streams import MAX_LINE, TOO_LARGE, separator_of

# By role, a setting of corpus.columns, the names that a column usually has.
_USUAL = {
    "doc_id": ("_id", "id", "doc_id", "docid", "docno"),
    "title": ("title",),
    "text": ("text",),
    "query_id": ("_id", "id", "query_id", "qid"),
    "query": ("text", "query"),
    "qrels_query_id": ("query-id", "query_id", "qid"),
    "qrels_doc_id": ("corpus-id", "corpus_id", "doc_id", "docid", "docno"),
    "grade": ("score", "grade", "relevance", "rel"),
}
_OPTIONAL = frozenset({"title"})
_DOCUMENT = ("doc_id", "title", "text")
_QUERY = ("query_id", "query")
_QREL = ("qrels_query_id", "qrels_doc_id", "grade")
_ROWS = 256  # of Parquet that are read at once
_LOOKED_AT = 100  # lines of JSON that say which columns there are
_TEXT_ID = 16  # hexadecimal digits of an id that is a hash of the query's text

Record = dict[str, object]  # values by role
Choose = Callable[[tuple[str, ...]], dict[str, str]]  # of the columns that there are, those to read, by role


class TableReader(FilesReader):
    """Reads tables. Raises DataError where a file or column is missing, or a file is broken, naming what is there."""

    kinds = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
    query_kinds = (".txt",)

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        return parsed(self._titled(self._records(self._document_files, _DOCUMENT)), _document)

    def _titled(self, records: Iterable[tuple[str, Record | LineError]]) -> Iterator[tuple[str, Record | LineError]]:
        """The records; in the end DataError where none has the title that was named, for JSON lines may lack it."""
        title = self.config.columns.title
        met = False
        lacks = False
        for place, row in records:
            has = not isinstance(row, LineError) and row.get("title") is not None
            met = met or has
            lacks = lacks or not has
            yield place, row
        if title and lacks and not met:
            raise DataError(f"no document has a {title}", self._place(), "mend corpus.columns.title, or leave it out")

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        """A query without an id is one with its text's hash as id, however often it occurs."""
        optional = {"query_id"} if not self._qrel_files else set[str]()
        seen: set[str] = set()
        for place, row in parsed(self._records(self._query_files, _QUERY, optional), _query):
            if not isinstance(row, LineError) and row[0] == _id_of_text(row[1]):
                if row[0] in seen:
                    self._repeated += 1
                    continue
                seen.add(row[0])
            yield place, row

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        for file in self._qrel_files[split]:
            is_delimited = file.kind in (".csv", ".tsv")
            if file.kind not in self.kinds or (is_delimited and holds_grades(_first_line(file))):
                yield from judged_lines(file.lines(), file.place)
            else:
                yield from parsed(self._records([file], _QREL), _judged)

    def _records(
        self, files: Iterable[File], roles: tuple[str, ...], optional: Set[str] = frozenset()
    ) -> Iterator[tuple[str, Record | LineError]]:
        for file in files:
            readers = {".parquet": _parquet, ".csv": _delimited, ".tsv": _delimited, ".txt": _text_lines}
            yield from readers.get(file.kind, _json)(file, _chooser(file, self.config.columns, roles, optional))


def _text_lines(file: File, _: Choose) -> Iterator[tuple[str, Record | LineError]]:
    """Every line is a query."""
    for place, line in file.lines():
        yield place, line if isinstance(line, LineError) else {"query": line}


def _chooser(file: File, columns: Columns, roles: tuple[str, ...], optional: Set[str]) -> Choose:
    """What picks the columns of a file: the one that the settings name, else the only usual one.

    It raises DataError where one is missing, stands twice, or several may be meant. `optional` ones may be missing if
    the settings do not name them, and so may the title; in JSON some lines may lack it, so every line is searched.
    """
    lacking = file.kind in (".jsonl", ".json")

    def choose(names: tuple[str, ...]) -> dict[str, str]:
        chosen: dict[str, str] = {}
        for role in roles:
            given: str | None = getattr(columns, role)
            found = [name for name in ((given,) if given is not None else _USUAL[role]) if name in names]
            if len(found) == 1 and names.count(found[0]) == 1:
                chosen[role] = found[0]
            elif not found and role in _OPTIONAL and lacking:
                chosen[role] = given or _USUAL[role][0]
            elif found or given is not None or role not in _OPTIONAL | optional:
                raise DataError(
                    _wrong(role, given, found),
                    f"{file.place}, columns {visible(', '.join(names))[:200]}",
                    f"set corpus.columns.{role}",
                )
        return chosen

    return choose


def _wrong(role: str, given: str | None, found: list[str]) -> str:
    if len(found) > 1:
        return f"{' and '.join(found)} may each be the {role}"
    if found:
        return f"column {found[0]} stands twice"
    return f"no column {given}" if given is not None else f"no column for the {role} (usual: {', '.join(_USUAL[role])})"


def _parquet(file: File, choose: Choose) -> Iterator[tuple[str, Record | LineError]]:
    number = 0
    with file.open_seekable() as stream:
        try:
            with parquet_rows.opened(stream, file.place) as table:
                chosen = choose(tuple(table.schema_arrow.names))
                _check_types(table.schema_arrow, chosen, file.place)
                for batch in parquet_rows.batches(table, list(dict.fromkeys(chosen.values())), _ROWS):
                    columns = {role: _values(batch.column(name)) for role, name in chosen.items()}
                    for i in range(batch.num_rows):
                        number += 1
                        yield f"{file.name} row {number}", {role: values[i] for role, values in columns.items()}
        except (pa.ArrowException, OSError) as error:
            where = f"after row {number}" if number else "from its start"
            remedy = "fetch or write the file again; it must be a whole Parquet file"
            raise DataError(f"cannot be read {where}: {error}", file.place, remedy) from error


def _check_types(schema: pa.Schema, chosen: Mapping[str, str], place: str) -> None:
    for role, name in chosen.items():
        type_ = _plain(schema.field(name).type)
        if pa.types.is_null(type_) or is_text(type_):
            continue
        number = pa.types.is_integer(type_) or (role == "grade" and pa.types.is_floating(type_))
        if number and role in ("doc_id", "query_id", "qrels_query_id", "qrels_doc_id", "grade"):
            continue
        raise DataError(
            f"column {name} ({role}) is {type_}, must be text"
            + (" or a whole number" if number or "id" in role else ""),
            place,
            f"write it so, or name another with corpus.columns.{role}",
        )


def _plain(type_: pa.DataType) -> pa.DataType:
    return type_.value_type if pa.types.is_dictionary(type_) else type_


def _values(column: pa.Array) -> list[object]:
    """The values of a column; texts as bytes, for Parquet promises UTF-8 and keeps no one from writing other bytes."""
    if is_text(column.type):
        column = column.cast(pa.large_binary())
    return column.to_pylist()


def _json(file: File, choose: Choose) -> Iterator[tuple[str, Record | LineError]]:
    """Which columns there are is what the first lines have; a line may lack some."""
    records = parsed(file.lines(), parsing.json_object)
    first = list(islice(records, _LOOKED_AT))
    names: dict[str, None] = {}
    for _, row in first:
        names |= {} if isinstance(row, LineError) else dict.fromkeys(row)
    chosen = choose(tuple(names)) if names else {}
    for place, row in chain(first, records):
        yield place, row if isinstance(row, LineError) else {role: row.get(name) for role, name in chosen.items()}


def _delimited(file: File, choose: Choose) -> Iterator[tuple[str, Record | LineError]]:
    """A file whose header holds but one sign that separates cells is read by it, whatever the file is called."""
    usual = "\t" if file.kind == ".tsv" else ","
    header = _first_line(file)
    delimiter = separator_of(header.encode()) or delimiter_of(header, usual)
    return _tsv(file, choose) if delimiter == "\t" else _csv(file, choose, delimiter)


def _first_line(file: File) -> str:
    with closing(file.lines()) as lines:
        return next((line for _, line in lines if isinstance(line, bytes)), b"").decode("utf-8", "replace")


def _below_separator(
    lines: Iterable[tuple[str, bytes | LineError]],
) -> Iterator[tuple[str, bytes | LineError]]:
    """The lines without a first one `sep=;`."""
    rest = iter(lines)
    first = list(islice(rest, 1))
    return chain((row for row in first if isinstance(row[1], LineError) or not separator_of(row[1])), rest)


def _tsv(file: File, choose: Choose) -> Iterator[tuple[str, Record | LineError]]:
    names: tuple[str, ...] = ()
    chosen: dict[str, str] = {}
    for place, line in _below_separator(file.lines()):
        if isinstance(line, LineError):
            if not names:
                raise DataError(f"its header is {line.reason}", file.place, "write the columns' names there")
            yield place, line
            continue
        cells = line.split(b"\t")
        if not names:
            names = tuple(cell.decode("utf-8", "replace").strip() for cell in cells)
            chosen = choose(names)
        elif len(cells) != len(names):
            detail = f"{len(cells)} columns, must be {len(names)}, separated by tabs"
            yield place, LineError("not as many columns as the header", detail=detail)
        else:
            yield place, {role: cells[names.index(name)] for role, name in chosen.items()}


def _csv(file: File, choose: Choose, delimiter: str) -> Iterator[tuple[str, Record | LineError]]:
    """Rows count from 1 below the header, as Parquet's do: a quoted cell may run over several lines."""
    names: tuple[str, ...] = ()
    chosen: dict[str, str] = {}
    for number, cells in enumerate(_csv_rows(file, delimiter)):
        place = f"{file.name} row {number}"
        if isinstance(cells, LineError):
            if not names:
                what = f"its header is no CSV: {cells.reason}, {cells.detail}"
                raise DataError(what, file.place, "write the columns' names there")
            yield place, cells
        elif not names:
            names = tuple(cell.strip() for cell in cells)
            chosen = choose(names)
        elif len(cells) != len(names):
            detail = f"{len(cells)} columns, must be {len(names)}, separated by {DELIMITERS.get(delimiter, delimiter)}"
            yield place, LineError("not as many columns as the header", detail=detail)
        else:
            # Back to bytes: those that are no UTF-8 went through the parser as lone surrogates.
            raw = {role: cells[names.index(name)] for role, name in chosen.items()}
            yield place, {role: cell.encode("utf-8", "surrogateescape") for role, cell in raw.items()}


def _csv_rows(file: File, delimiter: str) -> Iterator[list[str] | LineError]:
    """The cells of every row that is not blank, the header among them.

    Raises DataError where a quotation mark is never closed: the rows below it are in that cell.
    """
    csv.field_size_limit(sys.maxsize)  # of the whole process: the default refuses documents of 128 KiB
    number = 0
    start = 1
    size = 0
    refused: LineError | None = None

    def lines() -> Iterator[str]:
        nonlocal size, refused
        for _, line in _below_separator(file.lines(blank=True)):
            if isinstance(line, LineError):
                refused = line
                line = b""
            size += len(line)
            if size > MAX_LINE:
                raise _open_quote(file, start, f"row {number} is {TOO_LARGE}; a quotation mark in it may not be closed")
            yield f"{line.decode('utf-8', 'surrogateescape')}\n"

    rows = csv.reader(lines(), delimiter=delimiter, strict=True)
    while True:
        start = rows.line_num + 1
        size = 0
        refused = None
        try:
            cells = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise _open_quote(file, start, f"a quotation mark in row {number} is never closed") from None
            yield LineError("broken CSV", detail=str(error))
        else:
            if refused is None and not cells:
                continue
            yield refused or cells
        number += 1


def _open_quote(file: File, line: int, message: str) -> DataError:
    remedy = 'close it, and write a quotation mark inside of a quoted cell twice ("")'
    return DataError(message, f"{file.place}:{line}", remedy)


def _document(row: Record) -> Document:
    value = _decoded(row)
    key = parsing.key_of(value, "doc_id")
    return parsing.document_of(key, parsing.text_of(value, "title", key, ""), parsing.text_of(value, "text", key))


def _query(row: Record) -> Query:
    value = _decoded(row)
    text = parsing.text_of(value, "query", "")
    return parsing.query_of(parsing.key_of(value, "query_id") if "query_id" in row else _id_of_text(text), text)


def _id_of_text(text: str) -> str:
    """The id of a query that has none: the same text has the same id in any file."""
    return text_key(text).hex()[:_TEXT_ID]


def _judged(row: Record) -> Judged:
    value = _decoded(row)
    query = parsing.key_of(value, "qrels_query_id")
    document = parsing.key_of(value, "qrels_doc_id")
    if value.get("grade") is None:
        raise LineError("missing grade", f"{query} {document}")
    return parsing.judged_of(query, document, value["grade"])


def _decoded(row: Record) -> Record:
    return {role: parsing.decode(value) if isinstance(value, bytes) else value for role, value in row.items()}
