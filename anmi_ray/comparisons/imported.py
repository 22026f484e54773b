"""Comparisons imported from a user's file: pairs of which both documents are candidates of the query."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.comparisons.compare import retrieved
from anmi_ray.core import identity
from anmi_ray.core.records import COMPARISON, find_rows, rejects

DESIGN = "imported"
NOT_CANDIDATES = "not a candidate: a document of the pair was not retrieved for the query"
NOT_COMPARED = (
    "its query is not compared: nothing was retrieved for it, or it is a dev query with a label or beyond "
    "corpus.unlabelled_dev"
)
NO_PAIR = "no pair of the file is among its candidates"


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
    table = COMPARISON.table({**columns, "design": pa.repeat(pa.scalar(DESIGN), pairs.num_rows)})
    order = identity.id_order(identity.id_matrix(table["query_id"]), identity.id_matrix(table["comparison_id"]))
    asked = pc.unique(table["query_id"])
    queries = pc.unique(candidates["query_id"])
    left = sorted(queries.filter(pc.invert(pc.is_in(queries, value_set=asked))).to_pylist())
    none = rejects("compare", [(query.hex(), NO_PAIR, "") for query in left])
    return table.take(pa.array(order)), preferences.filter(pa.array(~usable)), none
