"""Collections in TREC's formats: SGML documents or MS MARCO's tsv, topics (<top> or tsv), qrels of four columns.

A .tsv file holds lines `id<TAB>text` or, for documents only, `id<TAB>url<TAB>title<TAB>body`, perhaps below a header;
every other file of documents is SGML, every other file of queries classic topics. Each may be .gz or .zst.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

from anmi_ray.core.errors import DataError
from anmi_ray.corpus import parsing, sgml
from anmi_ray.corpus.parsing import Document, Judged, Query, judged_lines
from anmi_ray.corpus.sources import File, FilesReader
from anmi_ray.tables.rows import misread
from anmi_ray.tables.streams import LineError, decode, parsed
from anmi_ray.tables.trec import DOC_COLUMNS, QUERY_COLUMNS, is_header

_TSV = ".tsv"
_TAB = "\t"
_ID = QUERY_COLUMNS | DOC_COLUMNS | {"id", "_id"}
_TEXT = frozenset({"text", "body", "query", "question", "passage", "document", "content", "contents", "title", "url"})
_HEADERS = ([_ID, _TEXT], [_ID, {"url"}, {"title"}, _TEXT])
_COLUMNS = {2: "id, text", 4: "id, url, title, body", 0: "id, text or id, url, title, body"}  # by width, 0 unknown


class TrecReader(FilesReader):
    """Reads TREC's formats. Raises DataError if a file is missing."""

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        for file in self._document_files:
            if file.kind == _TSV:
                yield from parsed(_widths(_below_header(file)), _tsv_document)
            else:
                yield from parsed(sgml.elements(file.lines(blank=True), "DOC"), sgml.document)

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        for file in self._query_files:
            if file.kind == _TSV:
                yield from parsed(_below_header(file), _tsv_query)
            else:
                found = sgml.elements(file.lines(blank=True), "top")
                yield from parsed(found, partial(sgml.topic, fields=self.config.topic_fields))

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        for file in self._qrel_files[split]:
            yield from judged_lines(file.lines(), file.place)


def _tsv_document(record: tuple[bytes, int]) -> Document:
    """Parse a line of documents, given the number of columns of its file."""
    line, width = record
    key, *others = _fields(line, width)
    return parsing.document_of(key, others[1] if width == 4 else "", others[-1])


def _tsv_query(line: bytes) -> Query:
    return parsing.query_of(*_fields(line, 2))


def _fields(line: bytes, width: int) -> list[str]:
    """Return the id and the other fields of a line. Raises LineError."""
    text = decode(line)
    fields = text.split(_TAB)
    if len(fields) != width:
        reason = f"not the columns {_COLUMNS[width]}{misread(text, _TAB)}"
        raise LineError(reason, detail=f"{len(fields)} columns, separated by tabs")
    return [parsing.key_of({"id": fields[0]}, "id"), *fields[1:]]


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


def _widths(
    lines: Iterable[tuple[str, bytes | LineError]],
) -> Iterator[tuple[str, tuple[bytes, int] | LineError]]:
    """Yield every line with the number of columns of the first line that has 2 or 4 (0 before it)."""
    width = 0
    for place, line in lines:
        if isinstance(line, LineError):
            yield place, line
            continue
        if not width and (count := line.count(b"\t") + 1) in (2, 4):
            width = count
        yield place, (line, width)
