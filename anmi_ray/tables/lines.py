"""Lines of strangers' text files: read one after the other, none so large that memory could not hold it, all UTF-8."""

from __future__ import annotations

import codecs
import io
from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pyarrow as pa

from anmi_ray.core.errors import DataError

MAX_LINE = 16 << 20  # bytes of a line, or of any other record, that are held in memory: longer ones are refused
TOO_LARGE = f"larger than {MAX_LINE >> 20} MiB"
_PIECE = 1 << 23  # bytes of text that are read at once


def bounded_lines(file: io.BufferedReader) -> Iterator[tuple[int, bytes | int]]:
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
            line = file.readline(_PIECE)
            size += len(line)
        yield number, size


def check_encoding(start: bytes, place: str) -> None:
    """DataError where a file that starts so is UTF-16 or UTF-32, whose lines would all be broken."""
    marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
    if start.startswith(marks) or b"\0" in start[:4]:
        raise DataError("is UTF-16 or UTF-32 text, or no text", place, "write it as UTF-8: iconv -f UTF-16 -t UTF-8")


def check_utf8(path: Path, compression: str | None) -> None:
    """DataError where a file is no UTF-8: a row that Arrow refuses, and cannot decode, would be lost silently."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    line = 1
    with pa.input_stream(str(path), compression=compression) as stream:
        while True:
            piece = stream.read(_PIECE)
            try:
                decoder.decode(piece, final=not piece)
            except UnicodeDecodeError as error:
                line += error.object.count(b"\n", 0, error.start)
                raise DataError(
                    "is not UTF-8", f"{path}:{line}", "convert it: iconv -f <its encoding> -t utf-8"
                ) from None
            if not piece:
                return
            line += piece.count(b"\n")
