"""Stage 4: which borderline documents are asked about, and what their judgments settle."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.records import COMPARISON
from anmi_ray.mining import RuleInputs, borderline, mine, pooled, verdicts
from tests.mining.world import Query, doc_id, make_tables

Pair = tuple[int, int]
CONFIG = MineConfig.model_validate({"rule": "validated", "random_negatives": 0, "rated_extra": 0})


def compared(pairs: list[tuple[int, int, int]], again: int = 0) -> pa.Table:
    """Comparisons of (query, document, document)."""
    rows = [(identity.query_id(f"q{q}"), *sorted((doc_id(q, i), doc_id(q, j)))) for q, i, j in pairs]
    return COMPARISON.table(
        {
            "comparison_id": [identity.comparison_id(query, a, b, again) for query, a, b in rows],
            "query_id": [row[0] for row in rows],
            "doc_a": [row[1] for row in rows],
            "doc_b": [row[2] for row in rows],
            "round": [again] * len(rows),
            "design": ["test"] * len(rows),
        }
    )


def named(table: pa.Table, query: int = 0, size: int = 20) -> set[frozenset[int]]:
    """The pairs of a query by number."""
    number = {doc_id(query, d): d for d in range(size)}
    rows = table.filter(pc.equal(table["query_id"], pa.scalar(identity.query_id(f"q{query}"), identity.ID)))
    return {
        frozenset((number[a], number[b]))
        for a, b in zip(rows["doc_a"].to_pylist(), rows["doc_b"].to_pylist(), strict=True)
    }


def find(tables: Any, comparisons: pa.Table, config: MineConfig = CONFIG) -> Any:
    found = borderline(tables.ratings, tables.gaps, tables.candidates, comparisons, config, tables.confirmed)
    for part in found:
        COMPARISON.check(part, "test")
    return found


def judged(preferences: dict[Pair, float], was: set[Pair] | None = None) -> pa.Table:
    """Direct judgments of query 0: the preference for the first of (anchor, document), NaN: nobody answered."""
    pairs = [sorted((doc_id(0, i), doc_id(0, j))) for i, j in preferences]
    ahead = [doc_id(0, i) == pair[0] for (i, _), pair in zip(preferences, pairs, strict=True)]
    table = pa.table(
        {
            "query_id": identity.id_array([identity.query_id("q0")] * len(pairs)),
            "doc_a": identity.id_array(pair[0] for pair in pairs),
            "doc_b": identity.id_array(pair[1] for pair in pairs),
            "preference": [p if first else 1.0 - p for p, first in zip(preferences.values(), ahead, strict=True)],
        }
    )
    if was is None:
        return table
    return table.append_column("was_borderline", pa.array([pair in was for pair in preferences]))


def weights(tables: Any, direct: pa.Table, config: MineConfig = CONFIG) -> dict[bytes, dict[bytes, float]]:
    """By anchor, the weights of the negatives that were taken."""
    examples, _ = mine(tables.ratings, tables.gaps, tables.candidates, config, 0, RuleInputs(direct))
    lists = zip(examples["doc_ids"].to_pylist(), examples["weights"].to_pylist(), strict=True)
    return {docs[0]: dict(zip(docs[1:], values[1:], strict=True)) for docs, values in lists}


def test_borderline_documents_are_asked_about_by_hand() -> None:
    # gaps to d0: 79, 80, 100, 150, 151, -100; d7 is a known positive at a gap of 110 from d0
    ratings = [300.0, 221.0, 220.0, 200.0, 150.0, 149.0, 400.0, 190.0]
    tables = make_tables([Query(ratings, positives=(0, 7), randoms=2)])
    found = find(tables, compared([(0, 0, 3), (0, 1, 2)]))
    assert named(found.wanted) == {frozenset((0, 2)), frozenset((0, 4))}
    assert named(found.known) == {frozenset((0, 3))}
    assert set(found.wanted["round"].to_pylist()) == {1}
    assert set(found.wanted["design"].to_pylist()) == {"validation"}
    rows = found.wanted.to_pylist()
    ids = [identity.comparison_id(row["query_id"], row["doc_a"], row["doc_b"]) for row in rows]
    assert [row["comparison_id"] for row in rows] == ids


def test_a_document_is_judged_against_the_positives_near_it() -> None:
    tables = make_tables([Query([600.0, 300.0, 200.0, 500.0], positives=(0, 1))])
    own = find(tables, compared([]))
    assert named(own.wanted) == {frozenset((1, 2)), frozenset((0, 3))}


def test_documents_are_validated_against_confirmed_anchors() -> None:
    """A confirmed document is not asked about again, however near it is to another."""
    said = ((0, 0.9), (1, 0.8), (2, 0.04), (3, 0.01))
    specs = [Query([400.0, 300.0, 200.0, -500.0], positives=(), said=said), Query([100.0, 0.0], positives=())]
    assert find(make_tables(specs), compared([])).wanted.num_rows == 0
    found = find(make_tables(specs), compared([]), CONFIG.model_copy(update={"anchors": "confirmed"}))
    assert named(found.wanted) == {frozenset((1, 2))}
    assert found.wanted.num_rows == 1


def test_a_pair_of_several_rounds_was_compared_once() -> None:
    tables = make_tables([Query([300.0, 200.0])])
    rounds = pa.concat_tables([compared([(0, 0, 1)], again) for again in (2, 3)])
    found = find(tables, rounds)
    assert found.wanted.num_rows == 0
    assert found.known["round"].to_pylist() == [2]


queries = st.lists(
    st.tuples(
        st.lists(st.integers(-40, 40).map(lambda x: 10.0 * x), min_size=1, max_size=10),
        st.integers(0, 2),
        st.sets(st.tuples(st.integers(0, 9), st.integers(0, 9)).filter(lambda pair: pair[0] != pair[1]), max_size=8),
    ),
    max_size=4,
)


@given(queries, st.integers(0, 3))
@settings(max_examples=40, deadline=None)
def test_borderline_pairs_are_those_of_the_definition(rows: list[Any], shuffle: int) -> None:
    specs = [Query(ratings, tuple(range(min(positives, len(ratings))))) for ratings, positives, _ in rows]
    pairs = [
        (q, i, j)
        for q, (ratings, _, chosen) in enumerate(rows)
        for i, j in {tuple(sorted(pair)) for pair in chosen}
        if j < len(ratings)
    ]
    tables = make_tables(specs)
    comparisons = compared(pairs)
    found = find(tables, comparisons)
    for q, one in enumerate(specs):
        known = {frozenset((i, j)) for p, i, j in pairs if p == q}
        expected = set()
        for d in set(range(len(one.ratings))) - set(one.positives):
            gaps = {a: one.ratings[a] - one.ratings[d] for a in one.positives}
            expected |= {frozenset((a, d)) for a, value in gaps.items() if 80 <= value <= 150}
        assert named(found.wanted, q) == expected - known
        assert named(found.known, q) == expected & known
    rng = np.random.default_rng(shuffle)
    mixed = comparisons.take(pa.array(rng.permutation(comparisons.num_rows), pa.int64()))
    assert find(tables.shuffled(shuffle), mixed).wanted.equals(found.wanted)


def test_the_verdicts_of_the_report() -> None:
    """p below .65 rejects, up to .75 the weight is .3, above it is 1; without an answer Table 2 decides."""
    tables = make_tables([Query([300.0, 200.0, 200.0, 200.0, 200.0, 200.0, 200.0, 100.0])])
    answers = {(0, 1): 0.64, (0, 2): 0.65, (0, 3): 0.75, (0, 4): 0.76, (0, 5): float("nan"), (0, 7): 0.0}
    found = weights(tables, judged(answers))[doc_id(0, 0)]
    expected = {2: 0.3, 3: 0.3, 4: 1.0, 5: 0.5, 6: 0.5, 7: 1.0}  # d7's gap of 200 is not borderline
    assert found == {doc_id(0, d): weight for d, weight in expected.items()}
    beside = RuleInputs(judged(answers))
    negatives = pooled(tables.ratings, tables.gaps, tables.candidates, CONFIG, beside).pool.negatives
    counts = {"borderline": 6, "rejected": 1, "reduced": 2, "full": 1, "unjudged": 2}
    assert verdicts(negatives, CONFIG) == {"validate": counts}


def test_a_verdict_holds_where_the_gap_has_moved_to() -> None:
    """d1 and d2 were borderline before the round and are not now; d3 was not, is now, and happens to be judged."""
    tables = make_tables([Query([300.0, 240.0, 100.0, 180.0, 100.0])])
    answers = {(0, 1): 1.0, (0, 2): 0.1, (0, 3): 0.7, (0, 4): 0.1}
    found = weights(tables, judged(answers, was={(0, 1), (0, 2)}))[doc_id(0, 0)]
    assert found == {doc_id(0, 1): 1.0, doc_id(0, 3): 0.3, doc_id(0, 4): 1.0}
    assert weights(tables, judged(answers))[doc_id(0, 0)] == {  # without a round the gap alone says
        doc_id(0, 2): 1.0, doc_id(0, 3): 0.3, doc_id(0, 4): 1.0,
    }  # fmt: skip


@pytest.mark.parametrize("flip", [False, True])
def test_known_positives_are_no_negatives_whatever_a_judge_says(flip: bool) -> None:
    positives = (0, 1)
    tables = make_tables([Query([300.0, 200.0, 180.0], positives=positives)])
    first, second = positives[::-1] if flip else positives
    found = weights(tables, judged({(first, second): 1.0, (0, 2): 1.0}, was={(first, second)}))
    assert found[doc_id(0, 0)] == {doc_id(0, 2): 1.0}


def test_pseudo_positives_are_counted_and_never_negatives() -> None:
    tables = make_tables([Query([300.0, 0.0, -100.0, -200.0, 250.0], positives=(0, 4))])
    config = MineConfig.model_validate({"rule": "rocketqa", "random_negatives": 0, "rated_extra": 0})
    told = {1: 0.95, 2: 0.5, 3: 0.01, 4: 0.99}
    relevance = pa.table(
        {
            "query_id": identity.id_array([identity.query_id("q0")] * len(told)),
            "doc_id": identity.id_array(doc_id(0, d) for d in told),
            "relevance": list(told.values()),
        }
    )
    args = (tables.ratings, tables.gaps, tables.candidates, config)
    examples, _ = mine(*args, 0, RuleInputs(relevance=relevance))
    assert [docs[1:] for docs in examples["doc_ids"].to_pylist()] == [[doc_id(0, 3)]] * 2
    found = verdicts(pooled(*args, RuleInputs(relevance=relevance)).pool.negatives, config)
    assert found == {"rocketqa": {"documents": 6, "negatives": 2, "pseudo_positives": 2}}  # of two examples


def test_what_decides_who_is_asked() -> None:
    """Weights and draws do not: with others the same questions stand."""
    band = {"rule": "validate", "low": 60.0}
    plain = MineConfig.model_validate({"allow": [band]})
    assert plain.asking == MineConfig.model_validate({"allow": [band], "negatives": 3}).asking
    for other in ({"anchors": "confirmed"}, {"allow": [{**band, "high": 160.0}]}):
        assert MineConfig.model_validate({"allow": [band], **other}).asking != plain.asking
    with pytest.raises(AssertionError, match="validates nothing"):
        _ = MineConfig().asking
