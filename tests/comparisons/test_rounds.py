"""Rounds of an adaptive design: how many pairs each has, and tables that grow by exactly those."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.comparisons import Known, first_round, next_round, pairs_after
from anmi_ray.comparisons.adaptive import error
from anmi_ray.config.compare import CompareConfig
from anmi_ray.core import identity
from anmi_ray.core.records import COMPARISON
from anmi_ray.core.scale import to_elo
from tests.comparisons.made import make_candidates
from tests.comparisons.test_adaptive import drawn


def adaptive(degree: int = 4, rounds: int = 3) -> CompareConfig:
    return CompareConfig(design="adaptive", degree=degree, rounds=rounds)


@given(documents=st.integers(2, 60), degree=st.integers(2, 70), rounds=st.integers(2, 9))
def test_pairs_grow_from_a_cycle_to_the_degree_in_even_parts(documents: int, degree: int, rounds: int) -> None:
    config = adaptive(degree, rounds)
    counts = [pairs_after(documents, config, number) for number in range(rounds)]
    every = documents * (documents - 1) // 2
    assert counts[0] == min(documents, every)
    assert counts[-1] == min(documents * degree // 2, every)
    more = np.diff(counts)
    assert more.min() >= 0
    assert more.max() - more.min() <= 1


def known_of(candidates: pa.Table, seed: int, left_out: frozenset[int] = frozenset()) -> dict[bytes, Known]:
    """Beliefs about every query's documents but those at the places `left_out`; none where fewer than two are left."""
    found = {}
    for query in pc.unique(candidates["query_id"]).to_pylist():
        mine = candidates.filter(pc.equal(candidates["query_id"], pa.scalar(query, pa.binary(16))))
        rated = [doc for place, doc in enumerate(sorted(mine["doc_id"].to_pylist())) if place not in left_out]
        if len(rated) > 1:
            found[query] = Known(identity.id_matrix(identity.id_array(rated)), drawn(len(rated), seed))
    return found


def pairs_of(table: pa.Table) -> list[tuple[bytes, bytes, bytes]]:
    return list(zip(*(table[name].to_pylist() for name in ("query_id", "doc_a", "doc_b")), strict=True))


@given(
    sizes=st.lists(st.integers(2, 9), min_size=1, max_size=4),
    config=st.builds(adaptive, st.integers(2, 10), st.integers(2, 4)),
    left_out=st.frozensets(st.integers(0, 8), max_size=3),
    seed=st.integers(0, 10**6),
)
def test_a_round_keeps_what_was_asked_and_adds_exactly_its_pairs(
    sizes: list[int], config: CompareConfig, left_out: frozenset[int], seed: int
) -> None:
    """Whatever the order of rows and queries; documents without a rating get no pair, nor do queries without any."""
    candidates = make_candidates(sizes, randoms=2)
    retrieved = candidates.filter(pc.equal(candidates["source"], "retrieved"))
    documents = {identity.query_id(f"q{q}"): size for q, size in enumerate(sizes)}
    table, _ = first_round(candidates, config, seed)
    assert Counter(table["query_id"].to_pylist()) == {q: pairs_after(n, config, 0) for q, n in documents.items()}
    random = np.random.default_rng(seed)
    for number in range(1, config.rounds):
        # a rating comes back when its document's questions are asked again
        known = known_of(retrieved, seed + number, left_out if number == 1 else frozenset())
        before, table = table, next_round(table, known, config, number, "thurstone")
        COMPARISON.check(table, "test")
        rows = pairs_of(table)
        assert rows == sorted(set(rows))
        assert table["comparison_id"].to_pylist() == [identity.comparison_id(*row) for row in rows]
        kept = table.filter(pc.is_in(table["comparison_id"], value_set=before["comparison_id"]))
        assert kept.equals(before)
        added = table.filter(pc.equal(table["round"], number))
        assert added.num_rows == table.num_rows - before.num_rows
        assert set(table["design"].to_pylist()) == {"adaptive"}
        have, had, got = (Counter(one["query_id"].to_pylist()) for one in (table, before, added))
        for query, size in documents.items():
            rated = {row.tobytes() for row in known[query].doc_ids} if query in known else set()
            asked = {pair[1:] for pair in pairs_of(before) if pair[0] == query}
            free = len(rated) * (len(rated) - 1) // 2 - sum(set(pair) <= rated for pair in asked)
            assert got[query] == min(free, pairs_after(size, config, number) - had[query])
            assert {doc for pair in pairs_of(added) if pair[0] == query for doc in pair[1:]} <= rated
        if number == config.rounds - 1 and config.rounds > 2:  # what a round could not add, later ones make up for
            assert have == {query: pairs_after(size, config, number) for query, size in documents.items()}
        shuffled = before.take(pa.array(random.permutation(before.num_rows)))
        turned = dict(reversed(known.items()))
        assert next_round(shuffled, turned, config, number, "thurstone").equals(table)


def test_a_query_that_is_known_well_enough_keeps_what_it_has() -> None:
    """It is asked again where less is known of it than was expected."""
    candidates = make_candidates([6, 8])
    before, _ = first_round(candidates, adaptive(), 0)
    known = known_of(candidates, 0)
    wanted = [
        float(to_elo(error(known[identity.query_id(q)].beliefs, "top", "thurstone"), "thurstone")) for q in ("q0", "q1")
    ]
    assert wanted[0] != wanted[1]
    enough = int(wanted[0] > wanted[1])
    config = adaptive().model_copy(update={"target_error": sum(wanted) / 2})
    after = next_round(before, known, config, 1, "thurstone")
    got = Counter(after["query_id"].to_pylist())
    settled = identity.query_id(f"q{enough}")
    assert got[settled] == (6, 8)[enough]
    assert got[identity.query_id(f"q{1 - enough}")] > (6, 8)[1 - enough]
    unsure = replace(known[settled].beliefs, covariance=4.0 * known[settled].beliefs.covariance)
    later = next_round(after, {settled: Known(known[settled].doc_ids, unsure)}, config, 2, "thurstone")
    assert Counter(later["query_id"].to_pylist())[settled] > got[settled]


def test_a_query_of_which_nothing_is_known_keeps_what_it_has() -> None:
    candidates = make_candidates([6, 8])
    before, _ = first_round(candidates, adaptive(), 0)
    known = known_of(candidates, 0)
    known.pop(identity.query_id("q0"))
    after = next_round(before, known, adaptive(), 1, "thurstone")
    assert Counter(after["query_id"].to_pylist()) == {identity.query_id("q0"): 6, identity.query_id("q1"): 8 + 4}
    assert next_round(before, {}, adaptive(), 1, "thurstone").equals(before)
    nothing = COMPARISON.empty()
    assert next_round(nothing, known, adaptive(), 1, "thurstone").num_rows == 0
