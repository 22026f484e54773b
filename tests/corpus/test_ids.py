"""Sets of ids against Python's, and unknown ids: reported, and explained by how they may have been changed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.core.errors import DataError
from anmi_ray.corpus import ids as id_sets
from anmi_ray.corpus.counts import examples
from anmi_ray.corpus.ids import SeenIds, likely_change
from tests.corpus.layouts import SMALL, Write, read, write_beir, write_trec


@pytest.mark.parametrize(
    ("unknown", "known", "change"),
    [
        (["D0", "D1"], ["d0", "e0", "d1"], "upper or lower case"),
        (["1", "2"], ["001", "002", "003"], "leading zeros"),
        (["007", "008"], ["7", "8"], "leading zeros"),
        (["1.0", "2.0"], ["1", "2"], "an ending .0"),
        (["1", "2"], ["doc-1", "doc-2"], "a prefix"),
        (["MED-10", "MED-14"], ["10", "14"], "a prefix"),
        (["d12", "d13"], ["12", "13"], "a prefix of letters"),
        (["a.txt", "b.txt"], ["a", "b"], "a suffix"),
        (["d1#0", "d1#1"], ["d1", "d2"], "a suffix"),
        (['"a"', '"b"'], ["a", "b"], "quotation marks"),
        (["a%20b", "c%20d"], ["a b", "c d"], "percent encoding"),
        (["x", "y"], ["a", "b"], ""),
        (["x-1", "x-2"], ["y-1", "y-2"], ""),
        (["A", "x", "y", "z"], ["a"], ""),
        ([], ["a"], ""),
    ],
)
def test_the_change_that_explains_most_ids(unknown: list[str], known: list[str], change: str) -> None:
    said = likely_change(unknown, known)
    assert said.endswith(change)
    assert bool(said) == bool(change)


@pytest.mark.parametrize("write", [write_beir, write_trec])
def test_grades_of_unknown_documents_and_queries_are_left_out_and_counted(tmp_path: Path, write: Write) -> None:
    judged = {**SMALL.qrels, "test": [*SMALL.qrels["test"], ("q8", "ghost", 1), ("q99", "d1", 1)]}
    found = read(write(tmp_path, replace(SMALL, qrels=judged)), max_reject_fraction=0.0)
    assert found.qrels.num_rows == 12
    assert {row["key"]: row["reason"] for row in found.rejects.to_pylist()} == {
        "q8 ghost": "unknown document",
        "q99 d1": "unknown query",
    }
    assert len(examples(found.rejects)) == 2


@pytest.mark.parametrize("kind", ["queries", "documents"])
def test_grades_of_which_half_are_unknown_are_an_error_with_the_likely_change(tmp_path: Path, kind: str) -> None:
    at = ("queries", "documents").index(kind)
    judged = {
        split: [(query.upper(), doc, grade) if at == 0 else (query, doc.upper(), grade) for query, doc, grade in rows]
        for split, rows in SMALL.qrels.items()
    }
    settings = write_beir(tmp_path, replace(SMALL, qrels=judged))
    with pytest.raises(DataError, match=rf"12 of 12 grades are about {kind} .*upper or lower case"):
        read(settings, max_reject_fraction=0.01)
    assert read(settings).qrels.num_rows == 0


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
