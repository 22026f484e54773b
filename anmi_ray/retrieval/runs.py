"""Ranked arrays to Run tables: one system's places for the queries of a bucket."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.core.records import RUN

System = tuple[NDArray[np.int64], NDArray[np.float64]]
"""(rank int64[N], score float64[N]) over the same N rows; rank 0 says that the row is not in the ranking."""


def to_run(query_N16: NDArray[np.uint8], doc_N16: NDArray[np.uint8], systems: Mapping[str, System]) -> pa.Table:
    """The Run table of `systems`, sorted by query_id, system and rank; rows of rank 0 are left out."""
    parts = []
    for name, (rank_N, score_N) in systems.items():
        inside = rank_N > 0
        parts.append(
            RUN.table(
                {
                    "query_id": query_N16[inside],
                    "doc_id": doc_N16[inside],
                    "system": pa.array([name] * int(inside.sum()), type=pa.string()),
                    "rank": rank_N[inside],
                    "score": score_N[inside],
                }
            )
        )
    table = pa.concat_tables(parts) if parts else RUN.empty()
    return table.sort_by([("query_id", "ascending"), ("system", "ascending"), ("rank", "ascending")])
