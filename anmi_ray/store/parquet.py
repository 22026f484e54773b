"""Parquet files with a checksum per page and our key in the footer. A damaged file is an error that names it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq

from anmi_ray.core.errors import DamagedError, first_line, from_os_error

_FOOTER = b"anmi"
_TAIL = 1 << 16  # bytes read first from the end of a file: the footer of all but the widest tables


def parquet_bytes(table: pa.Table, footer: Mapping[str, Any], row_group_rows: int | None = None) -> bytes:
    """`table` as one Parquet file in memory, with our footer. Equal input gives equal bytes."""
    raw = json.dumps({**footer, "rows": table.num_rows}, sort_keys=True, separators=(",", ":")).encode()
    table = table.combine_chunks().replace_schema_metadata({_FOOTER: raw})
    sink = io.BytesIO()
    rows = row_group_rows or max(table.num_rows, 1)
    pq.write_table(table, sink, compression="zstd", row_group_size=rows, write_page_checksum=True)
    return sink.getvalue()


def read_tail(stream: pa.NativeFile) -> pa.BufferReader:
    """The end of a file with all of its footer: one read, rarely two."""
    size = stream.size()
    stream.seek(max(size - _TAIL, 0))
    tail = stream.read()
    wanted = int.from_bytes(tail[-8:-4], "little") + 8
    if len(tail) < wanted <= size:
        stream.seek(size - wanted)
        tail = stream.read()
    return pa.BufferReader(tail)


def footer_of(metadata: pq.FileMetaData) -> dict[str, Any] | None:
    """Our key in a footer, or None where it is absent or counts other rows than the file has."""
    try:
        content = json.loads((metadata.metadata or {})[_FOOTER])
    except (ValueError, KeyError):
        return None
    return content if isinstance(content, dict) and content.get("rows") == metadata.num_rows else None


@contextmanager
def decoding(place: str, remedy: str, is_local: bool) -> Iterator[None]:
    """Raise DamagedError for what pyarrow cannot decode inside, StoreError where the storage fails."""
    try:
        yield
    except FileNotFoundError:
        raise DamagedError("no such file or folder", place, remedy) from None
    except OSError as error:
        if error.errno is None and is_local:  # raised by the decoder
            raise DamagedError(f"damaged: {first_line(error)}", place, remedy) from error
        raise from_os_error(error, place) from error
    except (ValueError, pa.ArrowException) as error:
        raise DamagedError(f"damaged: {first_line(error)}", place, remedy) from error


def read_parquet(
    filesystem: pafs.FileSystem, path: str, place: str, remedy: str, columns: list[str] | None = None
) -> pa.Table:
    """Read a file, or some columns, and check pages and the number of rows. Raises StoreError."""
    local = isinstance(filesystem, pafs.LocalFileSystem)
    with decoding(place, remedy, local), filesystem.open_input_file(path) as stream:
        source = stream if columns is not None else pa.BufferReader(stream.read_buffer())
        file = pq.ParquetFile(source, page_checksum_verification=True)
        if missing := set(columns or ()) - set(file.schema_arrow.names):
            raise ValueError(f"it has no column {', '.join(sorted(missing))}")
        table = file.read(columns, use_threads=False)
        is_ours = _FOOTER in (file.metadata.metadata or {})
        if table.num_rows != file.metadata.num_rows or (is_ours and footer_of(file.metadata) is None):
            raise ValueError(f"it holds {table.num_rows} rows, and its footer counts others")
        return table if columns is None else table.select(columns)
