from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE


@pytest.fixture
def make_candidates() -> Callable[..., pa.Table]:
    """Candidates of queries q0, q1, ...: `sizes` retrieved documents each, and `randoms` random ones."""

    def make(sizes: list[int], randoms: int = 0) -> pa.Table:
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

    return make
