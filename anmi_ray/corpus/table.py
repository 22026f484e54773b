"""Collections as tables: Parquet, JSON (lines or one array), csv or tsv with a header, text also as .gz or .zst.

Documents, queries and qrels are files or folders on any filesystem that pyarrow supports. Files are read one after the
other, sorted by path, and a Parquet file page by page, so memory is that of a shard of documents. Rows that cannot be
used become rejects with file and line; too many of them are an error. Queries may lack ids, as in a log, and be lines
of a .txt file; qrels may also be lines in TREC's or BEIR's form.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from contextlib import closing
from itertools import chain, islice

import pyarrow as pa

from anmi_ray.core.errors import DataError, visible
from anmi_ray.corpus import parsing
from anmi_ray.corpus.parsing import Document, Judged, Query, holds_grades, judged_lines
from anmi_ray.corpus.sources import File, FilesReader
from anmi_ray.corpus.splits import text_key
from anmi_ray.tables import delimited, parquet_rows
from anmi_ray.tables.rows import is_text
from anmi_ray.tables.streams import LineError, decode, json_object, parsed

# By role, a setting of corpus.columns, the usual names of a column.
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
_ROWS = 256  # rows of Parquet read at once
_LOOKED_AT = 100  # lines of JSON that decide which columns exist
_TEXT_ID = 16  # hexadecimal digits of an id that is a hash of the query's text

Record = dict[str, object]  # values by role
Choose = Callable[[tuple[str, ...]], dict[str, str]]  # maps all columns to those to read, by role
Records = Iterator[tuple[str, Record | LineError]]


class TableReader(FilesReader):
    """Reads tables. Raises DataError if a file or column is missing or a file is broken, naming what is there."""

    kinds = (".parquet", ".jsonl", ".json", ".csv", ".tsv")
    query_kinds = (".txt",)

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        return parsed(self._titled(), _document)

    def _titled(self) -> Records:
        """Yield documents; DataError at the end if none has the title column that was named, since JSON may lack it."""
        titled = set[bool]()
        for place, row in self._records(self._document_files, _DOCUMENT):
            yield place, row
            if not isinstance(row, LineError):
                titled.add(row.get("title") is not None)
        if self.config.columns.title and titled == {False}:
            message = f"no document has a {self.config.columns.title}"
            raise DataError(message, self._place(), "correct corpus.columns.title, or leave it out")

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        """Yield queries; one without an id has its text's hash as id, and is read once however often it occurs."""
        optional = {"query_id"} if not self._qrel_files else set[str]()
        seen: set[str] = set()
        for place, row in parsed(self._records(self._query_files, _QUERY, optional), _query):
            if not isinstance(row, LineError) and row[0] == _id_of_text(row[1]):
                if row[0] in seen:
                    self.repeated += 1
                    continue
                seen.add(row[0])
            yield place, row

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        for file in self._qrel_files[split]:
            yield from self.grades(file)

    def grades(self, file: File) -> Iterator[tuple[str, Judged | LineError]]:
        """Yield the relevance grades of a table, or of lines in TREC's or BEIR's form."""
        is_delimited = file.kind in (".csv", ".tsv")
        if file.kind not in self.kinds or (is_delimited and holds_grades(_first_line(file))):
            yield from judged_lines(file.lines(), file.place)
        else:
            yield from parsed(self._records([file], _QREL), _judged)

    def _records(self, files: Iterable[File], roles: tuple[str, ...], optional: Set[str] = frozenset()) -> Records:
        readers = {".parquet": _parquet, ".csv": _delimited, ".tsv": _delimited, ".txt": _text_lines}
        for file in files:
            yield from readers.get(file.kind, _json)(file, self._chooser(file, roles, optional))

    def _chooser(self, file: File, roles: tuple[str, ...], optional: Set[str]) -> Choose:
        """Return a function that chooses a file's columns: those that the settings name, else the only usual one.

        It raises DataError if a column is missing, repeated or ambiguous. `optional` ones and the title may be missing
        unless the settings name them; in JSON some lines may have a title, so every line is searched for it.
        """
        lacking = file.kind in (".jsonl", ".json")

        def choose(names: tuple[str, ...]) -> dict[str, str]:
            chosen: dict[str, str] = {}
            for role in roles:
                given: str | None = getattr(self.config.columns, role)
                found = [name for name in ((given,) if given is not None else _USUAL[role]) if name in names]
                if len(found) == 1 and names.count(found[0]) == 1:
                    chosen[role] = found[0]
                elif not found and role in _OPTIONAL and lacking:
                    chosen[role] = given or _USUAL[role][0]
                elif found or given is not None or role not in _OPTIONAL | optional:
                    place = f"{file.place}, columns {visible(', '.join(names))[:200]}"
                    raise DataError(_wrong(role, given, found), place, f"set corpus.columns.{role}")
            return chosen

        return choose


