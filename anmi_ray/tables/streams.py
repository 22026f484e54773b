"""Read bytes from files and standard input (`-`): bounded lines, JSON records, checked encodings.

A record that cannot be used is a LineError in its place, with the reason.
"""

from __future__ import annotations

import codecs
import io
import json
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any, BinaryIO, TypeVar

import pyarrow as pa

from anmi_ray.core.errors import DataError

STANDARD = Path("-")
INPUT = "standard input"  # its place in a message
_PARQUET = b"PAR1"
_PACKED = {b"\x1f\x8b": ".gz", b"\x28\xb5\x2f\xfd": ".zst"}
_WIDE = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE, codecs.BOM_UTF32_BE)
COMPRESSIONS = {".gz": "gzip", ".zst": "zstd"}
MAX_LINE = 16 << 20  # bytes of a line or other record; longer ones are refused
TOO_LARGE = f"larger than {MAX_LINE >> 20} MiB"
NOT_UTF8 = "not UTF-8"
BLOCK = 1 << 23  # bytes of text read at once
_PIECE = 1 << 20  # bytes of a JSON array read at once
_SPACE = re.compile(r"[ \t\r\n]*")
# Encodings to guess among; for Latin letters only the most common one, since others differ in too few bytes.
_ENCODINGS = ["gb18030", "big5", "cp932", "euc_jp", "cp949", "cp1251", "koi8_r", "cp1253", "cp1255", "cp1256", "cp1252"]
Place = TypeVar("Place", int, str)  # of a record: its number, or with its file's name
Raw = TypeVar("Raw")
Row = TypeVar("Row")


class LineError(Exception):
    """Why one record cannot be used; readers turn it into a reject.

    sample: bytes of a record that is not UTF-8, for guessing its encoding.
    malformed: whether the reject counts towards max_reject_fraction.
    """

    def __init__(
        self, reason: str, key: str = "", detail: str = "", sample: bytes = b"", malformed: bool = True
    ) -> None:
        super().__init__(reason)
        self.reason = reason
        self.key = key
        self.detail = detail
        self.sample = sample
        self.malformed = malformed


def parsed(
    records: Iterable[tuple[Place, Raw | LineError]], parse: Callable[[Raw], Row]
) -> Iterator[tuple[Place, Row | LineError]]:
    """Yield (place, `parse(record)`), or (place, error) for a record that cannot be used."""
    for place, record in records:
        if isinstance(record, LineError):
            yield place, record
            continue
        try:
            yield place, parse(record)
        except LineError as error:
            yield place, error


def decode(line: bytes) -> str:
    """Decode UTF-8. Raises LineError."""
    try:
        return line.decode()
    except UnicodeDecodeError as error:
        raise LineError(NOT_UTF8, detail=f"byte {error.start}", sample=line) from None


