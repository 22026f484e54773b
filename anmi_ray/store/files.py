"""Files under a root on any pyarrow filesystem: published whole or not at all, Parquet with our key in its footer.

A file is built whole, in memory or as a local file, and published at once: locally by a temporary file, fsync and
os.replace; on object storage by one upload.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from anmi_ray.config.paths import as_written, local_path
from anmi_ray.core.errors import DamagedError, StoreError, from_os_error
from anmi_ray.store import parquet

FORMAT = 1
_AT_ONCE = 16  # requests to the storage
_ONE_PUT = 8 << 20  # below the 10 MB at which pyarrow starts a multipart upload
_PIECE = 1 << 20
_SECRET = re.compile(r"(?<=://)[^/@:]*:(?!\d+(?:/|$)).*@")  # user:password@, even when the password is not URI-encoded
CHECKSUM = "checksum"
_WRAPPED = {"content"}
_One = TypeVar("_One")
_Found = TypeVar("_Found")


def at_once(request: Callable[[_One], _Found], of: Iterable[_One]) -> list[_Found]:
    """`request` of each, in order: some of them wait for the storage at the same time. The first error is raised."""
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        return list(pool.map(request, of))


def public_root(root: str) -> str:
    """A root as its user gave it, without credentials and connection options, for messages.

    >>> public_root("s3://key:secret@bucket/run?region=us-east-1")
    's3://bucket/run'
    """
    root = as_written(root)
    return _SECRET.sub("", root.partition("?")[0]).rstrip("/") if "://" in root else root.rstrip("/")


@lru_cache(maxsize=16)  # a connection per root and process: making one can cost a request (the bucket's region)
def open_filesystem(root: str, one_put: bool = True) -> tuple[pafs.FileSystem, str]:
    """The filesystem and the path in it of a root: a local path or a URI (s3://, gs://, hdfs://).

    `one_put`: files up to 8 MB are written to S3 by a single PUT. Not for larger ones: when the start of their
    multipart upload fails, pyarrow's close would publish an empty object.
    Raises StoreError when the scheme is unknown or the storage cannot be reached.
    """
    if "://" not in root:
        return pafs.LocalFileSystem(), os.path.abspath(os.path.expanduser(root))
    uri = root
    if root.startswith("s3://") and one_put and "allow_delayed_open" not in root:
        uri = f"{root}{'&' if '?' in root else '?'}allow_delayed_open=true"
    try:
        found, path = pafs.FileSystem.from_uri(uri)
        if path or not uri.startswith(("s3://", "gs://")):
            return found, path
        raise pa.ArrowInvalid("names no bucket or folder")
    except (OSError, pa.ArrowInvalid) as error:
        message = str(error).replace(uri, public_root(root))
        # `from None`: the original message may quote the credentials
        raise StoreError(
            message, public_root(root), "give a folder, or a URI such as s3://bucket/folder with its region"
        ) from None


@dataclass(frozen=True, repr=False)
class Store:
    """Files under one root. Picklable; a task opens its own connection, wherever it works: a local root is absolute.

    `filesystem` is given by tests and by callers with a filesystem of their own; else it follows from `root`.
    """

    root: str
    filesystem: pafs.FileSystem | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        if self.filesystem is None:
            object.__setattr__(self, "root", local_path(self.root))

    def __repr__(self) -> str:
        return f"Store({public_root(self.root)!r})"

    def _open(self, size: int = 0) -> tuple[pafs.FileSystem, str]:
        if self.filesystem is not None:
            return self.filesystem, self.root.rstrip("/")
        return open_filesystem(self.root, size <= _ONE_PUT)

    @property
    def local(self) -> Path | None:
        """The root as a local folder, or None on object storage."""
        filesystem, base = self._open()
        return Path(base) if isinstance(filesystem, pafs.LocalFileSystem) else None

    def where(self, path: str) -> str:
        """The full name of `path`, for messages."""
        return f"{public_root(self.root)}/{path}"

    @contextmanager
    def _named(self, path: str) -> Iterator[None]:
        """Raise errors of the storage as StoreError that names `path`."""
        try:
            yield
        except OSError as error:
            raise from_os_error(error, self.where(path)) from error

    def publish(self, path: str, data: bytes | pa.Buffer) -> None:
        """Make `data` visible under `path`, whole or not at all. Raises StoreError when full or not reachable."""
        filesystem, base = self._open(len(data))
        with self._named(path):
            if isinstance(filesystem, pafs.LocalFileSystem):
                _replace(Path(base) / path, data)
            else:
                _upload(filesystem, f"{base}/{path}", data)

    def publish_file(self, path: str, file: Path) -> None:
        """Publish the content of a local file, which is mapped and never in memory whole. Raises as `publish`."""
        if not file.stat().st_size:  # nothing can be mapped
            self.publish(path, b"")
            return
        with pa.memory_map(str(file)) as mapped:
            self.publish(path, mapped.read_buffer())

    def fetch(self, path: str, file: Path) -> None:
        """Copy the file under `path` to a local one, a piece at a time. Raises StoreError when it is not there."""
        try:
            with self.open_input(path) as source, file.open("wb") as sink:
                shutil.copyfileobj(source, sink, _PIECE)
        except OSError as error:
            raise from_os_error(error, f"{self.where(path)} on its way to {file}") from error

    def read(self, path: str) -> bytes:
        """The bytes under `path`. Raises StoreError when they are not there."""
        with self._named(path), self.open_input(path) as stream:
            return stream.read()

    def open_input(self, path: str) -> pa.NativeFile:
        """A seekable stream of the file under `path`. Raises StoreError when it is not there."""
        filesystem, base = self._open()
        with self._named(path):
            try:
                return filesystem.open_input_file(f"{base}/{path}")
            except FileNotFoundError as error:
                raise DamagedError("no such file or folder", self.where(path), self.rebuild(path)) from error

    def exists(self, path: str) -> bool:
        """Whether a file is there."""
        filesystem, base = self._open()
        with self._named(path):
            return filesystem.get_file_info(f"{base}/{path}").type == pafs.FileType.File

    def names(self, folder: str) -> list[str]:
        """Names of the files directly in `folder`, sorted; none when it is not there."""
        return sorted(self.sizes(folder))

    def tree(self, folder: str) -> list[str]:
        """Paths of all files below `folder`, relative to it, sorted."""
        return sorted(self.sizes(folder, recursive=True))

    def sizes(self, folder: str, recursive: bool = False) -> dict[str, int]:
        """Bytes of the files in `folder` by their path relative to it; empty when it is not there.

        Hidden files are left out: they are what a killed writer was about to publish.
        """
        filesystem, base = self._open()
        top = f"{base}/{folder}".rstrip("/")
        with self._named(folder):
            if isinstance(filesystem, pafs.LocalFileSystem):
                found = dict(_scan(top, recursive))
            else:
                selector = pafs.FileSelector(top, recursive=recursive, allow_not_found=True)
                files = (info for info in filesystem.get_file_info(selector) if info.type == pafs.FileType.File)
                found = {info.path[len(top) :].lstrip("/"): int(info.size or 0) for info in files}
        return {name: size for name, size in found.items() if not re.search(r"(^|/)\.", name)}

    def remove(self, path: str) -> None:
        """Remove a file, or a folder with all that is in it, if it is there."""
        filesystem, base = self._open()
        with self._named(path), suppress(FileNotFoundError):  # another process may remove it at the same time
            kind = filesystem.get_file_info(f"{base}/{path}").type
            if kind == pafs.FileType.File:
                filesystem.delete_file(f"{base}/{path}")
            elif kind == pafs.FileType.Directory:
                filesystem.delete_dir(f"{base}/{path}")

    def uri(self, path: str) -> str:
        """The name under which another program opens `path`: a local path, or the root's URI with its options."""
        if "://" not in self.root:
            return f"{self._open()[1]}/{path}"
        base, mark, options = self.root.partition("?")
        return f"{base.rstrip('/')}/{path}{mark}{options}"

    def rebuild(self, path: str) -> str:
        """The remedy for a damaged file: what to delete before running again. Bought answers are kept."""
        names, parts = [path], path.split("/")
        if parts[0] == "artifacts" and len(parts) > 3 and parts[3] != "bought":
            folder = "/".join(parts[:3])
            names = [f"{folder}/manifest.json", f"{folder}/runs"] if parts[1] == "peer" else [folder]
        where = shlex.join(map(self.where, names))
        return f"{'rm -r' if self.local else 'delete'} {where}, then run again"

    def read_json(self, path: str, remedy: str | None = None, cut: bool = False) -> Any:
        """A JSON document, or None when it is absent. Raises DamagedError where it is damaged.

        cut: None also where its end is missing, as storage without whole uploads leaves it when a writer fails.
        """
        if not self.exists(path):
            return None
        data = self.read(path)
        try:
            return _parse_json(data)
        except ValueError as error:
            if cut and not data.endswith(b"}\n"):
                return None
            raise DamagedError(f"damaged: {error}", self.where(path), remedy or self.rebuild(path)) from None

    def publish_json(self, path: str, content: Any) -> None:
        """Publish a JSON document with its checksum."""
        self.publish(path, json_text(content).encode())

    def read_table(self, path: str, columns: list[str] | None = None, remedy: str | None = None) -> pa.Table:
        """A Parquet file as a table. Raises StoreError when absent, damaged, or without one of `columns`."""
        filesystem, base = self._open()
        remedy = remedy or self.rebuild(path)
        return parquet.read_parquet(filesystem, f"{base}/{path}", self.where(path), remedy, columns)

    def footer(self, path: str) -> dict[str, Any] | None:
        """Our key in a Parquet footer, or None when the file is absent, cut off, or not ours.

        Raises StoreError when the storage fails: an unreachable part is not an absent one.
        """
        filesystem, base = self._open()
        with self._named(path):
            try:
                with filesystem.open_input_file(f"{base}/{path}") as stream:
                    tail = parquet.read_tail(stream)
            except FileNotFoundError:
                return None
        try:
            return parquet.footer_of(pq.read_metadata(tail))
        except (OSError, ValueError):  # only the bytes in memory are at fault here
            return None

    def buckets(self, wanted: int) -> int:
        """Number of query buckets of the root, fixed by its first run.

        Raises StoreError if the root was made by another format of this project.
        """
        remedy = "delete it and give execution.buckets: as many as files in artifacts/ingest/*/queries"
        content = self.read_json("root.json", remedy, cut=True)
        if content is None:
            self.publish_json("root.json", {"format": FORMAT, "buckets": wanted})
            return wanted
        made_by = content.get("format") if isinstance(content, dict) else None
        if made_by != FORMAT:
            message = f"expected format {FORMAT} of a root, got {made_by}"
            raise StoreError(message, self.where("root.json"), "give another root with --root")
        return int(content["buckets"])


def _scan(top: str, recursive: bool, before: str = "") -> Iterator[tuple[str, int]]:
    """Paths and bytes of the files in a local folder while others write to it: files that vanish are skipped.

    pyarrow's own listing fails if the folder appears while it is being listed.
    """
    try:
        with os.scandir(top or "/") as listing:
            entries = list(listing)
    except FileNotFoundError:
        return
    for entry in entries:
        if entry.is_dir():
            if recursive:
                yield from _scan(entry.path, recursive, f"{before}{entry.name}/")
            continue
        with suppress(FileNotFoundError):
            yield before + entry.name, entry.stat().st_size


def _replace(path: Path, data: bytes | pa.Buffer) -> None:
    """Write `data` next to `path`, flush it to the disk, and replace `path` atomically."""
    path.parent.mkdir(parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with open(scratch, "wb") as stream:
            stream.write(data)
            stream.flush()
            os.fsync(stream.fileno())
        os.replace(scratch, path)
    except OSError:
        scratch.unlink(missing_ok=True)
        raise


def _upload(filesystem: pafs.FileSystem, name: str, data: bytes | pa.Buffer) -> None:
    """Write `data` as one object; object storage shows it when the upload is complete."""
    try:
        stream = filesystem.open_output_stream(name, compression=None)
    except FileNotFoundError:  # a filesystem with real folders
        filesystem.create_dir(name.rpartition("/")[0], recursive=True)
        stream = filesystem.open_output_stream(name, compression=None)
    with stream:
        stream.write(data)


def json_text(content: Any) -> str:
    """`content` as a JSON document whose last key, `checksum`, is a SHA-256 of the others. Equal content, equal bytes.

    Content that is not an object is stored under `content`.
    """
    if not isinstance(content, dict) or CHECKSUM in content or content.keys() == _WRAPPED:
        content = {"content": content}
    return with_checksum(json.dumps(content, sort_keys=True, indent=1, ensure_ascii=False), "\n ")


def with_checksum(text: str, before: str = "\n") -> str:
    """Add the checksum to the text of a JSON object, whatever its layout; `before` precedes the key."""
    content = json.loads(text)
    body = text.rstrip().removesuffix("}").rstrip()
    return f'{body}{"," if content else ""}{before}"{CHECKSUM}": "{_digest(content)}"\n}}\n'


def _parse_json(data: bytes) -> Any:
    """The content of a document, of older versions without a checksum. Raises ValueError if it is damaged."""
    try:
        content = json.loads(data)
        if not isinstance(content, dict) or CHECKSUM not in content:
            return content
        if content.pop(CHECKSUM) != _digest(content):
            raise ValueError("its checksum does not match its content")
    except RecursionError:
        raise ValueError("nested too deeply") from None
    return content["content"] if content.keys() == _WRAPPED else content


def _digest(content: Any) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return hashlib.sha256(canonical.encode()).hexdigest()
