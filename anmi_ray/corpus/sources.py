"""The files of a collection on any filesystem that pyarrow knows: local paths, file://, s3://, gs://."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

import pyarrow as pa
from pyarrow import fs

from anmi_ray.config.paths import as_written
from anmi_ray.core import redaction
from anmi_ray.core.errors import DataError, from_os_error
from anmi_ray.corpus.parsing import ENCODING, LineError, too_large
from anmi_ray.tables.streams import COMPRESSIONS, bounded_lines, check_head, json_records

_BLOCK = 1 << 22
_JSON = (".jsonl", ".json")
_UNREADABLE = "\udcff"  # in place of bytes that are not text; it becomes a byte 0xff, which UTF-8 never holds
codecs.register_error("anmi_unreadable", lambda error: (_UNREADABLE, error.end))  # pyright: ignore[reportAttributeAccessIssue]


class _AsUtf8(io.RawIOBase):
    """Text in another encoding, read as UTF-8; a character that cannot be decoded becomes a byte 0xff."""

    def __init__(self, source: pa.NativeFile, encoding: str) -> None:
        self._source = source
        self._decoder = codecs.getincrementaldecoder(encoding)("anmi_unreadable")
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        piece = b"more"
        while piece and not self._left:
            piece = self._source.read(len(buffer))
            self._left = self._decoder.decode(piece, not piece).encode("utf-8", "surrogateescape")
        size = min(len(buffer), len(self._left))
        buffer[:size], self._left = self._left[:size], self._left[size:]
        return size


@dataclass(frozen=True)
class File:
    """One file. `name` is short, for rejects; `place` is whole, for errors; `encoding` is that of its text."""

    filesystem: fs.FileSystem = field(repr=False)
    path: str
    name: str
    place: str
    encoding: str = "utf-8"

    @property
    def kind(self) -> str:
        """The suffix without what only says how the file is compressed: ".jsonl" of corpus.jsonl.gz."""
        return PurePosixPath(_unpacked(self.path)).suffix.lower()

    def open(self, compression: str | None = None) -> pa.NativeFile:
        """A stream of the file's bytes, unpacked by `compression`. Raises StoreError."""
        try:
            return self.filesystem.open_input_stream(self.path, compression=compression)
        except OSError as error:
            raise from_os_error(error, self.place) from error

    def open_seekable(self) -> pa.NativeFile:
        """The file for reading at any offset. Raises StoreError."""
        try:
            return self.filesystem.open_input_file(self.path)
        except OSError as error:
            raise from_os_error(error, self.place) from error

    def lines(self, blank: bool = False) -> Generator[tuple[str, bytes | LineError]]:
        """("corpus.jsonl:17", line as UTF-8) of every line, with `blank` also of blank ones; .gz and .zst are unpacked.

        The elements of a JSON array count as lines. A line larger than MAX_LINE, or that cannot be decoded by
        `encoding`, is a LineError: the former is never in memory. Raises DataError if the file ends too early or cannot
        be unpacked, StoreError if it cannot be opened.
        """
        compression = COMPRESSIONS.get(PurePosixPath(self.path).suffix.lower())
        is_utf8 = self.encoding == "utf-8"
        with (
            self.open(compression) as raw,
            io.BufferedReader(raw if is_utf8 else _AsUtf8(raw, self.encoding), 1 << 20) as file,  # pyright: ignore[reportArgumentType]
        ):
            try:
                check_head(file.peek(64), self.place, f"set {ENCODING}: utf-16, or another that fits")
                records = json_records(file, self.place) if self.kind in _JSON else bounded_lines(file)
                for number, line in records:
                    if isinstance(line, int):
                        yield f"{self.name}:{number}", too_large(line)
                        continue
                    if not is_utf8 and b"\xff" in line:
                        yield f"{self.name}:{number}", LineError(f"not {self.encoding}, see {ENCODING}")
                        continue
                    line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                    if blank or line.strip():
                        yield f"{self.name}:{number}", line.rstrip(b"\r\n")
            except OSError as error:
                raise DataError(f"cannot be read to its end: {error}", self.place, "fetch the file again") from error

    def chunks(self) -> Iterator[bytes]:
        """The file's bytes as stored. Raises StoreError."""
        with self.open() as stream:
            try:
                while chunk := stream.read(_BLOCK):
                    yield chunk
            except OSError as error:
                raise from_os_error(error, self.place) from error


