"""Ordering and joining by ids, which every domain package builds on."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core import identity
from anmi_ray.core.records import find_rows

# few distinct bytes, so that ids share prefixes, words and whole halves
ids = st.lists(st.integers(0, 2), min_size=16, max_size=16).map(bytes)


@given(st.lists(st.tuples(ids, ids), max_size=30))
@settings(max_examples=100, deadline=None)
def test_id_order_is_the_order_of_bytes(rows: list[tuple[bytes, bytes]]) -> None:
    columns = [identity.id_matrix(identity.id_array(row[i] for row in rows)) for i in (0, 1)]
    order = identity.id_order(*columns).tolist()
    assert order == sorted(range(len(rows)), key=lambda i: (*rows[i], i))


@given(st.sets(st.tuples(ids, ids), max_size=30), st.lists(st.tuples(ids, ids), max_size=10))
@settings(max_examples=100, deadline=None)
def test_find_rows_joins_on_both_columns(held: set[tuple[bytes, bytes]], others: list[tuple[bytes, bytes]]) -> None:
    rows = sorted(held, reverse=True)
    table = pa.table({"q": identity.id_array(row[0] for row in rows), "d": identity.id_array(row[1] for row in rows)})
    wanted = [*others, *rows[::2]]
    keys = {name: identity.id_array(row[i] for row in wanted) for i, name in enumerate(("q", "d"))}
    expected = [rows.index(key) if key in held else -1 for key in wanted]
    assert find_rows(table, keys).tolist() == expected


def test_find_rows_needs_a_key() -> None:
    doubled = identity.id_array([bytes(16), bytes(16)])
    with pytest.raises(AssertionError, match="not a key"):
        find_rows(pa.table({"q": doubled}), {"q": doubled})


def test_mix_depends_on_the_order_of_columns() -> None:
    a, b = (identity.id_matrix(identity.id_array([identity.doc_id(name)])) for name in "ab")
    assert len({int(identity.mix(*columns)[0]) for columns in ((a, b), (b, a), (a,), (b,))}) == 4
    assert identity.mix(np.zeros((0, 16), dtype=np.uint8)).shape == (0,)
