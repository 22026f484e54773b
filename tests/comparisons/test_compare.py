from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pydantic import ValidationError

from anmi_ray.comparisons import compare
from anmi_ray.config.compare import CompareConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import COMPARISON, REJECT, by_query
from tests.comparisons.made import make_candidates


def test_one_graph_per_query_over_documents_that_are_not_random() -> None:
    candidates = make_candidates([12, 9, 20], randoms=3)
    comparisons, refused = compare(candidates, CompareConfig(degree=4), seed=1)
    COMPARISON.check(comparisons, "test")
    assert refused.num_rows == 0
    random = set(candidates.filter(pc.equal(candidates["source"], "random"))["doc_id"].to_pylist())
    sizes = {identity.query_id("q0"): 12, identity.query_id("q1"): 9, identity.query_id("q2"): 20}
    for query, rows in by_query(comparisons):
        docs = rows["doc_a"].to_pylist() + rows["doc_b"].to_pylist()
        assert not random & set(docs)
        assert sorted(docs.count(doc) for doc in set(docs)) == [4] * sizes.pop(query)
        for row in rows.to_pylist():
            assert row["comparison_id"] == identity.comparison_id(query, row["doc_a"], row["doc_b"])
    assert not sizes


def test_neither_order_nor_bucket_matters() -> None:
    candidates = make_candidates([15, 8, 30])
    whole, _ = compare(candidates, CompareConfig(), seed=3)
    shuffled = candidates.take(pa.array(np.random.default_rng(0).permutation(candidates.num_rows)))
    assert compare(shuffled, CompareConfig(), seed=3)[0].equals(whole)
    parts = [compare(rows, CompareConfig(), seed=3)[0] for _, rows in by_query(candidates)]
    assert pa.concat_tables(parts).equals(whole)


def test_another_seed_asks_other_pairs() -> None:
    candidates = make_candidates([30])
    first, second = (compare(candidates, CompareConfig(), seed)[0] for seed in (0, 1))
    assert set(first["comparison_id"].to_pylist()) != set(second["comparison_id"].to_pylist())


def test_queries_too_small_to_compare_are_rejects() -> None:
    candidates = make_candidates([0, 1, 2], randoms=2)
    comparisons, refused = compare(candidates, CompareConfig(), seed=0)
    REJECT.check(refused, "test")
    assert comparisons.num_rows == 1
    assert set(refused["key"].to_pylist()) == {identity.query_id("q0").hex(), identity.query_id("q1").hex()}
    assert set(refused["reason"].to_pylist()) == {"fewer than two documents to compare"}


def test_nothing_in_nothing_out() -> None:
    comparisons, refused = compare(make_candidates([]), CompareConfig(), seed=0)
    assert comparisons.num_rows == refused.num_rows == 0
    COMPARISON.check(comparisons, "test")


def test_a_doubled_candidate_is_refused() -> None:
    candidates = make_candidates([4])
    with pytest.raises(DataError, match="lists a candidate twice"):
        compare(pa.concat_tables([candidates, candidates.slice(0, 1)]), CompareConfig(), seed=0)


def test_degree_needs_two() -> None:
    with pytest.raises(ValidationError):
        CompareConfig(degree=1)


def test_golden_graph() -> None:
    """Changes when the same settings ask other pairs: then the compare stage needs a new version."""
    comparisons, _ = compare(make_candidates([12, 7, 5]), CompareConfig(degree=4), seed=0)
    assert (
        identity.digest("golden", *comparisons["comparison_id"].to_pylist()).hex() == "3c54793c14d301e763d0b1abf5afdedb"
    )
