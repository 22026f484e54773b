"""Read and write users' tables: CSV, TSV, JSONL (also .gz, .zst) and Parquet, chosen by the suffix.

Every row keeps the number of its line, and lines that cannot be read are rejects.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq

from anmi_ray.core.errors import ConfigError, DataError, from_file_error
from anmi_ray.tables import delimited, parquet_rows, streams
from anmi_ray.tables.rows import Rows, refused_lines
from anmi_ray.tables.streams import COMPRESSIONS, STANDARD, LineError

KNOWN = ".csv, .tsv, .jsonl (each also .gz or .zst) or .parquet"
_ARRAY = ".json"  # read like .jsonl, not written
_SEPARATORS = {".csv": ",", ".tsv": "\t"}
_FORMATS = (*_SEPARATORS, ".jsonl", ".parquet")
_WHOLE = 1 << 28  # bytes of a file that is read whole
_BATCH = 1 << 17  # rows of Parquet read at once


def format_of(path: Path, reading: bool = False) -> tuple[str, str | None]:
    """Return (one of _FORMATS, compression or None) by a file's name. Raises ConfigError for another suffix."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    kind = (suffixes[:-1] if compression else suffixes)[-1:]
    if reading and kind == [_ARRAY]:
        return ".jsonl", compression
    if not kind or kind[0] not in _FORMATS or (compression and kind[0] == ".parquet"):
        raise ConfigError("its name does not show its format", str(path), f"name it {KNOWN}")
    return kind[0], compression


def check_outputs(outputs: Mapping[str, Path | None], inputs: Iterable[Path], any_name: Collection[str] = ()) -> None:
    """Check output names before anything is computed: known format, existing folder, not an input or another output.

    `outputs` by option: those of `any_name` have any suffix, others are tables; `-` is standard output or input.
    Raises ConfigError.
    """
    given = list(inputs)
    if given.count(STANDARD) > 1:
        raise ConfigError("standard input can be read once", str(STANDARD), "give a file for one of them")
    seen = {path.resolve(): "is read" for path in given if path != STANDARD}
    for option, path in outputs.items():
        if path is None:
            continue
        if option not in any_name and path != STANDARD:
            format_of(path)
        if path.resolve() in seen:
            message = f"--{option} would overwrite it; it {seen[path.resolve()]}"
            raise ConfigError(message, str(path), "give another name")
        if path.is_dir():
            raise ConfigError(f"--{option}: is a folder", str(path), "name a file in it")
        if not path.parent.is_dir():
            remedy = "name a folder" if path.parent.exists() else f"mkdir -p {path.parent}"
            raise ConfigError(f"--{option}: its folder does not exist", str(path), remedy)
        seen[path.resolve()] = f"is written by --{option}"


def read_rows(path: Path, texts: Sequence[str], numbers: Sequence[str] = ()) -> Rows:
    """Return all rows of a file, as `read_batches` reads them."""
    return Rows.joined(read_batches(path, texts, numbers))


def read_batches(
    path: Path,
    texts: Sequence[str],
    numbers: Sequence[str] = (),
    defaults: Mapping[str, str] | None = None,
    free: str | None = None,
) -> Iterator[Rows]:
    """Yield a file's rows, some hundred thousand at a time, with the given columns that it has; `-` is standard input.

    texts, numbers: columns of ids or words, and of numbers.
    defaults: value of a key that a JSON object lacks and others have; null if not given.
    free: one of `texts` that holds free text: in CSV its cells may run over several lines; in other columns a quote
    that closes in another line counts as left open.
    A row of CSV is at its first line; elements of a JSON array count as lines; records without content are skipped.
    There is at least one batch. Raises DataError or StoreError.
    """
    with streams.spooled() if path == STANDARD else nullcontext(path) as file:
        place = streams.INPUT if path == STANDARD else str(path)
        kind, compression = format_of(file, reading=True)
        with _reading(file, compression, place):
            if kind == ".parquet":
                batches = _parquet_batches(file, place, (*texts, *numbers))
            elif kind in _SEPARATORS:
                batches = _csv_batches(file, place, compression, _SEPARATORS[kind], (*texts, *numbers), free)
            else:
                batches = _json_batches(file, place, compression, texts, numbers, defaults or {})
            yield from batches


def text_lines(path: Path) -> Iterator[str]:
    """Yield the lines of a text file, unpacked if its name ends with .gz or .zst; `-` is standard input.

    Raises DataError if a line is not UTF-8 or too large, StoreError if the file cannot be read.
    """
    if path == STANDARD:
        yield from streams.decoded_lines(sys.stdin.buffer, streams.INPUT)
        return
    compression = COMPRESSIONS.get(path.suffix.lower())
    with _reading(path, compression), _unpacked(path, compression) as file:
        yield from streams.decoded_lines(file, str(path))


