"""Tables from and to files that people have: CSV, JSONL (each also .gz, .zst) and Parquet, chosen by the suffix.

Reading keeps what a message needs: the number of every row's line, and the lines that make no row, as rejects.
"""

from __future__ import annotations

import codecs
import csv
import hashlib
import io
import json
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pacsv
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anmi_ray.core import records
from anmi_ray.core.errors import ConfigError, DataError, from_file_error
from anmi_ray.tables import streams
from anmi_ray.tables.rows import Rows
from anmi_ray.tables.streams import COMPRESSIONS, STANDARD

KNOWN = ".csv, .jsonl (each also .gz or .zst) or .parquet"
_FORMATS = (".csv", ".jsonl", ".parquet")
_BROKEN = "broken line"
_BATCH = 1 << 17  # rows of Parquet that are read at once
_BLOCK = 1 << 23  # bytes of text that are
Broken = dict[int, tuple[str, str]]  # by number, a record's text and what is wrong with it


def format_of(path: Path) -> tuple[str, str | None]:
    """(".csv", ".jsonl" or ".parquet", compression or None) of a file by its name; ConfigError on any other."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    compression = COMPRESSIONS.get(suffixes[-1]) if suffixes else None
    kind = (suffixes[:-1] if compression else suffixes)[-1:]
    if not kind or kind[0] not in _FORMATS or (compression and kind[0] == ".parquet"):
        raise ConfigError("its format cannot be told from its name", str(path), f"name it {KNOWN}")
    return kind[0], compression


def check_outputs(
    outputs: Mapping[str, Path | None], inputs: Iterable[Path], any_name: Collection[str] = ("json",)
) -> None:
    """Refuse, before anything is computed, a name without a format, a folder that is missing, two names for one file.

    `outputs` by option: a plot is .svg or .html, those of `any_name` have any, the others are tables. `-` is standard
    output, or input: which holds one table. Raises ConfigError.
    """
    given = list(inputs)
    if given.count(STANDARD) > 1:
        raise ConfigError("standard input can be read once", str(STANDARD), "give a file for one of them")
    seen = {path.resolve(): "is read" for path in given if path != STANDARD}
    for option, path in outputs.items():
        if path is None:
            continue
        if option == "plot":
            if path.suffix not in (".svg", ".html"):
                raise ConfigError("a picture is .svg or .html", str(path), "name it so")
        elif option not in any_name and path != STANDARD:
            format_of(path)
        if path.resolve() in seen:
            raise ConfigError(
                f"--{option} would overwrite it; it {seen[path.resolve()]}", str(path), "give another name"
            )
        if path.is_dir():
            raise ConfigError(f"--{option}: is a folder", str(path), "name a file in it")
        if not path.parent.is_dir():
            remedy = "name a folder" if path.parent.exists() else f"mkdir -p {path.parent}"
            raise ConfigError(f"--{option}: its folder does not exist", str(path), remedy)
        seen[path.resolve()] = f"is written by --{option}"


def read_rows(path: Path, texts: Sequence[str], numbers: Sequence[str] = ()) -> Rows:
    """All rows of a file, as `read_batches` reads them."""
    return Rows.joined(read_batches(path, texts, numbers))


def read_batches(
    path: Path, texts: Sequence[str], numbers: Sequence[str] = (), defaults: Mapping[str, str] | None = None
) -> Iterator[Rows]:
    """The rows of a file, some hundred thousand at a time, with those of the columns that it has.

    `texts` hold ids or words, `numbers` numbers; `defaults` is what a JSON object without a key means, where others
    have it (null if not told). In CSV a record whose quoted cell runs over several lines counts as one line; records
    without content are skipped. At least one batch, empty where the file is. `-` is standard input. DataError or
    StoreError where the file cannot be read.
    """
    if path == STANDARD:
        with streams.spooled() as file:
            for rows in read_batches(file, texts, numbers, defaults):
                yield rows.at(str(file), streams.INPUT)
        return
    kind, compression = format_of(path)
    with _reading(path, compression):
        if kind == ".parquet":
            yield from _parquet_batches(path, (*texts, *numbers))
        elif kind == ".csv":
            yield from _csv_batches(path, compression, (*texts, *numbers))
        else:
            yield from _jsonl_batches(path, compression, texts, numbers, defaults or {})


def read_bytes(path: Path) -> bytes:
    """What a file of any name holds, unpacked where it ends with .gz or .zst; `-` is standard input."""
    if path == STANDARD:
        return sys.stdin.buffer.read()
    compression = COMPRESSIONS.get(path.suffix.lower())
    with _reading(path, compression), pa.input_stream(str(path), compression=compression) as stream:
        return stream.read()


def identity_of(path: Path) -> str:
    """What a file holds, and as what it is read: files may change under the same path."""
    return "".join(filter(None, (content_hash(path), *format_of(path))))


def content_hash(path: Path) -> str:
    """Hash of a file's bytes, whatever its name. StoreError or DataError where it cannot be read."""
    with _reading(path, None), path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16)).hexdigest()  # type: ignore[arg-type]