def opened(place: str, setting: str) -> tuple[fs.FileSystem, str, fs.FileType]:
    """The filesystem of a local path or URI, the path in it and what is there. DataError where it cannot be reached."""
    try:
        if "://" in place:
            filesystem, path = fs.FileSystem.from_uri(place)
        else:
            filesystem = fs.LocalFileSystem()
            path = os.path.abspath(os.path.expanduser(place))
        return filesystem, path, filesystem.get_file_info(path).type
    except (OSError, ValueError, pa.ArrowException) as error:
        message = redaction.scrub(f"cannot be opened: {error}")
        # `from None`: the original message may quote the credentials of a URI
        raise DataError(message, f"corpus {redaction.scrub(as_written(place))}", f"check corpus.{setting}") from None


def files_of(
    places: Iterable[str], setting: str, kinds: tuple[str, ...] = (), encoding: str = "utf-8", any_file: bool = False
) -> list[File]:
    """The files that `places` (files and folders) stand for, sorted by path, whatever the order of the places.

    A folder stands for the files below it whose suffix is among `kinds` (all without `kinds`), those with a leading
    dot or underscore left out; a file must be of these kinds too, unless `any_file`. Names are relative to the folder
    that holds everything. Raises DataError where a place is missing, empty, of another kind or named twice.
    """
    found: dict[tuple[str, str], tuple[fs.FileSystem, str]] = {}
    bases = []
    for place in places:
        filesystem, path, type_ = opened(place, setting)
        shown = redaction.scrub(as_written(place).partition("?")[0]).rstrip("/")
        folder = path.rstrip("/")
        if type_ == fs.FileType.Directory:
            below = _below(filesystem, path, shown, kinds)
        elif type_ == fs.FileType.File:
            below = [path]
            folder = str(PurePosixPath(path).parent)
            _check_kind(path, shown, setting, () if any_file else kinds)
        else:
            raise DataError("no such file or folder", f"corpus {shown}", f"check corpus.{setting}")
        bases.append(folder)
        for one in below:
            key = (filesystem.type_name, one)
            if key in found:
                raise DataError("is read twice", f"corpus {shown}", f"name it once among corpus.{setting}")
            relative = one.removeprefix(path.rstrip("/"))
            found[key] = filesystem, f"corpus {shown}{relative}"
    common = _common(bases)
    named = [File(one[0], key[1], _relative(key[1], common), one[1], encoding) for key, one in found.items()]
    return sorted(named, key=lambda file: file.path)


def content_hash(files: Iterable[tuple[str, File]]) -> str:
    """Hash of labels and bytes as stored. Every byte is read once: an object store has no other hash to be trusted.

    So a run that has to ingest reads its collection twice, once for this and once to parse it.
    """
    h = hashlib.blake2b(digest_size=16)
    for label, file in files:
        h.update(f"\0{label}\0".encode())
        for chunk in file.chunks():
            h.update(chunk)
    return h.hexdigest()


def _below(filesystem: fs.FileSystem, path: str, shown: str, kinds: tuple[str, ...]) -> list[str]:
    try:
        infos = filesystem.get_file_info(fs.FileSelector(path, recursive=True))
    except OSError as error:
        raise from_os_error(error, f"corpus {shown}") from error
    inside = [info.path for info in infos if info.type == fs.FileType.File]
    below = [one for one in inside if not _hidden(one[len(path) :]) and (not kinds or _kind(one) in kinds)]
    if not below:
        there = ", ".join(sorted(PurePosixPath(one).name for one in inside)[:12]) or "nothing"
        wanted = f"no {', '.join(kinds)} file" if kinds else "no file"
        raise DataError(f"{wanted} in this folder; there is: {there}", f"corpus {shown}", "name another")
    return below


def _hidden(relative: str) -> bool:
    return any(part.startswith((".", "_")) for part in PurePosixPath(relative).parts)


def _unpacked(path: str) -> str:
    pure = PurePosixPath(path)
    return str(pure.with_suffix("")) if pure.suffix.lower() in COMPRESSIONS else path


def _kind(path: str) -> str:
    return PurePosixPath(_unpacked(path)).suffix.lower()


def _check_kind(path: str, shown: str, setting: str, kinds: tuple[str, ...]) -> None:
    if kinds and _kind(path) not in kinds:
        raise DataError(
            f"its format cannot be told from its name; allowed: {', '.join(kinds)} (text also .gz or .zst)",
            f"corpus {shown}",
            f"name the file by its format, or name another with corpus.{setting}",
        )


def _common(bases: list[str]) -> str:
    try:
        return os.path.commonpath(bases)
    except ValueError:  # places on two filesystems
        return ""


def _relative(path: str, common: str) -> str:
    return path.removeprefix(common).lstrip("/") if common else path
