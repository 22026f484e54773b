from __future__ import annotations

from collections.abc import Callable
from itertools import combinations

import numpy as np
import pyarrow as pa
import pytest

from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE, COMPARISON


@pytest.fixture
def make_world() -> Callable[..., tuple[pa.Table, pa.Table]]:
    """(candidates, comparisons): `queries` of `documents` each, the first a known positive, every pair compared."""

    def make(queries: int, documents: int, similarity: float | None = None) -> tuple[pa.Table, pa.Table]:
        rng = np.random.default_rng(queries)
        rows: list[tuple[bytes, bytes, bool, float]] = []
        pairs: list[tuple[bytes, bytes, bytes, bytes]] = []
        for q in range(queries):
            query = identity.query_id(f"q{q}")
            docs = [identity.doc_id(f"q{q}d{d}") for d in range(documents)]
            rows += [
                (query, doc, d == 0, float(rng.normal(0.4, 0.1)) if similarity is None else similarity)
                for d, doc in enumerate(docs)
            ]
            pairs += [(identity.comparison_id(query, a, b), query, a, b) for a, b in combinations(sorted(docs), 2)]
        candidates = CANDIDATE.table(
            {
                "query_id": [row[0] for row in rows],
                "doc_id": [row[1] for row in rows],
                "source": ["retrieved"] * len(rows),
                "is_positive": [row[2] for row in rows],
                "rank": [None] * len(rows),
                "fused_score": [None] * len(rows),
                "retriever_ranks": pa.array([[] for _ in rows], type=pa.map_(pa.string(), pa.int32())),
                "similarity": [row[3] for row in rows],
            }
        )
        comparisons = COMPARISON.table(
            {
                "comparison_id": [pair[0] for pair in pairs],
                "query_id": [pair[1] for pair in pairs],
                "doc_a": [pair[2] for pair in pairs],
                "doc_b": [pair[3] for pair in pairs],
                "round": [0] * len(pairs),
                "design": ["test"] * len(pairs),
            }
        )
        return candidates, comparisons

    return make
