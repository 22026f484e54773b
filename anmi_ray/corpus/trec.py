"""Collections in TREC's formats: SGML documents or MS MARCO's tsv, topics (<top> or tsv), qrels of four columns.

A file whose name ends in .tsv holds lines `id<TAB>text` or, documents only, `id<TAB>url<TAB>title<TAB>body`; every
other file of documents is SGML and every other file of queries classic topics. Each may be .gz or .zst. Records that
cannot be used become rejects with file and line; too many of them are an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from functools import partial
from itertools import chain

from anmi_ray.corpus import parsing, sgml
from anmi_ray.corpus.judged import FilesReader
from anmi_ray.corpus.parsing import Document, Judged, LineError, Query, parsed
from anmi_ray.tables.rows import misread

_FIELD = re.compile(r"[^ \t\r\n\f]+")  # not str.split: a no-break space may be part of an id
_TSV = ".tsv"
_TAB = "\t"


class TrecReader(FilesReader):
    """Reads TREC's formats. Raises DataError where a file is missing; there is no limit to a document's length."""

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        encoding = self.config.encoding
        for file in self._document_files:
            if file.kind == _TSV:
                yield from parsed(_widths(file.lines()), partial(tsv_document, encoding=encoding))
            else:
                found = sgml.elements(file.lines(blank=True), "DOC")
                yield from parsed(found, partial(sgml.document, encoding=encoding))

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        encoding = self.config.encoding
        fields = self.config.topic_fields
        for file in self._query_files:
            if file.kind == _TSV:
                yield from parsed(file.lines(), partial(tsv_query, encoding=encoding))
            else:
                found = sgml.elements(file.lines(blank=True), "top")
                yield from parsed(found, partial(sgml.topic, encoding=encoding, fields=fields))

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        lines = chain.from_iterable(file.lines() for file in self._qrel_files[split])
        return parsed(lines, judged)


def tsv_document(record: tuple[bytes, int], encoding: str) -> Document:
    """A line of documents and how many columns its file has, 2 or 4. LineError where it cannot be used."""
    line, width = record
    text = parsing.decode(line, encoding, sgml.SETTING)
    fields = text.split("\t")
    if len(fields) != width:
        wanted = {2: "id, text", 4: "id, url, title, body"}.get(width, "id, text or id, url, title, body")
        raise LineError(
            f"not the columns {wanted}{misread(text, _TAB)}", detail=f"{len(fields)} columns, separated by tabs"
        )
    key = parsing.key_of({"id": fields[0].strip()}, "id")
    return parsing.document_of(key, fields[2] if width == 4 else "", fields[-1])


def tsv_query(line: bytes, encoding: str) -> Query:
    """A line `id<TAB>text`. LineError where it cannot be used."""
    text = parsing.decode(line, encoding, sgml.SETTING)
    fields = text.split("\t")
    if len(fields) != 2:
        raise LineError(
            f"not the columns id, text{misread(text, _TAB)}", detail=f"{len(fields)} columns, separated by tabs"
        )
    return parsing.query_of(parsing.key_of({"id": fields[0].strip()}, "id"), fields[1])


def judged(line: bytes) -> Judged:
    """A line `query iteration document grade`. LineError where it cannot be used."""
    text = parsing.decode(line)
    fields = _FIELD.findall(text)
    if len(fields) != 4:
        reason = f"not the four columns query, iteration, document, grade{misread(text, ' ')}"
        raise LineError(reason, detail=f"{len(fields)} columns, separated by white space")
    return parsing.judged_of(fields[0], fields[2], fields[3])


def _widths(
    lines: Iterable[tuple[str, bytes | LineError]],
) -> Iterator[tuple[str, tuple[bytes, int] | LineError]]:
    """Every line with the number of columns of the first line that has 2 or 4 (0 before it)."""
    width = 0
    for place, line in lines:
        if isinstance(line, LineError):
            yield place, line
            continue
        if not width and (count := line.count(b"\t") + 1) in (2, 4):
            width = count
        yield place, (line, width)
