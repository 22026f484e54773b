"""Withhold some known positives from rating and mining, to check whether they end up among the negatives.

A hidden positive is a false negative whose truth is known: its share among the mined says whether the estimated rate
of false negatives can be believed on a collection with labels.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import identity


def hide_positives(candidates: pa.Table, share: float) -> pa.Table:
    """Candidates with `is_positive` unset for `share` of every query's known positives (rounded down, one stays).

    A share of 1 hides them all.

    Which ones follows from a hash of query and document: neither order nor buckets matter.
    """
    rows = np.flatnonzero(candidates["is_positive"].to_numpy())
    if share <= 0 or not len(rows):
        return candidates
    query_ids, doc_ids = (identity.id_matrix(candidates[name])[rows] for name in ("query_id", "doc_id"))
    query = pc.dictionary_encode(identity.id_column(query_ids)).indices.to_numpy().astype(np.int64)
    order = np.lexsort((identity.uniforms(query_ids ^ doc_ids, "rate", "hide"), query))
    count = np.bincount(query)
    place = np.arange(len(rows)) - (np.cumsum(count) - count)[query[order]]
    most = count if share == 1 else count - 1
    hidden = order[place < np.minimum(np.floor(share * count), most)[query[order]]]
    known = candidates["is_positive"].to_numpy().copy()
    known[rows[hidden]] = False
    at = candidates.schema.get_field_index("is_positive")
    return candidates.set_column(at, candidates.schema.field(at), pa.array(known))
