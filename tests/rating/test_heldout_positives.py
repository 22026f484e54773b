from __future__ import annotations

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core import identity
from anmi_ray.rating import hide_positives


def candidates(positives: list[int], others: int = 2) -> pa.Table:
    """Query q has `positives[q]` known positives and some other documents."""
    rows = [(q, d, d < count) for q, count in enumerate(positives) for d in range(count + others)]
    return pa.table(
        {
            "query_id": identity.id_array(identity.query_id(f"q{q}") for q, _, _ in rows),
            "doc_id": identity.id_array(identity.doc_id(f"q{q}d{d}") for q, d, _ in rows),
            "is_positive": [positive for _, _, positive in rows],
        }
    )


def known(table: pa.Table) -> set[tuple[bytes, bytes]]:
    return {(row["query_id"], row["doc_id"]) for row in table.to_pylist() if row["is_positive"]}


def test_half_are_hidden_and_one_stays() -> None:
    table = candidates([0, 1, 2, 3, 10])
    left = hide_positives(table, 0.5)
    count = {identity.query_id(f"q{q}"): 0 for q in range(5)}
    for query, _ in known(left):
        count[query] += 1
    assert list(count.values()) == [0, 1, 1, 2, 5]
    assert known(left) < known(table)
    assert left.drop_columns("is_positive").equals(table.drop_columns("is_positive"))
    assert hide_positives(table, 0.0) is table


@given(st.lists(st.integers(0, 6), max_size=6), st.floats(0, 0.99), st.integers(0, 99))
@settings(max_examples=40, deadline=None)
def test_neither_order_nor_company_matters(positives: list[int], share: float, seed: int) -> None:
    table = candidates(positives)
    whole = known(hide_positives(table, share))
    shuffled = table.take(pa.array(np.random.default_rng(seed).permutation(table.num_rows), type=pa.int64()))
    assert known(hide_positives(shuffled, share)) == whole
    for q, count in enumerate(positives):
        mine = identity.query_id(f"q{q}")
        rows = pa.array([row == mine for row in table["query_id"].to_pylist()], type=pa.bool_())
        alone = known(hide_positives(table.filter(rows), share))
        assert alone == {pair for pair in whole if pair[0] == mine}
        assert len(alone) >= min(count, 1)
