"""Bytes that a command is given: lines that fit memory, files that are what their name says, `-` for standard input."""

from __future__ import annotations

import codecs
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import BinaryIO

import pyarrow as pa

from anmi_ray.core.errors import AnmiError, DataError

STANDARD = Path("-")
INPUT = "standard input"  # its place in a message
_PARQUET = b"PAR1"
_PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAX_LINE = 16 << 20  # bytes of a line, or of any other record, that are held in memory: longer ones are refused
TOO_LARGE = f"larger than {MAX_LINE >> 20} MiB"
BLOCK = 1 << 23  # bytes of text that are read at once


@contextmanager
def spooled() -> Iterator[Path]:
    """A file that holds what standard input does while inside, named as what that begins like.

    Parquet begins with PAR1 and an object of JSON lines with {; anything else is CSV. Errors name standard input.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "input"
        with file.open("wb") as sink:
            shutil.copyfileobj(sys.stdin.buffer, sink)
        try:
            file = file.rename(f"{file}{_suffix(file)}")
            yield file
        except AnmiError as error:
            raise type(error)(error.message, (error.place or INPUT).replace(str(file), INPUT), error.remedy) from None


def _suffix(file: Path) -> str:
    """.parquet, .jsonl or .csv, the last two with .gz or .zst where they are packed."""
    with file.open("rb") as source:
        head = source.read(4)
    if head == _PARQUET:
        return ".parquet"
    packed = next((suffix for magic, suffix in _PACKED.items() if head.startswith(magic)), "")
    try:
        with pa.input_stream(str(file), compression=COMPRESSIONS.get(packed)) as source:
            text = source.read(64).removeprefix(codecs.BOM_UTF8).lstrip()
    except OSError as error:
        raise DataError(f"cannot be unpacked: {error}", INPUT, "send the whole file, or send it unpacked") from None
    return (".jsonl" if text.startswith(b"{") else ".csv") + packed


def bounded_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | int]]:
    """(number, line) of every line; of one that is larger than MAX_LINE its size in the place of its bytes."""
    for number in count(1):
        line = file.readline(MAX_LINE)
        size = len(line)
        if not line:
            return
        if size < MAX_LINE:
            yield number, line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(BLOCK)
            size += len(line)
        yield number, size


def check_head(head: bytes, place: str) -> None:
    """Raise DataError where text that is to be UTF-8 begins like something else."""
    for magic, suffix in _PACKED.items():
        if head.startswith(magic):
            raise DataError("is compressed, and its name does not say so", place, f"end its name with {suffix}")
    if head.startswith(_WIDE) or b"\0" in head[:4]:
        raise DataError("is UTF-16 or UTF-32 text, or no text", place, "write it as UTF-8: iconv -f UTF-16 -t UTF-8")


def decoded_lines(file: BinaryIO, place: str) -> Iterator[str]:
    """The lines of a text in UTF-8, without its byte-order mark. DataError where one is no such text, or too large."""
    for number, line in bounded_lines(file):
        if isinstance(line, int):
            raise DataError(f"{TOO_LARGE}: {line:,} bytes", f"{place}:{number}", "mend the line, or name another file")
        if number == 1:
            check_head(line, place)
            line = line.removeprefix(codecs.BOM_UTF8)
        try:
            yield line.decode().removesuffix("\n")
        except UnicodeDecodeError:
            remedy = "convert it: iconv -f ITS-ENCODING -t UTF-8"
            raise DataError("not UTF-8 text", f"{place}:{number}", remedy) from None
