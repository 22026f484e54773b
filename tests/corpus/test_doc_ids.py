"""A set of ids that grows, against Python's."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.corpus import ids as id_sets
from anmi_ray.corpus.ids import SeenIds

ids = st.binary(min_size=1, max_size=1).map(lambda last: last.rjust(16, b"\0")) | st.binary(min_size=16, max_size=16)


@given(st.lists(st.lists(ids, max_size=9), max_size=12), st.integers(1, 7))
def test_as_a_set(batches: list[list[bytes]], recent: int) -> None:
    found, known = SeenIds(), set[bytes]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(id_sets, "_RECENT", recent)
        for batch in batches:
            expected = []
            for identifier in batch:
                expected.append(identifier not in known)
                known.add(identifier)
            assert found.add(batch) == expected
        assert all(identifier in found for identifier in known)
        assert bytes(range(16)) not in found or bytes(range(16)) in known


def test_ids_that_end_in_zeros_differ(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(id_sets, "_RECENT", 1)
    found = SeenIds()
    found.add([b"a".ljust(16, b"\0")])
    assert b"a".ljust(16, b"\0") in found
    assert b"a\0b".ljust(16, b"\0") not in found


def test_memory_of_a_million_is_sixteen_megabytes() -> None:
    found = SeenIds()
    for start in range(0, 1_000_000, 10_000):
        found.add([number.to_bytes(16, "little") for number in range(start, start + 10_000)])
    arrays = sum(array.nbytes for array in found._sorted)
    assert arrays + 16 * len(found._recent) == 16_000_000
    assert len(found._sorted) < 12