@contextmanager
def _reading(path: Path, compression: str | None) -> Iterator[None]:
    """What goes wrong with the file itself, said to its owner."""
    if path.is_dir():
        raise DataError("is a folder, not a file", str(path), "give the file's path")
    try:
        yield
    except pa.ArrowInvalid as error:
        raise DataError(f"is no Parquet file: {error}", str(path), "mend the file, or name it as what it is") from None
    except OSError as error:
        if compression and error.errno is None:  # what a decompressor says
            remedy = f"mend the file, or name it without {path.suffix}"
            raise DataError(f"cannot be unpacked: {error}", str(path), remedy) from None
        raise from_file_error(error, str(path)) from None


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path to write to, which then takes the place of `path`: it is replaced whole or not at all.

    StoreError where the storage refuses.
    """
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
            sys.stdout.reconfigure(encoding="utf-8")  # a table is, whatever the terminal is
        sys.stdout.write(text)
        return
    with replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_table(table: pa.Table, path: Path) -> None:
    """Write a table in the format of the file's name; to standard output, `-`, as CSV."""
    if path == STANDARD:
        sink = pa.BufferOutputStream()
        pacsv.write_csv(table, sink, pacsv.WriteOptions(quoting_style="needed"))
        write_text(sink.getvalue().to_pybytes().decode(), path)
        return
    kind, compression = format_of(path)
    with replacing(path) as temporary, pa.output_stream(str(temporary), compression=compression) as sink:
        if kind == ".parquet":
            pq.write_table(table, sink)
        elif kind == ".csv":
            pacsv.write_csv(table, sink, pacsv.WriteOptions(quoting_style="needed"))
        else:
            names = table.column_names
            for values in zip(*(table[name].to_pylist() for name in names), strict=True):
                sink.write(json.dumps(dict(zip(names, values, strict=True)), ensure_ascii=False).encode() + b"\n")


def _parquet_batches(path: Path, columns: Sequence[str]) -> Iterator[Rows]:
    with pq.ParquetFile(path) as file:
        found = tuple(file.schema_arrow.names)
        wanted = [name for name in found if name in columns]
        start = 0
        for batch in file.iter_batches(_BATCH, columns=wanted):
            numbers = np.arange(start + 1, start + batch.num_rows + 1)
            yield Rows(pa.table(batch), str(path), " row ", numbers, found=found)
            start += batch.num_rows
        if not start:
            none = file.schema_arrow.empty_table().select(wanted)
            yield Rows(none, str(path), numbers=np.zeros(0, np.int64), found=found)


def _csv_batches(path: Path, compression: str | None, columns: Sequence[str]) -> Iterator[Rows]:
    """All columns as text. A line with another number of cells than the header is a reject."""
    with pa.input_stream(str(path), compression=compression) as stream, io.BufferedReader(stream) as lines:  # type: ignore[arg-type]
        found, wanted = _csv_header(lines.readline(), columns, path)
    if not wanted:
        yield Rows(pa.table({}), str(path), found=found)  # refused where the columns are checked
        return
    broken: Broken = {}
    number = 2
    batches = 0
    options = _csv_options(wanted, broken)
    options["read_options"].block_size = _BLOCK
    with pa.input_stream(str(path), compression=compression) as stream, _csv_errors(path):
        for batch in pacsv.open_csv(stream, **options):
            # Rows are parsed ahead of the batch, so all that is broken before its end is known.
            numbers = np.setdiff1d(np.arange(number, number + batch.num_rows + len(broken)), list(broken))
            numbers = numbers[: batch.num_rows]
            number = int(numbers[-1]) + 1 if len(numbers) else number
            past = {n: broken.pop(n) for n in sorted(broken) if n < number}
            yield _csv_rows(pa.table(batch), numbers, past, path, found)
            batches += 1
    if broken or not batches:
        table = pa.table({name: pa.array([], pa.string()) for name in wanted})
        yield _csv_rows(table, np.zeros(0, np.int64), broken, path, found)


def _csv_header(line: bytes, columns: Sequence[str], path: Path) -> tuple[tuple[str, ...], list[str]]:
    """All columns, and those to read: none where one of them stands twice."""
    streams.check_head(line, str(path))
    try:
        found = next(csv.reader([line.decode("utf-8-sig", "replace").rstrip("\r\n")]), [])
    except csv.Error:
        raise DataError(
            "its first line is no header of CSV", f"{path}:1", "name the columns in the first line"
        ) from None
    wanted = [name for name in dict.fromkeys(found) if name in columns]
    return tuple(found), [] if any(found.count(name) > 1 for name in wanted) else wanted


def _csv_options(wanted: Sequence[str], broken: Broken) -> dict[str, Any]:
    def refuse(row: pacsv.InvalidRow) -> str:  # what is raised in here is swallowed
        broken[row.number] = row.text.strip(), f"{row.actual_columns} cells, the header has {row.expected_columns}"
        return "skip"

    return {
        "read_options": pacsv.ReadOptions(use_threads=False),  # else rows that are refused come without a number
        "parse_options": pacsv.ParseOptions(
            newlines_in_values=True, ignore_empty_lines=False, invalid_row_handler=refuse
        ),
        "convert_options": pacsv.ConvertOptions(
            include_columns=wanted, column_types={name: pa.string() for name in wanted}, strings_can_be_null=False
        ),
    }


