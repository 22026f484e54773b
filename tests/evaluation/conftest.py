"""Makers of small Run and Qrel tables from readable names."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from anmi_ray.core import identity
from anmi_ray.core.records import QREL, RUN


def make_run(system: str, rankings: Mapping[str, Sequence[tuple[str, float]]]) -> pa.Table:
    """A Run of {query: [(document, score), ...] best first}."""
    rows = [
        (identity.query_id(q), identity.doc_id(d), system, rank, float(score))
        for q, ranking in rankings.items()
        for rank, (d, score) in enumerate(ranking, 1)
    ]
    return RUN.check(RUN.table({name: [row[i] for row in rows] for i, name in enumerate(RUN.schema.names)}), "test")


def make_qrels(grades: Mapping[str, Mapping[str, int]]) -> pa.Table:
    """Qrels of {query: {document: grade}}."""
    rows = [(identity.query_id(q), identity.doc_id(d), g) for q, docs in grades.items() for d, g in docs.items()]
    return QREL.check(QREL.table({name: [row[i] for row in rows] for i, name in enumerate(QREL.schema.names)}), "test")


def order(run: pa.Table) -> dict[bytes, list[bytes]]:
    """{query: documents in rank order}."""
    ranked: dict[bytes, list[bytes]] = {}
    for row in run.sort_by([("query_id", "ascending"), ("rank", "ascending")]).to_pylist():
        ranked.setdefault(row["query_id"], []).append(row["doc_id"])
    return ranked
