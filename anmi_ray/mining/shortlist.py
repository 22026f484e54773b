"""The documents that judges are asked about one by one: whether they answer the query, so that they may anchor it."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import identity
from anmi_ray.core.arrays import Reals, rank_within
from anmi_ray.core.records import find_rows
from anmi_ray.mining.borderline import comparisons_of

DESIGN = "confirmation"
ASKED = 4  # documents of a query: a fifth one is its relevant document once in thirty queries


def shortlist(gaps: pa.Table, documents: pa.Table, score: Reals) -> pa.Table:
    """Comparisons with nothing of one bucket, sorted by (query_id, doc_a): of queries without a known positive.

    Of the anchors that their Gaps have, the top-rated documents, the ASKED of largest `score`, float64[N] of the N rows
    (query_id, doc_id) of `documents`; of equal scores those of smaller ids.
    """
    pairs = ["query_id", "anchor_id"]
    found = gaps.filter(pc.equal(gaps["anchor_kind"], "top-rated")).select(pairs).group_by(pairs).aggregate([])
    found = found.take(pa.array(identity.id_order(*(identity.id_matrix(found[name]) for name in pairs))))
    row = find_rows(documents, {"query_id": found["query_id"], "doc_id": found["anchor_id"]})
    query = pc.dictionary_encode(found["query_id"].combine_chunks()).indices.to_numpy().astype(np.int64)
    found = found.filter(pa.array(rank_within(query, -score[row]) < ASKED))
    nothing = pa.repeat(pa.scalar(identity.NOTHING, identity.ID), found.num_rows)
    return comparisons_of(
        pa.table({"query_id": found["query_id"], "doc_a": found["anchor_id"], "doc_b": nothing}), DESIGN
    )
