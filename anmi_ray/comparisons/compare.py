"""The compare stage for one bucket: pairs of candidates that are not random negatives, chosen or imported."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.comparisons.graph import regular
from anmi_ray.config.compare import CompareConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import COMPARISON, by_query, find_rows, rejects

PLACE = "compare"
TOO_FEW = "fewer than two documents to compare"
NOT_CANDIDATES = "not a candidate: a document of the pair was not retrieved for the query"
NOT_COMPARED = (
    "its query is not compared: nothing was retrieved for it, or it is a dev query with a label or beyond "
    "corpus.unlabelled_dev"
)
NO_PAIR = "no pair of the file is among its candidates"


def compare(candidates: pa.Table, config: CompareConfig, seed: int) -> tuple[pa.Table, pa.Table]:
    """Return the Comparisons (round 0) of one bucket's Candidates, sorted by (query_id, doc_a, doc_b), and the Rejects.

    Each query's graph is drawn by (seed, query_id) and document ids, so neither the order of candidates nor the bucket
    matters. A query with fewer than two non-random candidates is a Reject.
    Raises DataError if a query lists a document twice.
    """
    documents = {query: sorted(rows["doc_id"].to_pylist()) for query, rows in by_query(retrieved(candidates))}
    asked: list[bytes] = []
    first: list[bytes] = []
    second: list[bytes] = []
    refused: list[tuple[str, str, str]] = []
    for query in sorted(pc.unique(candidates["query_id"]).to_pylist()):
        docs: list[bytes] = documents.get(query, [])
        if len(docs) < 2:
            refused.append((query.hex(), TOO_FEW, f"{len(docs)} non-random candidates"))
            continue
        if len(set(docs)) < len(docs):
            raise DataError(f"query {query.hex()} lists a candidate twice", PLACE, "recompute the retrieve stage")
        ids = identity.id_matrix(identity.id_array(docs))
        edges = regular(ids, config.degree, "compare", config.design, seed, query)
        asked += [query] * len(edges)
        first += [docs[i] for i in edges[:, 0].tolist()]
        second += [docs[i] for i in edges[:, 1].tolist()]
    return rows(asked, first, second, config.design), rejects(PLACE, refused)


def retrieved(candidates: pa.Table) -> pa.Table:
    """Return the Candidates without random negatives."""
    return candidates.filter(pc.not_equal(candidates["source"], "random"))


def extended(before: pa.Table, chosen: Sequence[tuple[bytes, NDArray[np.uint8]]], design: str, round_: int) -> pa.Table:
    """Add chosen (query, pairs of document ids uint8[P, 2, 16]) to Comparisons, sorted by (query_id, doc_a, doc_b)."""
    asked = [query for query, pairs in chosen for _ in pairs]
    first, second = ([pair[end].tobytes() for _, pairs in chosen for pair in pairs] for end in (0, 1))
    table = pa.concat_tables([before, rows(asked, first, second, design, round_)])
    order = identity.id_order(*(identity.id_matrix(table[name]) for name in ("query_id", "doc_a", "doc_b")))
    return COMPARISON.check(table.take(pa.array(order)), PLACE)


def rows(
    asked: Sequence[bytes], first: Sequence[bytes], second: Sequence[bytes], design: str, round_: int = 0
) -> pa.Table:
    """Return Comparisons of documents first[i] and second[i] for query asked[i], the smaller id first."""
    return COMPARISON.table(
        {
            "comparison_id": identity.id_array(map(identity.comparison_id, asked, first, second)),
            "query_id": identity.id_array(asked),
            "doc_a": identity.id_array(first),
            "doc_b": identity.id_array(second),
            "round": np.full(len(asked), round_, dtype=np.int32),
            "design": pa.repeat(pa.scalar(design), len(asked)),
        }
    )


def imported(candidates: pa.Table, preferences: pa.Table) -> tuple[pa.Table, pa.Table, pa.Table]:
    """Return (Comparisons of one bucket sorted by (query_id, comparison_id), unused Imported rows, Rejects of queries).

    Several rows about a pair are one comparison per round. `preferences` are the bucket's Imported rows; a row is
    unused if one of its documents is not a non-random candidate. A query without any comparison is a Reject.
    """
    known = retrieved(candidates)
    sides = [
        find_rows(known, {"query_id": preferences["query_id"], "doc_id": preferences[name]})
        for name in ("doc_a", "doc_b")
    ]
    usable = (sides[0] >= 0) & (sides[1] >= 0)
    used = preferences.filter(pa.array(usable))
    first = np.sort(np.unique(used["comparison_id"].combine_chunks().dictionary_encode().indices, return_index=True)[1])
    pairs = used.take(pa.array(first))
    columns = {name: pairs[name] for name in COMPARISON.schema.names if name != "design"}
    table = COMPARISON.table({**columns, "design": pa.repeat(pa.scalar("imported"), pairs.num_rows)})
    order = identity.id_order(identity.id_matrix(table["query_id"]), identity.id_matrix(table["comparison_id"]))
    asked = pc.unique(table["query_id"])
    queries = pc.unique(candidates["query_id"])
    left = sorted(queries.filter(pc.invert(pc.is_in(queries, value_set=asked))).to_pylist())
    none = rejects(PLACE, [(query.hex(), NO_PAIR, "") for query in left])
    return table.take(pa.array(order)), preferences.filter(pa.array(~usable)), none
