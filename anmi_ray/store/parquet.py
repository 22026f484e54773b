"""Parquet files that tell a changed bit: hashes of their pages and of their footer, between the two.

    PAR1 | pages | MARK, SHA-256 of the pages, SHA-256 of that hash and all behind it | footer | its length | PAR1

Every reader of Parquet passes over these 72 bytes: it finds pages by their place, and the footer from the end. Files of
versions before these have none, and stand by the checksums of their pages and the counts of rows.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from anmi_ray.core.errors import DamagedError, from_os_error

_FOOTER = b"anmi"
_MARK = b"anmiseal"
_HASH = 32
_SEAL = len(_MARK) + 2 * _HASH
_TAIL = 1 << 16  # read first from the end of a part: holds the footer of all but the widest files
_BLOCK = 1 << 22
REMEDY = "delete it and run again: its stage makes it anew"


def parquet_bytes(table: pa.Table, footer: Mapping[str, Any], row_group_rows: int | None = None) -> bytes:
    """`table` as one Parquet file in memory, with our footer. Equal input gives equal bytes."""
    raw = json.dumps({**footer, "rows": table.num_rows}, sort_keys=True, separators=(",", ":")).encode()
    table = table.combine_chunks().replace_schema_metadata({_FOOTER: raw})
    sink = io.BytesIO()
    rows = row_group_rows or max(table.num_rows, 1)
    pq.write_table(table, sink, compression="zstd", row_group_size=rows, write_page_checksum=True)
    data = sink.getvalue()
    start = _footer_start(data, len(data))
    return data[:start] + _seal(hashlib.sha256(data[:start]).digest(), data[start:]) + data[start:]


def seal_file(file: Path) -> None:
    """Give a local Parquet file its hashes, a block at a time."""
    with file.open("r+b") as stream:
        size = stream.seek(0, os.SEEK_END)
        stream.seek(size - 8)
        start = _footer_start(stream.read(), size)
        stream.seek(0)
        pages = _hashed(stream, start)
        end = stream.read()
        stream.seek(start)
        stream.write(_seal(pages, end) + end)


@dataclass(frozen=True)
class Tail:
    """The end of a Parquet file, looked at. `pages`: the hash of all before `start`, None where the file bears none."""

    metadata: pq.FileMetaData
    pages: bytes | None
    start: int

    @property
    def ours(self) -> dict[str, Any] | None:
        """Our key in the footer, or None where it is not there or counts other rows than the file has."""
        try:
            content = json.loads((self.metadata.metadata or {})[_FOOTER])
        except (ValueError, KeyError):
            return None
        return content if isinstance(content, dict) and content.get("rows") == self.metadata.num_rows else None


def end_of(stream: pa.NativeFile) -> tuple[bytes, int]:
    """The last bytes of a file, those of its footer and its hashes among them, and its size: one read, rarely two."""
    size = stream.size()
    stream.seek(max(size - _TAIL, 0))
    tail = stream.read()
    wanted = size - _footer_start(tail, size) + _SEAL
    if len(tail) < wanted <= size:
        stream.seek(size - wanted)
        tail = stream.read()
    return tail, size


def look(tail: bytes, size: int) -> Tail:
    """What `end_of` read of a file. Raises ValueError or OSError where it is damaged or no Parquet."""
    start = _footer_start(tail, len(tail))
    seal, end = tail[max(start - _SEAL, 0) : max(start, 0)], tail[max(start, 0) :]
    pages = seal[len(_MARK) : -_HASH]
    fits = len(seal) == _SEAL and _seal(pages, end)[-_HASH:] == seal[-_HASH:]
    if not fits and seal.startswith(_MARK):
        raise ValueError("its footer is not what was written")
    metadata = pq.read_metadata(pa.BufferReader(b"PAR1" + end))
    return Tail(metadata, pages if fits else None, size - len(end) - _SEAL)


def read_parquet(
    filesystem: pafs.FileSystem, path: str, place: str, columns: list[str] | None = None, remedy: str = REMEDY
) -> pa.Table:
    """A Parquet file as a table, with the rows that its footer counts.

    Read whole, its bytes are those that were written; of `columns` the pages' checksums are looked at. Raises
    StoreError when absent, damaged, or without one of `columns`.
    """
    try:
        with filesystem.open_input_file(path) as stream:
            return _table(stream, columns)
    except FileNotFoundError:
        raise gone(place) from None
    except OSError as error:
        if error.errno is None and isinstance(filesystem, pafs.LocalFileSystem):  # the decoder's, not the disk's
            raise DamagedError(f"damaged: {_line(error)}", place, remedy) from error
        raise from_os_error(error, place) from error
    except (ValueError, pa.ArrowException) as error:  # ArrowInvalid is both, damaged text the first alone
        raise DamagedError(f"not the Parquet file that was written: {_line(error)}", place, remedy) from error


def gone(place: str) -> DamagedError:
    """The error of a file that is not there."""
    return DamagedError("no such file or folder", place, "run again: its stage makes it anew")


def _table(stream: pa.NativeFile, columns: list[str] | None) -> pa.Table:
    source = stream if columns is not None else pa.BufferReader(stream.read_buffer())
    tail = look(*end_of(source))
    if columns is None and tail.pages is not None:
        source.seek(0)
        if _hashed(source, tail.start) != tail.pages:
            raise ValueError("its pages are not what was written")
    source.seek(0)
    file = pq.ParquetFile(source, metadata=tail.metadata, page_checksum_verification=True)
    missing = [name for name in columns or () if name not in file.schema_arrow.names]
    if missing:
        raise ValueError(f"it has no column {', '.join(missing)}")
    table = file.read(columns, use_threads=False)
    counted = tail.ours is not None or _FOOTER not in (tail.metadata.metadata or {})
    if not counted or table.num_rows != tail.metadata.num_rows:
        raise ValueError(f"it holds {table.num_rows} rows, and its footer counts others")
    return table if columns is None else table.select(columns)


def verify(stream: pa.NativeFile) -> Tail:
    """Look at every byte of a file, in bounded memory. Raises ValueError, OSError or ArrowException where damaged."""
    tail = look(*end_of(stream))
    stream.seek(0)
    if tail.pages is not None:
        if _hashed(stream, tail.start) != tail.pages:
            raise ValueError("its pages are not what was written")
        return tail
    file = pq.ParquetFile(stream, metadata=tail.metadata, page_checksum_verification=True)
    rows = sum(batch.num_rows for batch in _batches(file))
    if rows != tail.metadata.num_rows:
        raise ValueError(f"it holds {rows} rows, and its footer counts {tail.metadata.num_rows}")
    return tail


def _batches(file: pq.ParquetFile) -> Iterator[pa.RecordBatch]:
    return file.iter_batches(batch_size=1 << 14, use_threads=False)


def _footer_start(tail: bytes, size: int) -> int:
    """Where the footer of a file of `size` bytes begins, by its end."""
    return size - 8 - int.from_bytes(tail[-8:-4], "little")


def _seal(pages: bytes, end: bytes) -> bytes:
    return _MARK + pages + hashlib.sha256(pages + end).digest()


def _hashed(stream: Any, size: int) -> bytes:
    """SHA-256 of the next `size` bytes."""
    hashed = hashlib.sha256()
    while size > 0 and (block := stream.read(min(size, _BLOCK))):
        hashed.update(block)
        size -= len(block)
    return hashed.digest()


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:300]