def read_bytes(path: Path) -> bytes:
    """Return a whole file, unpacked as `text_lines` does. Raises DataError if it is too large."""
    compression = COMPRESSIONS.get(path.suffix.lower())
    with _reading(path, compression), pa.input_stream(str(path), compression=compression) as stream:
        content = stream.read(_WHOLE + 1)
    if len(content) > _WHOLE:
        raise DataError(f"is larger than {_WHOLE >> 20} MiB, unpacked", str(path), "cut it into several files")
    return content


def identity_of(path: Path) -> str:
    """Digest of a file's content and format, since files may change under the same path."""
    return "".join(filter(None, (content_hash(path), *format_of(path, reading=True))))


def content_hash(path: Path) -> str:
    """Hash a file's bytes. Raises StoreError or DataError if it cannot be read."""
    with _reading(path, None), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]


@contextmanager
def _reading(path: Path, compression: str | None, place: str = "") -> Iterator[None]:
    """Convert errors of the file itself; `place`: its name in messages, if not the path."""
    place = place or str(path)
    if path.is_dir():
        raise DataError("is a folder, not a file", place, "give the file's path")
    try:
        yield
    except pa.ArrowException as error:
        remedy = "correct the file, or name it by its format"
        raise DataError(f"is not a Parquet file: {error}", place, remedy) from None
    except OSError as error:
        if compression and error.errno is None:  # what a decompressor says
            remedy = f"correct the file, or name it without {path.suffix}"
            raise DataError(f"cannot be unpacked: {error}", place, remedy) from None
        raise from_file_error(error, place) from None


@contextmanager
def _unpacked(path: Path, compression: str | None) -> Iterator[io.BufferedReader]:
    """Open a file for reading line by line."""
    with pa.input_stream(str(path), compression=compression) as raw, io.BufferedReader(raw, 1 << 20) as file:  # type: ignore[arg-type]
        yield file


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a path to write to, which then replaces `path`, completely or not at all. Raises StoreError."""
    temporary = path.with_name(f".{os.getpid()}.{path.name}")
    try:
        try:
            yield temporary
            os.replace(temporary, path)
        finally:
            temporary.unlink(missing_ok=True)
    except OSError as error:
        raise from_file_error(error, str(path)) from None


def write_text(text: str, path: Path) -> None:
    """Write a text file whole, as `replacing` does; `-` is standard output."""
    if path == STANDARD:
        if isinstance(sys.stdout, io.TextIOWrapper):
            sys.stdout.reconfigure(encoding="utf-8")  # regardless of the terminal
        sys.stdout.write(text)
        return
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table in the format of the file's name; `-` is standard output, as CSV."""
    if path == STANDARD:
        sink = pa.BufferOutputStream()
        _write_csv(table, sink, ".csv")
        write_text(sink.getvalue().to_pybytes().decode(), path)
        return
    kind, compression = format_of(path)
    with replacing(path) as temporary, pa.output_stream(str(temporary), compression=compression) as sink:
        if kind == ".parquet":
            pq.write_table(table, sink)
        elif kind in _SEPARATORS:
            _write_csv(table, sink, kind)
        else:
            names = table.column_names
            for values in zip(*(table[name].to_pylist() for name in names), strict=True):
                sink.write(json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False).encode() + b"\n")


def _write_csv(table: pa.Table, sink: pa.NativeFile, kind: str) -> None:
    pacsv.write_csv(table, sink, pacsv.WriteOptions(quoting_style="needed", delimiter=_SEPARATORS[kind]))


def _parquet_batches(path: Path, place: str, columns: Sequence[str]) -> Iterator[Rows]:
    with parquet_rows.opened(path, place) as file:
        found = tuple(file.schema_arrow.names)
        wanted = [name for name in found if name in columns]
        start = 0
        for batch in parquet_rows.batches(file, wanted, _BATCH):
            numbers = np.arange(start + 1, start + batch.num_rows + 1)
            yield Rows(pa.table(batch), place, " row ", numbers, found=found)
            start += batch.num_rows
        if not start:
            none = pq.read_schema(path).empty_table().select(wanted)
            yield Rows(none, place, numbers=np.zeros(0, np.int64), found=found)


