"""Store vectors of texts in a Parquet file, for later runs over the same texts.

N texts, d dimensions.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from anmi_ray.core import identity
from anmi_ray.core.errors import DataError

FILE = "vectors.parquet"
_REMEDY = "delete that folder: the vectors are computed again"


def write(folder: Path, id_N16: NDArray[np.uint8], vector_Nd: NDArray[np.float32], stored: str) -> None:
    """Write the vectors (columns id, vector) as `stored`: float32 or float16."""
    rows, width = vector_Nd.shape
    flat = pa.array(np.ascontiguousarray(vector_Nd.astype(stored)).reshape(-1))
    columns = {"id": identity.id_column(id_N16), "vector": pa.FixedSizeListArray.from_arrays(flat, width)}
    # Numbers rarely repeat, so neither a dictionary nor compression helps.
    pq.write_table(
        pa.table(columns),
        folder / FILE,
        compression="none",
        use_dictionary=False,
        row_group_size=max(rows, 1),
        write_page_checksum=True,
    )


def read(folder: Path, id_N16: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the vectors float32[N, d] of these ids. Raises DataError if the file is damaged or has other ids."""
    try:
        table = pq.read_table(folder / FILE, use_threads=False, page_checksum_verification=True)
    except (OSError, pa.ArrowInvalid) as error:
        raise DataError(f"damaged vectors: {error}", str(folder / FILE), _REMEDY) from error
    if not np.array_equal(identity.id_matrix(table["id"]), id_N16):
        raise DataError("holds the vectors of other texts", str(folder / FILE), _REMEDY)
    width = table.schema.field("vector").type.list_size
    flat = table["vector"].combine_chunks().flatten().to_numpy(zero_copy_only=False)
    return flat.reshape(len(id_N16), width).astype(np.float32, copy=False)
