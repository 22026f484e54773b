"""Tests and intervals against exact enumeration, known distributions, and their own symmetries."""

from __future__ import annotations

from itertools import product

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import METRIC
from anmi_ray.evaluation import significance
from anmi_ray.evaluation.significance import bootstrap_interval, compare, paired_randomisation

scores = st.lists(st.integers(0, 10).map(lambda v: v / 10), min_size=1, max_size=9)


def enumerated(a: np.ndarray, b: np.ndarray) -> float:
    difference = a - b
    sums = [abs(float(np.dot(signs, difference))) for signs in product((1.0, -1.0), repeat=len(difference))]
    return float(np.mean(np.array(sums) >= abs(difference.sum()) - 1e-9))


@given(scores, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_exact_p_is_the_enumerated_one(a: list[float], random: object):
    b = np.round(identity.rng("b", str(a)).random(len(a)), 1)
    assert paired_randomisation(a, b) == pytest.approx(enumerated(np.array(a), b), abs=1e-12)


def test_sampled_p_is_near_the_exact_one(monkeypatch: pytest.MonkeyPatch):
    random = identity.rng("near")
    a, b = random.normal(0.25, 1, 14), np.zeros(14)
    exact = paired_randomisation(a, b)
    monkeypatch.setattr(significance, "EXACT_QUERIES", 0)
    sampled = paired_randomisation(a, b, rounds=16_000)  # fewer than 2^14 patterns
    assert sampled != exact
    assert sampled == pytest.approx(exact, abs=4 * (exact * (1 - exact) / 16_000) ** 0.5 + 1e-4)


def test_p_is_deterministic_symmetric_and_never_zero():
    random = identity.rng("p")
    a, b = random.normal(1.0, 0.1, 60), np.zeros(60)
    assert paired_randomisation(a, b, 500) == paired_randomisation(b, a, 500) == 1 / 501
    assert paired_randomisation(a, a) == 1.0
    c = random.normal(0.1, 1, 60)
    assert paired_randomisation(c, b, 500, seed=3) == paired_randomisation(c, b, 500, seed=3)
    assert paired_randomisation(c, b, 500, seed=3) != paired_randomisation(c, b, 500, seed=4)


def test_thousands_of_queries_have_a_p_value():
    """2^n is beyond a float where n is 1,024."""
    assert paired_randomisation(np.ones(1_500), np.zeros(1_500), 200) == 1 / 201


def test_p_is_uniform_when_nothing_differs():
    random = identity.rng("null")
    ps = [paired_randomisation(random.normal(0, 1, 30), random.normal(0, 1, 30), 300, seed=i) for i in range(300)]
    assert 0.02 <= np.mean(np.array(ps) <= 0.05) <= 0.09
    assert 0.4 <= np.mean(ps) <= 0.6


def test_block_size_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    values = identity.rng("block").normal(0.2, 1, 41)
    before = paired_randomisation(values, np.zeros(41), 999), bootstrap_interval(values, rounds=999)
    monkeypatch.setattr(significance, "BLOCK", 41 * 7)
    assert (paired_randomisation(values, np.zeros(41), 999), bootstrap_interval(values, rounds=999)) == before


def test_bootstrap_interval_matches_the_normal_one():
    values = identity.rng("normal").normal(0.5, 0.2, 400)
    low, high = bootstrap_interval(values)
    half = 1.96 * values.std() / 20
    assert low == pytest.approx(values.mean() - half, abs=0.1 * half)
    assert high == pytest.approx(values.mean() + half, abs=0.1 * half)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=30), st.floats(-3, 3))
@settings(deadline=None, max_examples=40)
def test_bootstrap_interval_properties(values: list[float], shift: float):
    low, high = bootstrap_interval(values, rounds=200)
    assert min(values) - 1e-12 <= low <= high <= max(values) + 1e-12
    moved = bootstrap_interval(np.array(values) + shift, rounds=200)
    assert moved == pytest.approx((low + shift, high + shift), abs=1e-9)


def metrics(values: dict[str, list[float]], queries: list[str] | None = None) -> pa.Table:
    rows = [
        (identity.query_id(q), system, "nDCG@10", v)
        for system, column in values.items()
        for q, v in zip(queries or [f"q{i}" for i in range(len(column))], column, strict=True)
    ]
    return METRIC.table({name: [row[i] for row in rows] for i, name in enumerate(METRIC.schema.names)})


def test_compare_rows():
    table = metrics({"hybrid": [0.2, 0.4, 0.4, 0.8], "reranked": [0.4, 0.4, 0.6, 0.9], "bm25": [0.1, 0.1, 0.1, 0.1]})
    base, bm25, reranked = compare(table, "hybrid", None, "nDCG@10", rounds=500)
    assert (base.system, base.mean, base.difference, base.p) == ("hybrid", pytest.approx(0.45), None, None)
    assert (reranked.difference, reranked.wins, reranked.ties, reranked.losses) == (pytest.approx(0.125), 3, 1, 0)
    assert reranked.p == pytest.approx(0.25)  # 2 of 2^3
    ends = (reranked.difference_low, reranked.difference_high)
    assert ends == pytest.approx((0.05, 0.2))
    assert bm25.p == pytest.approx(0.125)
    assert (bm25.p_holm, reranked.p_holm) == (pytest.approx(0.25), pytest.approx(0.25))
    shuffled = table.take(pa.array(identity.rng("rows").permutation(table.num_rows)))
    assert compare(shuffled, "hybrid", None, "nDCG@10", rounds=500) == (base, bm25, reranked)
    assert [row.system for row in compare(table, "bm25", ["reranked"], "nDCG@10")] == ["bm25", "reranked"]


def test_compare_refuses_what_is_missing_or_unpaired():
    table = metrics({"hybrid": [0.2, 0.4]})
    with pytest.raises(DataError, match=r"no nDCG@10 of 'dense'; there are hybrid"):
        compare(table, "dense", None, "nDCG@10")
    other = pa.concat_tables([table, metrics({"bm25": [0.1, 0.1]}, ["q0", "q7"])])
    with pytest.raises(DataError, match="different queries"):
        compare(other, "hybrid", None, "nDCG@10")
    with pytest.raises(DataError, match="not finite"):
        compare(metrics({"hybrid": [0.2, float("nan")]}), "hybrid", None, "nDCG@10")


def test_a_partial_system_is_compared_on_its_own_queries():
    ids = sorted(identity.query_id(str(i)) for i in range(12))
    random = identity.rng("partial")
    a, b = random.random(12), random.random(12)
    has = np.arange(12) % 3 != 0
    kept = [query for query, there in zip(ids, has, strict=True) if there]

    def table(**systems: tuple[list[bytes], np.ndarray]) -> pa.Table:
        rows = [
            (q, name, v) for name, (queries, values) in systems.items() for q, v in zip(queries, values, strict=True)
        ]
        columns = zip(*rows, strict=True)
        return METRIC.table(
            dict(zip(("query_id", "system", "value"), map(list, columns), strict=True)) | {"measure": ["m"] * len(rows)}
        )

    whole = table(base=(ids, a), other=(ids, b), peer=(kept, b[has]))
    rows = {row.system: row for row in compare(whole, "base", None, "m", partial=["peer"])}
    (_, alone) = compare(table(base=(kept, a[has]), peer=(kept, b[has])), "base", None, "m")
    assert rows["peer"].queries == has.sum()
    assert rows["peer"].difference == pytest.approx(alone.difference)
    assert rows["peer"].p == alone.p
    assert rows["other"].queries == 12
    with pytest.raises(DataError, match="different queries"):
        compare(whole, "base", None, "m")