def _csv_batches(
    path: Path, place: str, compression: str | None, usual: str, columns: Sequence[str], free: str | None
) -> Iterator[Rows]:
    """Yield the rows of csv or tsv, as texts, without those that are empty."""
    read = 0  # lines below the header
    with _unpacked(path, compression) as file:
        streams.check_head(file.peek(64), place)
        for names, table in delimited.plain_tables(file, usual, columns):
            full = np.any([pc.not_equal(column, "").to_numpy() for column in table.columns], axis=0)
            numbers = np.arange(read + 2, read + 2 + table.num_rows)[full]
            yield Rows(table.filter(pa.array(full)), place, ":", numbers, found=tuple(names))
            read += table.num_rows
    with _unpacked(path, compression) as file:
        others = (line for number, line in streams.bounded_lines(file) if not 1 < number < read + 2)
        rows = delimited.rows(others, usual, place, skipped=read)
        _, header = next(rows, (0, []))
        found = () if isinstance(header, LineError) else tuple(header)
        wanted = [name for name in dict.fromkeys(found) if name in columns]
        if not wanted or any(found.count(name) > 1 for name in wanted):
            yield Rows(pa.table({}), place, found=found)  # refused where the columns are checked
            return
        at = [found.index(name) for name in wanted]

        def records() -> Iterator[tuple[int, list[str] | LineError]]:
            for number, cells in rows:
                if isinstance(cells, LineError):
                    if cells.sample:  # of the encoding, with that of the next rows
                        more = islice((other.sample for _, other in rows if isinstance(other, LineError)), 100)
                        remedy = streams.recoding(b"\n".join([cells.sample, *more]))
                        raise DataError("is not UTF-8", f"{place}:{number}", remedy)
                    yield number, cells
                elif any(kept := [cells[i] for i in at]):
                    yield number, kept

        for batch in _batched(records(), wanted, place, found):
            _check_quotes(batch, free)
            yield batch


def _check_quotes(rows: Rows, free: str | None) -> None:
    """Raise DataError if a quote was left open, so that a cell contains rows.

    An id, a word or a number never has a line break. Free text may, but not a line that looks like a row.
    """
    cell = r'[^\s",;|][^",;|\r\n]*'
    row = rf"[\r\n](({cell})?[,;|\t]){{{len(rows.columns) - 1}}}({cell})?([\r\n]|$)"
    for name in rows.table.column_names:
        folded = pc.match_substring_regex(rows.table[name], row if name == free else "\n")
        if (first := pc.index(folded, True).as_py()) >= 0:
            place = rows.places(np.array([first]))[0].as_py()
            raise DataError("a quote that opens in this line closes in another one", place, "correct the quotes")


def _json_batches(
    path: Path,
    place: str,
    compression: str | None,
    texts: Sequence[str],
    numeric: Sequence[str],
    defaults: Mapping[str, str],
) -> Iterator[Rows]:
    """Yield objects, one per line, with values as text, so that all formats are checked alike."""

    def records() -> Iterator[tuple[int, bytes | LineError]]:
        with _unpacked(path, compression) as file:
            streams.check_head(file.peek(64), place)
            for number, line in streams.json_records(file, place):
                if isinstance(line, LineError) or line.strip():
                    yield number, line

    found = _keys(records(), (*texts, *numeric))
    wanted = [name for name in (*texts, *numeric) if name in found]

    def cells(line: bytes) -> list[str | None]:
        row = streams.json_object(line)
        return [_cell(name, row.get(name, defaults.get(name)), name in numeric) for name in wanted]

    yield from _batched(streams.parsed(records(), cells), wanted, place, found)


def _keys(records: Iterable[tuple[int, bytes | LineError]], columns: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of the first object, and those of `columns` that any other has."""
    found: dict[str, None] = {}
    absent = {name: f'"{name}"'.encode() for name in columns}
    for line in (line for _, line in records if isinstance(line, bytes)):
        if not found or any(quoted in line for quoted in absent.values()):
            with suppress(LineError):
                found |= dict.fromkeys(streams.json_object(line))
            absent = {name: quoted for name, quoted in absent.items() if name not in found}
            if not absent:
                break
    return tuple(found)


def _batched(
    records: Iterable[tuple[int, Sequence[str | None] | LineError]],
    columns: Sequence[str],
    place: str,
    found: tuple[str, ...],
) -> Iterator[Rows]:
    """Yield records, given their lines and values of `columns`, as tables of bounded size; at least one."""
    kept: list[Sequence[str | None]] = []
    numbers: list[int] = []
    broken: list[tuple[int, LineError]] = []
    size = 0

    def table() -> Rows:
        cells = list(zip(*kept, strict=True)) or [()] * len(columns)
        texts = pa.table({name: pa.array(values, pa.string()) for name, values in zip(columns, cells, strict=True)})
        return Rows(texts, place, ":", np.array(numbers, np.int64), refused_lines(place, broken), found)

    for number, row in records:
        if isinstance(row, LineError):
            broken.append((number, row))
        else:
            numbers.append(number)
            kept.append(row)
            size += sum(len(cell) for cell in row if cell)
        if size >= streams.BLOCK or len(numbers) + len(broken) >= _BATCH:
            yield table()
            kept, numbers, broken, size = [], [], [], 0
    yield table()


def _cell(name: str, value: Any, numeric: bool) -> str | None:
    """Return a value of a JSON object as text. Raises LineError if the column cannot hold it."""
    if isinstance(value, str):
        return value if value.isascii() else streams.valid(value)
    if value is None:
        return None
    if isinstance(value, bool) and (numeric or name == "order"):
        return json.dumps(value)  # refused by the column's own check, which says what to write
    if isinstance(value, bool) or not isinstance(value, int | float if numeric else int):
        raise LineError(f"{name}: expected {'a number' if numeric else 'text'}", detail=json.dumps(value)[:40])
    return repr(value)
