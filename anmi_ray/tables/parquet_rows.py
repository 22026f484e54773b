"""Read Parquet from any writer in bounded memory: a small file may unpack to more than any machine has.

Texts are read as dictionaries, so repeated values are held once, and decoded a part at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from anmi_ray.core.errors import DataError
from anmi_ray.tables.rows import is_text

_BUFFER = 1 << 22  # bytes of a column that are read at once
_DECODED = 1 << 26  # bytes of a batch's texts; a row alone may have more
# A column of a row group that is larger, and packed far more than text is, may be one page, unpacked whole.
_LARGE = 1 << 28
_PACKED = 100


@contextmanager
def opened(source: Any, place: str) -> Iterator[pq.ParquetFile]:
    """Open a file by path or seekable stream. Raises DataError if a column unpacks to an excessive size."""
    metadata = pq.read_metadata(source)
    for group in range(metadata.num_row_groups):
        for at in range(metadata.num_columns):
            column = metadata.row_group(group).column(at)
            size = column.total_uncompressed_size
            if size > max(_LARGE, _PACKED * column.total_compressed_size):
                message = f"its column {column.path_in_schema} unpacks to {size / 1e6:,.0f} MB in one row group"
                message += f", over {_PACKED} times what is stored"
                raise DataError(message, place, "write it without compression if that is correct")
    schema = metadata.schema.to_arrow_schema()
    texts = [field.name for field in schema if is_text(field.type)]
    with pq.ParquetFile(
        source, metadata=metadata, read_dictionary=texts, pre_buffer=False, buffer_size=_BUFFER
    ) as file:
        yield file


def batches(file: pq.ParquetFile, columns: Sequence[str], most: int) -> Iterator[pa.RecordBatch]:
    """Yield at most `most` rows at a time, with at most 64 MiB of decoded texts unless one row has more."""
    for batch in file.iter_batches(most, columns=list(columns)):
        size_N = sum((_sizes(column) for column in batch.columns), np.zeros(batch.num_rows, np.int64))
        part_N = np.cumsum(size_N) // _DECODED
        starts = np.flatnonzero(np.diff(part_N, prepend=-1))
        for start, end in zip(starts, np.append(starts[1:], batch.num_rows), strict=True):
            part = batch.slice(start, end - start)
            columns = [
                column.dictionary_decode() if pa.types.is_dictionary(column.type) else column for column in part.columns
            ]
            yield pa.record_batch(columns, names=part.schema.names)


def _sizes(column: pa.Array) -> np.ndarray:
    """Return the bytes of each of N texts, int64[N]; 0 for other values."""
    if not (pa.types.is_dictionary(column.type) and is_text(column.type.value_type)):
        return np.zeros(len(column), np.int64)
    size = pc.binary_length(column.dictionary).take(column.indices)
    return pc.fill_null(size, 0).to_numpy(zero_copy_only=False).astype(np.int64)