def valid(text: str, key: str = "") -> str:
    """Return the text. LineError if JSON spelled half of a surrogate pair, which no UTF-8 column can hold."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise LineError("not valid Unicode", key) from None
    return text


def json_object(line: bytes) -> dict[str, Any]:
    """Parse a line as a JSON object. Raises LineError."""
    try:
        value = json.loads(decode(line))
    except (ValueError, RecursionError) as error:
        raise LineError("broken JSON", detail=str(error)) from None
    if not isinstance(value, dict):
        raise LineError("broken JSON", detail="not an object")
    return value


@contextmanager
def spooled() -> Iterator[Path]:
    """Copy standard input to a file whose suffix follows from its first bytes.

    Parquet begins with PAR1, JSON with { or [; anything else is CSV.
    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "input"
        with file.open("wb") as sink:
            shutil.copyfileobj(sys.stdin.buffer, sink)
        yield file.rename(f"{file}{_suffix(file)}")


def _suffix(file: Path) -> str:
    """Return .parquet, .jsonl or .csv, the last two perhaps with .gz or .zst."""
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
    return (".jsonl" if text.startswith((b"{", b"[")) else ".csv") + packed


def bounded_lines(file: BinaryIO) -> Iterator[tuple[int, bytes | LineError]]:
    """Yield (number, line); an error for a line larger than MAX_LINE, which is never in memory."""
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
        yield number, LineError(TOO_LARGE, detail=f"{size:,} bytes")


def json_records(file: io.BufferedReader[Any], place: str) -> Iterator[tuple[int, bytes | LineError]]:
    """Yield (number, JSON) of every line, as `bounded_lines`, or of every element of a file that is one array."""
    head = file.peek(64).removeprefix(codecs.BOM_UTF8).lstrip()
    return _elements(file, place) if head.startswith(b"[") else bounded_lines(file)


def _elements(file: BinaryIO, place: str) -> Iterator[tuple[int, bytes]]:
    """Yield (number from 1, JSON on one line) of every element of an array; memory is that of the largest element.

    Raises DataError for an element that is broken or larger than MAX_LINE, since the start of the next is unknown.
    """
    decoder = codecs.getincrementaldecoder("utf-8-sig")()
    scan = json.JSONDecoder().raw_decode

    def after_space(text: str, at: int) -> int:
        return found.end() if (found := _SPACE.match(text, at)) else at

    number = 0  # of complete elements
    text = ""
    at = -1  # where the next element begins; -1 before the array
    fault = "it ends before the array does"
    remedy = "check the file there, or write one object per line (.jsonl)"
    piece = b"more"
    while piece and len(text) - at <= MAX_LINE:
        try:
            piece = file.read(_PIECE)
            text = text[max(at, 0) :] + decoder.decode(piece, final=not piece)
        except UnicodeDecodeError as error:
            raise DataError(f"element {number + 1} is not UTF-8", place, recoding(error.object)) from None
        at = text.index("[") + 1 if at < 0 else 0
        while (start := after_space(text, at)) < len(text) and text[start] != "]":
            try:
                end = after_space(text, scan(text, start)[1])
            except (ValueError, RecursionError) as error:
                fault = getattr(error, "msg", str(error))  # without its position, which is that in `text`
                break
            if end == len(text):
                break
            if text[end] not in ",]":
                raise DataError(f"element {number + 1} is followed by {text[end]!r}", place, remedy)
            number += 1
            yield number, text[start:end].replace("\n", " ").replace("\r", " ").encode()
            at = end + (text[end] == ",")
        if text[start : start + 1] == "]":
            if text[start + 1 :].strip() or file.read(_PIECE).strip():
                raise DataError(f"text follows the array of {number:,} elements", place, remedy)
            return
    fault = fault if not piece else TOO_LARGE
    raise DataError(f"element {number + 1} of its JSON array cannot be read: {fault}", place, remedy)


def guessed_encoding(sample: bytes) -> str:
    """Guess the encoding of text that is not UTF-8; "" if none fits."""
    import charset_normalizer

    best = charset_normalizer.from_bytes(sample, cp_isolation=_ENCODINGS).best()
    if best is not None:
        return best.encoding.replace("_", "-")
    try:
        sample.decode("cp1252")
    except UnicodeDecodeError:
        return ""
    return "cp1252"


def recoding(sample: bytes) -> str:
    """Return the remedy for a file that is not UTF-8, with a guess at its encoding from a sample."""
    return f"convert it: iconv -f {guessed_encoding(sample[:BLOCK]) or 'ITS-ENCODING'} -t UTF-8"


def check_head(head: bytes, place: str, remedy: str = "convert it: iconv -f UTF-16 -t UTF-8") -> None:
    """Raise DataError if text that should be UTF-8 begins like something else."""
    for magic, suffix in _PACKED.items():
        if head.startswith(magic):
            raise DataError("is compressed, and its name does not say so", place, f"end its name with {suffix}")
    if head.startswith(_WIDE) or b"\0" in head[:4]:
        raise DataError("is UTF-16 or UTF-32 text, or not text", place, remedy)


def decoded_lines(file: BinaryIO, place: str) -> Iterator[str]:
    """Yield the lines of UTF-8 text, without byte-order mark. Raises DataError if one is invalid or too long."""
    for number, line in bounded_lines(file):
        try:
            if isinstance(line, LineError):
                raise line
            if number == 1:
                check_head(line, place)
                line = line.removeprefix(codecs.BOM_UTF8)
            yield decode(line).removesuffix("\n")
        except LineError as error:
            remedy = recoding(error.sample) if error.sample else "shorten the line, or name another file"
            raise DataError(f"{error.reason}: {error.detail}", f"{place}:{number}", remedy) from None
