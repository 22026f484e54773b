"""Pairs to learn a judge from: queries alike, no document twice, whatever the order in which anything is done."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.comparisons import sample
from anmi_ray.core import identity
from anmi_ray.core.records import COMPARISON, REJECT

SALT = sample.salt_of(0, 0)
BUCKETS = 4
# by query, the numbers of its candidates: few documents, so that queries fight for them
collections = st.lists(st.sets(st.integers(0, 60), max_size=25), min_size=2, max_size=20)


def candidates(documents: list[set[int]], randoms: int = 0) -> pa.Table:
    rows = [(q, d, "retrieved") for q, docs in enumerate(documents) for d in sorted(docs)]
    rows += [(q, 1000 + d, "random") for q in range(len(documents)) for d in range(randoms)]
    return pa.table(
        {
            "query_id": identity.id_array(identity.query_id(f"q{q}") for q, _, _ in rows),
            "doc_id": identity.id_array(identity.doc_id(f"d{d}") for _, d, _ in rows),
            "source": pa.array([source for _, _, source in rows], pa.string()),
        }
    )


def drawn(table: pa.Table, pairs: int, salt: sample.Salt = SALT, buckets: int = BUCKETS) -> sample.Drawn:
    """The sample as tasks of so many buckets draw it."""
    of = np.array([query[0] % buckets for query in table["query_id"].to_pylist()], dtype=np.int64)
    parts = [table.filter(pa.array(of == bucket)) for bucket in range(buckets)]
    known, total = [], 0
    for bucket, part in enumerate(parts):
        found, _ = sample.queries(part, salt)
        total += found.num_rows
        known.append(found.append_column("bucket", pa.array([bucket] * found.num_rows, pa.int64())))

    def ask(wanted: pa.Table) -> pa.Table:
        mine = (wanted.filter(pc.equal(wanted["bucket"], bucket)) for bucket in reversed(range(buckets)))
        return pa.concat_tables(
            sample.propose(part, rows, salt) for part, rows in zip(reversed(parts), mine, strict=True)
        )

    return sample.draw(sample.first(known, pairs), total, pairs, ask)


def counts(found: sample.Drawn) -> Counter[bytes]:
    return Counter(found.pairs["query_id"].to_pylist())


@given(collections, st.integers(1, 60))
def test_no_document_is_in_two_pairs_and_every_pair_is_of_candidates(documents: list[set[int]], pairs: int) -> None:
    table = candidates(documents, randoms=3)
    if sample.queries(table, SALT)[0].num_rows == 0:
        return
    found = drawn(table, pairs)
    COMPARISON.check(found.pairs.select(COMPARISON.schema.names), "test")
    docs = found.pairs["doc_a"].to_pylist() + found.pairs["doc_b"].to_pylist()
    assert len(set(docs)) == len(docs)
    retrieved = table.filter(pc.equal(table["source"], "retrieved"))
    allowed = set(zip(retrieved["query_id"].to_pylist(), retrieved["doc_id"].to_pylist(), strict=True))
    for row in found.pairs.to_pylist():
        assert {(row["query_id"], row["doc_a"]), (row["query_id"], row["doc_b"])} <= allowed
        assert row["comparison_id"] == identity.comparison_id(row["query_id"], row["doc_a"], row["doc_b"])
        assert row["design"] == "sample"
    missing = sum(found.dry["missing"].to_pylist())
    assert found.pairs.num_rows + missing == pairs
    assert sample.dry_rejects(found.dry).num_rows == missing


@given(collections, st.integers(1, 60))
def test_queries_get_alike_unless_they_run_dry(documents: list[set[int]], pairs: int) -> None:
    table = candidates(documents)
    total = sample.queries(table, SALT)[0].num_rows
    if total == 0:
        return
    found = drawn(table, pairs)
    have = counts(found)
    docs = set(found.pairs["doc_a"].to_pylist()) | set(found.pairs["doc_b"].to_pylist())
    free: dict[bytes, int] = Counter(row["query_id"] for row in table.to_pylist() if row["doc_id"] not in docs)
    able = [query for query, left in free.items() if left >= 2]  # could still take a pair
    most = max(have.values(), default=0)
    assert all(have[query] >= most - 1 for query in able)
    if found.dry.num_rows:
        assert not able, "pairs are missing though a query could take more"


@given(st.integers(2, 12), st.integers(1, 40), st.integers(0, 5))
def test_where_documents_are_plenty_shares_differ_by_one_at_most(queries: int, pairs: int, seed: int) -> None:
    documents = [set(range(100 * q, 100 * q + 90)) for q in range(queries)]
    have = counts(drawn(candidates(documents), pairs, sample.salt_of(seed, 0)))
    shares = [have[identity.query_id(f"q{q}")] for q in range(queries)]
    assert sum(shares) == pairs
    assert max(shares) - min(shares) <= 1


@given(collections, st.integers(1, 60), st.randoms(use_true_random=False))
def test_neither_order_nor_buckets_matter(documents: list[set[int]], pairs: int, random: object) -> None:
    table = candidates(documents)
    if sample.queries(table, SALT)[0].num_rows == 0:
        return
    rows = list(range(table.num_rows))
    random.shuffle(rows)  # type: ignore[attr-defined]
    one, other = drawn(table, pairs), drawn(table.take(pa.array(rows, pa.int64())), pairs, buckets=1)
    names = COMPARISON.schema.names
    assert one.pairs.select(names).equals(other.pairs.select(names))
    assert one.dry.select(["query_id", "missing"]).equals(other.dry.select(["query_id", "missing"]))


def test_either_seed_draws_other_pairs() -> None:
    table = candidates([set(range(40 * q, 40 * q + 40)) for q in range(8)])
    found = [
        set(drawn(table, 24, sample.salt_of(*seeds)).pairs["comparison_id"].to_pylist())
        for seeds in ((0, 0), (1, 0), (0, 1), (1, 1))
    ]
    assert all(one != other for place, one in enumerate(found) for other in found[:place])


def test_fewer_pairs_than_queries_are_of_those_with_the_smallest_hash() -> None:
    table = candidates([set(range(10 * q, 10 * q + 10)) for q in range(30)])
    few, more = counts(drawn(table, 5)), counts(drawn(table, 12))
    assert set(few.values()) == set(more.values()) == {1}
    assert set(few) < set(more)


def test_a_query_that_runs_dry_gives_its_share_to_the_others() -> None:
    table = candidates([{0, 1}, set(range(100, 160)), set(range(200, 260))])
    found = drawn(table, 12)
    have = counts(found)
    assert found.dry.num_rows == 0
    assert have[identity.query_id("q0")] == 1
    assert {have[identity.query_id(f"q{q}")] for q in (1, 2)} == {5, 6}


def test_what_nobody_can_take_is_missing() -> None:
    shared = set(range(10))  # five pairs, whoever takes them
    found = drawn(candidates([shared, shared, shared]), 9)
    assert found.pairs.num_rows == 5
    assert sum(found.dry["missing"].to_pylist()) == 4
    REJECT.check(sample.dry_rejects(found.dry), "test")


def test_a_query_without_two_documents_is_a_reject() -> None:
    known, refused = sample.queries(candidates([{1}, set(), {2, 3}], randoms=4), SALT)
    assert known["query_id"].to_pylist() == [identity.query_id("q2")]
    rows = {row["key"]: row["detail"] for row in refused.to_pylist()}
    details = ("1 non-random candidates", "0 non-random candidates")
    assert rows == {identity.query_id(f"q{q}").hex(): detail for q, detail in enumerate(details)}


def test_golden_sample() -> None:
    """Changes when the same settings draw other pairs: then the sample stage needs a new version."""
    table = candidates([set(range(5 * q, 5 * q + 12)) for q in range(9)])
    ids = drawn(table, 20).pairs["comparison_id"].to_pylist()
    assert identity.digest("golden", *ids).hex() == "d1138767572ce904b6bea758cf69061f"