@contextmanager
def _csv_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except pa.ArrowInvalid as error:
        remedy = "mend the file; it must be comma-separated and UTF-8 (iconv -f <its encoding> -t utf-8)"
        raise DataError(f"cannot be read as CSV: {error}", str(path), remedy) from None


def _csv_rows(table: pa.Table, numbers: NDArray[np.int64], broken: Broken, path: Path, found: tuple[str, ...]) -> Rows:
    """Records with content, and what is broken."""
    folded = [number for number, (text, _) in broken.items() if "\n" in text]
    for name in table.column_names:
        folded += numbers[pc.match_substring(table[name], "\n").to_numpy()].tolist()
    if folded:  # a quote left open swallows the rows up to the next quote
        place = f"{path}:{min(folded)}"
        raise DataError("a quote that opens in this line closes in another one or never", place, "mend the quotes")
    full = np.zeros(table.num_rows, dtype=np.bool_)
    for name in table.column_names:
        full |= pc.not_equal(table[name], "").to_numpy()
    refused = _refused(path, ((number, why) for number, (text, why) in sorted(broken.items()) if text))
    return Rows(table.filter(pa.array(full)), str(path), ":", numbers[full], refused, found)


def _read_jsonl(
    content: bytes,
    path: Path,
    texts: Sequence[str],
    numeric: Sequence[str],
    defaults: Mapping[str, str],
    first: int,
    known: Sequence[str],
) -> Rows:
    """One object a line; values as text, so that all formats are checked alike.

    `first` is the number of the first line, `known` are columns that there are even if these lines have none.
    """
    columns = (*texts, *numeric)
    cells: dict[str, list[str | None]] = {name: [] for name in columns}
    numbers: list[int] = []
    broken: list[tuple[int, str]] = []
    found: dict[str, None] = dict.fromkeys(known)
    for number, line in enumerate(content.removeprefix(codecs.BOM_UTF8).split(b"\n"), first):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
            if not isinstance(row, dict):
                raise ValueError("not an object")
            values = [_cell(name, row.get(name, defaults.get(name)), name in numeric) for name in columns]
        except (ValueError, RecursionError) as error:  # UnicodeDecodeError is a ValueError
            broken.append((number, str(error)))
            continue
        found.update(dict.fromkeys(row))
        numbers.append(number)
        for name, value in zip(columns, values, strict=True):
            cells[name].append(value)
    table = pa.table({name: pa.array(cells[name], pa.string()) for name in columns if name in found})
    return Rows(table, str(path), ":", np.array(numbers, np.int64), _refused(path, broken), tuple(found))


def _jsonl_batches(
    path: Path, compression: str | None, texts: Sequence[str], numeric: Sequence[str], defaults: Mapping[str, str]
) -> Iterator[Rows]:
    known: list[str] = []
    for number, content in _line_blocks(
        path, compression
    ):  # what one line has and another lacks is missing in that one
        if number == 1:
            streams.check_head(content, str(path))
        known += [name for name in (*texts, *numeric) if name not in known and _has_key(content, name)]
    empty = True
    for first, content in _line_blocks(path, compression):
        empty = False
        yield _read_jsonl(content, path, texts, numeric, defaults, first, known)
    if empty:
        yield _read_jsonl(b"", path, texts, numeric, defaults, 1, known)


def _has_key(content: bytes, name: str) -> bool:
    """Whether some object of these lines has the key; most lines that hold its name do, so few are parsed."""
    quoted = f'"{name}"'.encode()
    return quoted in content and any(quoted in line and name in _object(line) for line in content.split(b"\n"))


def _object(line: bytes) -> dict[str, Any]:
    """The object of a line; an empty one where there is none."""
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        return {}
    return row if isinstance(row, dict) else {}


def _line_blocks(path: Path, compression: str | None) -> Iterator[tuple[int, bytes]]:
    """(number of the first line, whole lines) of a file."""
    number = 1
    with pa.input_stream(str(path), compression=compression) as raw, io.BufferedReader(raw, 1 << 20) as file:  # type: ignore[arg-type]
        while lines := file.readlines(_BLOCK):
            yield number, b"".join(lines).removesuffix(b"\n")
            number += len(lines)


def _cell(name: str, value: Any, numeric: bool) -> str | None:
    """A value of a JSON object as text; ValueError where such a column cannot hold it."""
    if isinstance(value, str):
        value.encode()  # UnicodeEncodeError is a ValueError: half a surrogate pair
        return value
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float if numeric else int):
        raise ValueError(f"{name} is {json.dumps(value)[:40]}")
    return repr(value)


def _refused(path: Path, broken: Iterable[tuple[int, str]]) -> pa.Table:
    rows = list(broken)
    return records.REJECT.table(
        {
            "place": [f"{path}:{number}" for number, _ in rows],
            "key": [""] * len(rows),
            "reason": [_BROKEN] * len(rows),
            "detail": [why for _, why in rows],
        }
    )
