"""Read CSV and TSV row by row: the header decides what separates cells; rows that cannot be read keep their line."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Collection, Iterable, Iterator
from itertools import chain

import pyarrow as pa
import pyarrow.csv as pacsv

from anmi_ray.core.errors import DataError
from anmi_ray.tables import streams
from anmi_ray.tables.streams import MAX_LINE, TOO_LARGE, LineError, decode

DELIMITERS = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
_CLOSE = 'close it, and write a quote inside of a quoted cell twice ("")'
_SEPARATOR = re.compile(rb'"?sep=(.)"?', re.IGNORECASE)


def delimiter_of(line: str, usual: str) -> str:
    """Return what separates cells: `usual`, unless exactly one of DELIMITERS occurs in a file's first line.

    >>> delimiter_of("id;text", ","), delimiter_of("id;a,text", ","), delimiter_of("a;b|c", ",")
    (';', ',', ',')
    """
    there = [mark for mark in DELIMITERS if mark in line]
    return there[0] if len(there) == 1 else usual


def rows(
    lines: Iterator[bytes | LineError], usual: str, place: str, documents: bool = False, skipped: int = 0
) -> Iterator[tuple[int, list[str] | LineError]]:
    """Yield (number of its first line, cells) of the header, then of every row that is not blank.

    `usual` separates cells unless the header, or a line `sep=` above it (Excel's), implies another. Quoted cells may
    run over several lines (RFC 4180). A row that has another number of cells than the header, or is malformed, too
    large or not UTF-8, is a LineError.
    documents: tabs separate cells without quoting, since texts may begin with a quotation mark, and a malformed row
    over several lines is a LineError too. Else it is an error of the file.
    skipped: lines below the header that are not among `lines`.
    Raises DataError if the header is invalid, or a quotation mark is never closed.
    """
    csv.field_size_limit(2 * MAX_LINE)  # of the whole process; rows are limited below
    number, separator = 0, ""  # number: of the last line that was taken
    first: bytes | LineError = b""
    for line in lines:
        first = line.removeprefix(codecs.BOM_UTF8) if isinstance(line, bytes) else line
        if isinstance(first, bytes) and not number and (declared := _SEPARATOR.fullmatch(first.rstrip(b"\r\n"))):
            separator = declared[1].decode("latin-1")
            first = b""
        elif isinstance(first, LineError) or first.strip():
            break
        number += 1
    header = first.decode("utf-8", "replace") if isinstance(first, bytes) else ""
    delimiter = separator or delimiter_of(header, usual)
    width = 0
    for start, end, row in _records(chain([first], lines), delimiter, place, documents, number, skipped):
        if isinstance(row, list) and width and len(row) != width:
            detail = f"{len(row)} columns, must be {width}, separated by {DELIMITERS.get(delimiter, delimiter)}"
            row = LineError("not as many columns as the header", detail=detail)
        if isinstance(row, LineError) and not width:
            message = f"its header is invalid: {row.reason}: {row.detail}"
            raise DataError(message, f"{place}:{start}", "write the columns' names there")
        if isinstance(row, LineError) and end > start and not documents and not row.sample:
            raise DataError("a quote that opens in this line closes in another one", f"{place}:{start}", _CLOSE)
        if isinstance(row, list) and not width:
            width = len(row)
            row = [name.strip() for name in row]
        yield start, row


def _records(
    lines: Iterable[bytes | LineError], delimiter: str, place: str, documents: bool, number: int, skipped: int
) -> Iterator[tuple[int, int, list[str] | LineError]]:
    """Yield (first line, last line, cells) of rows that are not blank, `number` lines above, `skipped` after one."""
    start = size = 0
    refused: LineError | None = None

    def texts() -> Iterator[str]:
        nonlocal number, size, refused
        for line in lines:
            number += 1
            size += len(line) if isinstance(line, bytes) else 0
            if size > MAX_LINE:
                message = f"its row is {TOO_LARGE}; a quote in it may not be closed"
                raise DataError(message, f"{place}:{start}", _CLOSE)
            try:
                if isinstance(line, LineError):
                    raise line
                yield decode(line).rstrip("\r\n") + "\n"
            except LineError as error:
                refused = error
                yield error.sample.decode("utf-8", "replace").rstrip("\r\n") + "\n"

    if documents and delimiter == "\t":
        rows = (line[:-1].split("\t") if line.strip() else [] for line in texts())
    else:
        rows = csv.reader(texts(), delimiter=delimiter, strict=True)
    while True:
        start, size, refused = number + 1, 0, None
        try:
            cells: list[str] | LineError = next(rows)
        except StopIteration:
            return
        except csv.Error as error:
            if "unexpected end" in str(error):
                raise DataError("a quote that opens in this line is never closed", f"{place}:{start}", _CLOSE) from None
            cells = LineError("broken CSV", detail=str(error).partition(" - do you")[0])
        if row := refused or cells:
            yield start, number, row
            number, skipped = number + skipped, 0


def plain_tables(file: io.BufferedReader, usual: str, columns: Collection[str]) -> Iterator[tuple[list[str], pa.Table]]:
    """Yield (header, `columns` as texts) of lines below the header, until a block of lines holds a quote or a fault.

    Arrow parses such lines six times as fast as Python. `rows` reads the others.
    """
    header = file.readline(MAX_LINE).removeprefix(codecs.BOM_UTF8).rstrip(b"\r\n").decode("utf-8", "replace")
    delimiter = delimiter_of(header, usual)
    names = [name.strip() for name in header.split(delimiter)]
    wanted = [name for name in names if name in columns]
    if not wanted or len(set(names)) < len(names) or '"' in header or "\r" in header:
        return
    parsing = pacsv.ParseOptions(delimiter=delimiter, quote_char=False, ignore_empty_lines=False)
    types = {name: pa.string() for name in wanted}
    converting = pacsv.ConvertOptions(include_columns=wanted, column_types=types, strings_can_be_null=False)
    while block := file.read(streams.BLOCK):
        rest = file.readline(MAX_LINE)
        block += rest
        if len(rest) == MAX_LINE or b'"' in block or block.count(b"\r") > block.count(b"\r\n"):
            return
        reading = pacsv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=names)
        try:
            yield names, pacsv.read_csv(pa.py_buffer(block), reading, parsing, converting)
        except pa.ArrowException:
            return
