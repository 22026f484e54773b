"""The documents that judges are asked about one by one: whether they answer the query, so that they may anchor it."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import identity
from anmi_ray.mining.borderline import comparisons_of

DESIGN = "confirmation"


def shortlist(gaps: pa.Table) -> pa.Table:
    """Comparisons with nothing of one bucket, sorted by (query_id, doc_a): all anchors of Gaps but known positives.

    They are the top-rated documents of queries without a known positive.
    """
    pairs = ["query_id", "anchor_id"]
    found = gaps.filter(pc.equal(gaps["anchor_kind"], "top-rated")).select(pairs).group_by(pairs).aggregate([])
    found = found.take(pa.array(identity.id_order(*(identity.id_matrix(found[name]) for name in pairs))))
    nothing = pa.repeat(pa.scalar(identity.NOTHING, identity.ID), found.num_rows)
    return comparisons_of(
        pa.table({"query_id": found["query_id"], "doc_a": found["anchor_id"], "doc_b": nothing}), DESIGN
    )
