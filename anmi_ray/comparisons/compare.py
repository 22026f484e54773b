"""The compare stage for one bucket: candidates in, the pairs to judge out. Random negatives are never compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.comparisons.graph import Edges, k_regular
from anmi_ray.config.compare import CompareConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import COMPARISON, rejects

PLACE = "compare"


def compare(candidates: pa.Table, config: CompareConfig, seed: int) -> tuple[pa.Table, pa.Table]:
    """Comparison table (round 0) of one bucket's Candidates, sorted by (query_id, doc_a, doc_b), and the Rejects.

    Each query's graph is drawn from (seed, query_id) over its documents in order of doc_id, so neither the order of
    candidates nor the bucket matters. A query with fewer than two documents that are not random is a Reject.
    Raises DataError if a query lists a document twice.
    """
    queries = sorted(pc.unique(candidates["query_id"]).to_pylist())
    compared = candidates.filter(pc.not_equal(candidates["source"], "random"))
    query_ids, doc_ids = (identity.id_matrix(compared[name]) for name in ("query_id", "doc_id"))
    order = identity.id_order(query_ids, doc_ids)
    docs: list[bytes] = compared["doc_id"].take(pa.array(order)).to_pylist()
    owners: list[bytes] = compared["query_id"].take(pa.array(order)).to_pylist()
    bounds = _bounds(owners)

    pairs: list[Edges] = []
    asked: list[bytes] = []
    refused: list[tuple[str, str, str]] = []
    for query in queries:
        start, stop = bounds.get(query, (0, 0))
        if stop - start < 2:
            detail = f"{stop - start} candidates that are not random"
            refused.append((query.hex(), "fewer than two documents to compare", detail))
            continue
        if len(set(docs[start:stop])) < stop - start:
            raise DataError(f"query {query.hex()} lists a candidate twice", PLACE, "recompute the retrieve stage")
        edges = k_regular(stop - start, config.degree, identity.rng("compare", config.design, seed, query)) + start
        pairs.append(edges)
        asked.extend([query] * len(edges))
    return _table(asked, docs, pairs, config.design), rejects(PLACE, refused)


def _bounds(owners: list[bytes]) -> dict[bytes, tuple[int, int]]:
    """First and past-last row of every owner in a sorted list."""
    starts = [row for row in range(len(owners)) if row == 0 or owners[row] != owners[row - 1]]
    return {owners[start]: (start, stop) for start, stop in zip(starts, [*starts, len(owners)][1:], strict=True)}


def _table(asked: list[bytes], docs: list[bytes], pairs: list[Edges], design: str) -> pa.Table:
    edges = np.concatenate(pairs) if pairs else np.zeros((0, 2), dtype=np.int64)
    first = [docs[i] for i in edges[:, 0].tolist()]
    second = [docs[i] for i in edges[:, 1].tolist()]
    return rows(asked, first, second, design)


def rows(asked: Sequence[bytes], first: Sequence[bytes], second: Sequence[bytes], design: str) -> pa.Table:
    """Comparison rows (round 0) of the pairs (first[i], second[i]) under query asked[i], the smaller id first."""
    return COMPARISON.table(
        {
            "comparison_id": identity.id_array(map(identity.comparison_id, asked, first, second)),
            "query_id": identity.id_array(asked),
            "doc_a": identity.id_array(first),
            "doc_b": identity.id_array(second),
            "round": np.zeros(len(asked), dtype=np.int32),
            "design": pa.repeat(pa.scalar(design), len(asked)),
        }
    )
