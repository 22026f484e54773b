"""Read users' CSV: detect the separator from the header, and refuse malformed rows with their line."""

from __future__ import annotations

import codecs
import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.tables.rows import Rows, delimiter_of, refused_lines
from anmi_ray.tables.streams import BLOCK, MAX_LINE, check_head, recoding, separator_of

Broken = dict[int, tuple[str, str]]  # by number, a record's text and what is wrong with it


def batches(
    path: Path, compression: str | None, usual: str, columns: Sequence[str], free: str | None = None
) -> Iterator[Rows]:
    """Yield all columns as text; `usual` separates cells unless the header, or a line `sep=` above it, implies another.

    A line with a different number of cells than the header is a reject. Quoted cells of column `free`, and of columns
    that are not read, may run over several lines (RFC 4180). Arrow parses a row three times as fast as Python's csv.
    """
    with pa.input_stream(str(path), compression=compression) as stream, io.BufferedReader(stream) as lines:  # type: ignore[arg-type]
        header = lines.readline(MAX_LINE)
        separator = separator_of(header)
        check_head(header, str(path))
        header = lines.readline(MAX_LINE) if separator else header
    _check_utf8(path, compression)
    above = 2 if separator else 1  # lines above the first record
    found, wanted, delimiter = _header(header, usual, columns, path, separator)
    if not wanted:
        yield Rows(pa.table({}), str(path), found=found)  # refused where the columns are checked
        return
    folds = _folds(free, delimiter, len(found))
    broken: Broken = {}
    number = above + 1
    read = 0

    def refuse(row: pacsv.InvalidRow) -> str:  # an exception in here would be swallowed
        broken[row.number] = row.text.strip(), f"{row.actual_columns} cells, the header has {row.expected_columns}"
        return "skip"

    # With threads, refused rows have no number.
    reading = pacsv.ReadOptions(use_threads=False, block_size=BLOCK, skip_rows=above - 1)
    parsing = pacsv.ParseOptions(
        delimiter=delimiter, newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=refuse
    )
    converting = pacsv.ConvertOptions(
        include_columns=wanted, column_types={name: pa.string() for name in wanted}, strings_can_be_null=False
    )
    with pa.input_stream(str(path), compression=compression) as stream, _errors(path, lambda: number):
        for batch in pacsv.open_csv(stream, reading, parsing, converting):
            # Rows are parsed ahead of the batch, so all broken ones before its end are known.
            numbers = np.setdiff1d(np.arange(number, number + batch.num_rows + len(broken)), list(broken))
            numbers = numbers[: batch.num_rows]
            number = int(numbers[-1]) + 1 if len(numbers) else number
            past = {n: broken.pop(n) for n in sorted(broken) if n < number}
            yield _rows(pa.table(batch), numbers, past, path, found, folds)
            read += 1
    if broken or not read:
        table = pa.table({name: pa.array([], pa.string()) for name in wanted})
        yield _rows(table, np.zeros(0, np.int64), broken, path, found, folds)


def _header(
    line: bytes, usual: str, columns: Sequence[str], path: Path, separator: str
) -> tuple[tuple[str, ...], list[str], str]:
    """Return all columns, those to read (none if one of them is repeated), and the separator, which may be declared."""
    header = line.decode("utf-8-sig", "replace").partition("\n")[0].partition("\r")[0]
    delimiter = separator or delimiter_of(header, usual)
    csv.field_size_limit(MAX_LINE)  # of the whole process
    try:
        found = next(csv.reader([header], delimiter=delimiter), [])
    except csv.Error as error:
        raise DataError(f"its header is invalid: {error}", f"{path}:1", "write the columns' names there") from None
    wanted = [name for name in dict.fromkeys(found) if name in columns]
    return tuple(found), [] if any(found.count(name) > 1 for name in wanted) else wanted, delimiter


def _check_utf8(path: Path, compression: str | None) -> None:
    """Raise DataError for a file that is not UTF-8; Arrow would silently drop rows that it cannot decode."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with pa.input_stream(str(path), compression=compression) as stream:
        while True:
            piece = stream.read(BLOCK)
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
                raise DataError("is not UTF-8", f"{path}:{line}", recoding(error.object)) from None
            if not piece:
                return
            line += piece.count(b"\n")


@contextmanager
def _errors(path: Path, line: Callable[[], int]) -> Iterator[None]:
    """Convert Arrow's errors into DataErrors; `line`: of the first record that has not been read."""
    try:
        yield
    except pa.ArrowException as error:
        remedy = "correct the file; it must be CSV or TSV and UTF-8 (iconv -f <its encoding> -t utf-8)"
        if "straddling" in str(error):
            remedy = "correct the row; a quotation mark in it may not be closed"
            raise DataError(f"a row is larger than {BLOCK >> 20} MiB", f"{path}:{line()}", remedy) from None
        raise DataError(f"cannot be read as CSV: {error}", str(path), remedy) from None


def _folds(free: str | None, delimiter: str, columns: int) -> Callable[[str], str]:
    """Return a function from a column to a pattern of cells in which a quote was left open, so that they contain rows.

    An id, a word or a number never has a line break. Free text may, but not a line that looks like a row.
    """
    mark = re.escape(delimiter)
    cell = rf'([^{mark}\s"][^{mark}"\r\n]*)?'
    row = rf"[\r\n]({cell}{mark}){{{columns - 1}}}{cell}([\r\n]|$)"
    return lambda name: row if name == free else r"[\r\n]"


def _rows(
    table: pa.Table,
    numbers: NDArray[np.int64],
    broken: Broken,
    path: Path,
    found: tuple[str, ...],
    folds: Callable[[str], str],
) -> Rows:
    """Return the records with content, and the broken ones as rejects."""
    folded = [number for number, (text, _) in broken.items() if "\n" in text or "\r" in text]
    for name in table.column_names:
        folded += numbers[pc.match_substring_regex(table[name], folds(name)).to_numpy()].tolist()
    if folded:
        place = f"{path}:{min(folded)}"
        raise DataError("a quote that opens in this line closes in another one or never", place, "correct the quotes")
    full = np.zeros(table.num_rows, dtype=np.bool_)
    for name in table.column_names:
        full |= pc.not_equal(table[name], "").to_numpy()
    refused = refused_lines(path, ((number, why) for number, (text, why) in sorted(broken.items()) if text))
    return Rows(table.filter(pa.array(full)), str(path), ":", numbers[full], refused, found)