def all_columns(file: File) -> tuple[tuple[str, ...], Records]:
    """Return a file's columns, and its records by column. Raises DataError."""
    names: list[str] = []

    def choose(found: tuple[str, ...]) -> dict[str, str]:
        names.extend(found)
        return {name: name for name in found}

    readers = {".parquet": _parquet, ".csv": _delimited, ".tsv": _delimited, ".txt": _text_lines}
    records = parsed(readers.get(file.kind, _json)(file, choose), _decoded)
    first = list(islice(records, 1))
    return tuple(names), chain(first, records)


def _text_lines(file: File, _: Choose) -> Records:
    """Yield every line as a query."""
    for place, line in file.lines():
        yield place, line if isinstance(line, LineError) else {"query": line}


def _wrong(role: str, given: str | None, found: list[str]) -> str:
    if len(found) > 1:
        return f"{' and '.join(found)} may each be the {role}"
    if found:
        return f"column {found[0]} is repeated"
    return f"no column {given}" if given is not None else f"no column for the {role} (usual: {', '.join(_USUAL[role])})"


def _parquet(file: File, choose: Choose) -> Records:
    number = 0
    with file.open(seekable=True) as stream:
        try:
            with parquet_rows.opened(stream, file.place) as table:
                chosen = choose(tuple(table.schema_arrow.names))
                for role, name in chosen.items():
                    if role in _USUAL:
                        _check_type(table.schema_arrow.field(name), role, file.place)
                for batch in parquet_rows.batches(table, list(dict.fromkeys(chosen.values())), _ROWS):
                    columns = {role: _values(batch.column(name)) for role, name in chosen.items()}
                    for i in range(batch.num_rows):
                        number += 1
                        yield f"{file.name} row {number}", {role: values[i] for role, values in columns.items()}
        except (pa.ArrowException, OSError) as error:
            where = f"after row {number}" if number else "from its start"
            remedy = "fetch or write the file again; it must be a whole Parquet file"
            raise DataError(f"cannot be read {where}: {error}", file.place, remedy) from error


def _check_type(field: pa.Field, role: str, place: str) -> None:
    """Raise DataError unless a column holds text, or whole numbers as ids, or numbers as grades."""
    type_ = field.type.value_type if pa.types.is_dictionary(field.type) else field.type
    number = pa.types.is_integer(type_) or (role == "grade" and pa.types.is_floating(type_))
    if pa.types.is_null(type_) or is_text(type_) or (number and (role == "grade" or role.endswith("_id"))):
        return
    wanted = "text or a whole number" if number or "id" in role else "text"
    remedy = f"convert it, or name another with corpus.columns.{role}"
    raise DataError(f"column {field.name} ({role}) is {type_}, must be {wanted}", place, remedy)


def _values(column: pa.Array) -> list[object]:
    """Return a column's values; texts as bytes, since writers of Parquet need not have checked that they are UTF-8."""
    return (column.cast(pa.large_binary()) if is_text(column.type) else column).to_pylist()


def _json(file: File, choose: Choose) -> Records:
    """Yield the records of JSON lines; the first ones decide which columns exist, and any line may lack some."""
    records = parsed(file.lines(), json_object)
    first = list(islice(records, _LOOKED_AT))
    names = dict.fromkeys(name for _, row in first if not isinstance(row, LineError) for name in row)
    chosen = choose(tuple(names)) if names else {}
    for place, row in chain(first, records):
        yield place, row if isinstance(row, LineError) else {role: row.get(name) for role, name in chosen.items()}


def _delimited(file: File, choose: Choose) -> Records:
    """Yield the records of csv or tsv."""
    lines = (line for _, line in file.lines(blank=True))
    rows = delimited.rows(lines, "\t" if file.kind == ".tsv" else ",", file.place, documents=True)
    _, names = next(rows, (0, None))
    if isinstance(names, list):
        places = {role: names.index(name) for role, name in choose(tuple(names)).items()}
        for number, cells in rows:
            yield (
                f"{file.name}:{number}",
                cells if isinstance(cells, LineError) else {role: cells[at] for role, at in places.items()},
            )


def _first_line(file: File) -> str:
    with closing(file.lines()) as lines:
        return next((line for _, line in lines if isinstance(line, bytes)), b"").decode("utf-8", "replace")


def _document(row: Record) -> Document:
    return parsing.document_in(_decoded(row), "doc_id")


def _query(row: Record) -> Query:
    value = _decoded(row)
    key = parsing.key_of(value, "query_id") if "query_id" in row else ""
    text = parsing.text_of(value, "query", key)
    return parsing.query_of(key or _id_of_text(text), text)


def _id_of_text(text: str) -> str:
    """Return an id for a query without one: the same text has the same id in any file."""
    return text_key(text).hex()[:_TEXT_ID]


def _judged(row: Record) -> Judged:
    value = _decoded(row)
    query = parsing.key_of(value, "qrels_query_id")
    document = parsing.key_of(value, "qrels_doc_id")
    if value.get("grade") is None:
        raise LineError("missing grade", f"{query} {document}")
    return parsing.judged_of(query, document, value["grade"])


def _decoded(row: Record) -> Record:
    try:
        return {role: decode(value) if isinstance(value, bytes) else value for role, value in row.items()}
    except LineError as error:
        error.sample = b"\n".join(value for value in row.values() if isinstance(value, bytes))
        raise
