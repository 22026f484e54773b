"""Collections in TREC's formats: SGML documents or MS MARCO's tsv, topics (<top> or tsv), qrels of four columns.

A .tsv file holds lines `id<TAB>text` or, for documents only, `id<TAB>url<TAB>title<TAB>body`, perhaps below a header;
every other file of documents is SGML, every other file of queries classic topics. Each may be .gz or .zst.
"""

from __future__ import annotations

from collections.abc import Iterator
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
                rows = _cells(file, 0)
                yield from parsed(rows, lambda row: parsing.document_of(row[0], row[2] if row[3:] else "", row[-1]))
            else:
                yield from parsed(sgml.elements(file.lines(blank=True), "DOC"), sgml.document)

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        for file in self._query_files:
            if file.kind == _TSV:
                yield from parsed(_cells(file, 2), lambda row: parsing.query_of(*row))
            else:
                found = sgml.elements(file.lines(blank=True), "top")
                yield from parsed(found, partial(sgml.topic, fields=self.config.topic_fields))

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
