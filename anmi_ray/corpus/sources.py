"""Files of a collection on any filesystem that pyarrow supports: local paths, file://, s3://, gs://."""

from __future__ import annotations

import codecs
import hashlib
import io
import os
import re
from collections.abc import Generator, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any, ClassVar

import pyarrow as pa
from pyarrow import fs

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.paths import as_written
from anmi_ray.core import redaction
from anmi_ray.core.errors import DataError, from_os_error
from anmi_ray.corpus.parsing import ENCODING
from anmi_ray.corpus.reader import Reader
from anmi_ray.tables.streams import COMPRESSIONS, LineError, bounded_lines, check_head, json_records

_BLOCK = 1 << 22
_JSON = (".jsonl", ".json")
_NAMED = 3  # files in a message
_UNREADABLE = "\udcff"  # replaces bytes that are not text; it becomes a byte 0xff, which UTF-8 never holds
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
    """One file.

    name: a short path, for rejects.
    place: the full path, for errors.
    encoding: of its text.
    """

    filesystem: fs.FileSystem = field(repr=False)
    path: str
    name: str
    place: str
    encoding: str = "utf-8"

    @property
    def kind(self) -> str:
        """The suffix without that of a compression: ".jsonl" for corpus.jsonl.gz."""
        return _kind(self.path)

    def open(self, compression: str | None = None, seekable: bool = False) -> pa.NativeFile:
        """Open the file's bytes, unpacked by `compression`, or at any offset. Raises StoreError."""
        try:
            if seekable:
                return self.filesystem.open_input_file(self.path)
            return self.filesystem.open_input_stream(self.path, compression=compression)
        except OSError as error:
            raise from_os_error(error, self.place) from error

    def lines(self, blank: bool = False) -> Generator[tuple[str, bytes | LineError]]:
        """Yield ("corpus.jsonl:17", line as UTF-8), with `blank` also of blank lines; .gz and .zst are unpacked.

        Elements of a JSON array count as lines. A line larger than MAX_LINE, which is never in memory, or not in
        `encoding` is a LineError. Raises DataError if the file ends too early or cannot be unpacked, StoreError if it
        cannot be opened.
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
                    if isinstance(line, LineError):
                        yield f"{self.name}:{number}", line
                        continue
                    if not is_utf8 and b"\xff" in line:
                        yield f"{self.name}:{number}", LineError(f"not {self.encoding}, see {ENCODING}")
                        continue
                    line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
                    if blank or line.strip():
                        yield f"{self.name}:{number}", line.rstrip(b"\r\n")
            except OSError as error:
                raise DataError(f"cannot be read to its end: {error}", self.place, "fetch the file again") from error
            except UnicodeError as error:  # such as UTF-16 without a byte-order mark
                raise DataError(f"not {self.encoding}: {error}", self.place, f"set {ENCODING}") from error

    def chunks(self) -> Iterator[bytes]:
        """Yield the file's bytes as stored. Raises StoreError."""
        with self.open() as stream:
            try:
                while chunk := stream.read(_BLOCK):
                    yield chunk
            except OSError as error:
                raise from_os_error(error, self.place) from error


def opened(place: str, setting: str) -> tuple[fs.FileSystem, str, fs.FileType]:
    """Return the filesystem of a local path or URI, the path in it, and its type. DataError if it cannot be reached."""
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
    """Return the files in `places` (files and folders), sorted by path.

    In a folder, files with a suffix in `kinds` (any if empty), except those with a leading dot or underscore; a file
    must have one of these suffixes too, unless `any_file`. Names are relative to the common folder.
    Raises DataError if a place is missing, empty, of another kind or named twice.
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
            if kinds and not any_file and _kind(path) not in kinds:
                raise DataError(
                    f"unknown file format; expected {', '.join(kinds)} (text also .gz or .zst)",
                    f"corpus {shown}",
                    f"name the file by its format, or name another with corpus.{setting}",
                )
        else:
            raise DataError("no such file or folder", f"corpus {shown}", f"check corpus.{setting}")
        bases.append(folder)
        for one in below:
            key = (filesystem.type_name, one)
            if key in found:
                raise DataError("is read twice", f"corpus {shown}", f"name it once among corpus.{setting}")
            relative = one.removeprefix(path.rstrip("/"))
            found[key] = filesystem, f"corpus {shown}{relative}"
    try:
        common = os.path.commonpath(bases)
    except ValueError:  # places on two filesystems
        common = ""
    names = {key: key[1].removeprefix(common).lstrip("/") if common else key[1] for key in found}
    files = [File(one[0], key[1], names[key], one[1], encoding) for key, one in found.items()]
    return sorted(files, key=lambda file: file.path)


def content_hash(files: Iterable[tuple[str, File]]) -> str:
    """Hash labels and bytes as stored, since object stores have no reliable hash: ingest reads every file twice."""
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
    seen = [one for one in inside if not re.search(r"(^|/)[._]", one[len(path) :])]
    below = [one for one in seen if not kinds or _kind(one) in kinds]
    if not below:
        there = ", ".join(sorted(PurePosixPath(one).name for one in inside)[:12]) or "nothing"
        wanted = f"no {', '.join(kinds)} file" if kinds else "no file"
        raise DataError(f"{wanted} in this folder; there is: {there}", f"corpus {shown}", "name another")
    return below


def _kind(path: str) -> str:
    pure = PurePosixPath(path)
    return (pure.with_suffix("") if pure.suffix.lower() in COMPRESSIONS else pure).suffix.lower()


class FilesReader(Reader):
    """A collection in the files that `documents`, `queries` and `qrels` name, each list sorted by path.

    kinds: suffixes of files; any if empty. Qrels may have any.
    query_kinds: additional suffixes of queries.
    Raises DataError if a file is missing or of another kind.
    """

    kinds: ClassVar[tuple[str, ...]] = ()
    query_kinds: ClassVar[tuple[str, ...]] = ()

    def __init__(self, config: CorpusConfig, documents_alone: bool = False) -> None:
        super().__init__(config)
        encoding = config.encoding
        self._document_files = files_of(config.documents, "documents", self.kinds, encoding)
        if documents_alone:
            return
        self._query_files = files_of(config.queries, "queries", self.kinds + self.query_kinds, encoding)
        places = config.qrels.named if config.qrels is not None else {}
        self._qrel_files = {
            split: files_of(names, f"qrels.{split}", self.kinds, encoding, any_file=True)
            for split, names in places.items()
            if split in (*config.labels, *config.hidden)
        }
        self.judged_splits = tuple(self._qrel_files)
        self.unread = tuple(f"corpus.qrels.{split}" for split in places if split not in self._qrel_files)

    def content_fingerprint(self) -> str:
        """Hash of roles, names and bytes as stored, which does not depend on where the files are."""
        judged = ((f"qrels {split}", files) for split, files in self._qrel_files.items())
        roles = (("documents", self._document_files), ("queries", self._query_files), *judged)
        return content_hash((f"{role} {file.name}", file) for role, files in roles for file in files)

    def place_of(self, kind: str) -> str:
        files = self._document_files if kind == "documents" else self._query_files
        return ", ".join(file.place for file in files[:_NAMED]) + (", ..." if len(files) > _NAMED else "")
