"""Candidates for tests of comparisons."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE


def make_candidates(sizes: list[int], randoms: int = 0) -> pa.Table:
    """Candidates of queries q0, q1, ...: `sizes` retrieved documents each, and `randoms` random ones."""
    rows = [
        (identity.query_id(f"q{q}"), identity.doc_id(f"q{q}d{d}"), "retrieved" if d < size else "random")
        for q, size in enumerate(sizes)
        for d in range(size + randoms)
    ]
    return CANDIDATE.table(
        {
            "query_id": [row[0] for row in rows],
            "doc_id": [row[1] for row in rows],
            "source": [row[2] for row in rows],
            "is_positive": np.zeros(len(rows), dtype=bool),
            "rank": [None] * len(rows),
            "fused_score": [None] * len(rows),
            "retriever_ranks": pa.array([[] for _ in rows], type=pa.map_(pa.string(), pa.int32())),
            "similarity": np.zeros(len(rows)),
        }
    )
