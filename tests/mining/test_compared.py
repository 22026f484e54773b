"""Figures that hold mining rules against each other, by hand examples and by their properties."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.records import QREL, TRUTH
from anmi_ray.core.scale import ELO_PER_PROBIT
from anmi_ray.mining import compared, mine, weights
from tests.mining.world import Query, doc_id, make_tables

TABLE = MineConfig(rule="table2", random_negatives=1, rated_extra=2)


def query(number: int) -> bytes:
    return identity.query_id(f"q{number}")


def ids(names: list[bytes]) -> pa.Array:
    return identity.id_array(names)


def pairs(rows: list[tuple[int, bytes]]) -> pa.Table:
    return pa.table({"query_id": ids([query(q) for q, _ in rows]), "doc_id": ids([d for _, d in rows])})


def taken(specs: list[Any], config: MineConfig = TABLE) -> tuple[Any, pa.Table]:
    tables = make_tables(specs)
    examples, _ = mine(tables.ratings, tables.gaps, tables.candidates, config, 0)
    return tables, compared.chosen(examples)


def test_what_is_chosen_are_the_rated_negatives_with_weight() -> None:
    # gaps 50 (danger), 150 (soft), 300 (goldilocks), 450 (medium): the first is an extra at most
    _, table = taken([Query([300.0, 250.0, 150.0, 0.0, -150.0], randoms=2)])
    rows = {row["doc_id"]: row for row in table.to_pylist()}
    assert set(rows) == {doc_id(0, d) for d in (2, 3, 4)}
    assert {row["anchor_id"] for row in rows.values()} == {doc_id(0, 0)}
    assert {row["query_id"] for row in rows.values()} == {query(0)}
    assert [(rows[doc_id(0, d)]["weight"], rows[doc_id(0, d)]["gap_elo"]) for d in (2, 3, 4)] == [
        (0.5, 150.0),
        (1.0, 300.0),
        (0.7, 450.0),
    ]
    assert rows[doc_id(0, 3)]["category"] == "goldilocks"


def test_nothing_chosen_of_nothing() -> None:
    zero = MineConfig(rule="table2", random_negatives=0, bands=({"category": "danger", "below": 9e3, "weight": 0.0},
                                                               {"category": "easy", "below": None, "weight": 0.0}))  # type: ignore[arg-type]  # fmt: skip
    _, table = taken([Query([300.0, 0.0])], zero)
    assert table.num_rows == 0
    members, owner = compared.memberships([table, table], ids([query(0)]))
    found = compared.overlap(members, owner)
    assert np.isnan(found.mean).all()
    assert (found.queries == 0).all()
    assert compared.clustered_share(np.zeros(0, bool), np.zeros(0, int)) == compared.NOTHING


def test_weights_are_of_the_whole_pool_and_agree_with_what_was_taken() -> None:
    specs = [Query([300.0, 250.0, 150.0, 0.0, -150.0, 290.0], positives=(0, 5)), Query([10.0, -100.0])]
    tables, chosen = taken(specs)
    found = weights(tables.ratings, tables.gaps, tables.candidates, TABLE, 0)
    by_pair = {(row["anchor_id"], row["doc_id"]): row for row in found.to_pylist()}
    assert len(by_pair) == found.num_rows == 2 * 4 + 1  # neither anchor is the other's negative
    assert by_pair[doc_id(0, 0), doc_id(0, 1)]["weight"] == 0.0
    assert by_pair[doc_id(0, 0), doc_id(0, 1)]["category"] == "danger"
    assert by_pair[doc_id(1, 0), doc_id(1, 1)]["gap_elo"] == 110.0
    for row in chosen.to_pylist():
        assert by_pair[row["anchor_id"], row["doc_id"]]["weight"] == row["weight"]
    keys = ("query_id", "anchor_id", "doc_id")
    assert compared.pairs_in(found, chosen, keys).sum() == chosen.num_rows == (found["weight"].to_numpy() > 0).sum()


def test_true_gaps_are_the_latent_difference_in_points() -> None:
    _, table = taken([Query([300.0, 0.0, 20.0])])
    latent = {doc_id(0, 0): 1.5, doc_id(0, 1): 1.0}
    truth = TRUTH.table({"query_id": [query(0)] * 2, "doc_id": list(latent), "latent": list(latent.values())})
    gaps = dict(zip(table["doc_id"].to_pylist(), compared.true_gaps(table, truth), strict=True))
    assert gaps[doc_id(0, 1)] == pytest.approx(0.5 * ELO_PER_PROBIT)
    assert np.isnan(gaps[doc_id(0, 2)])
    assert np.isnan(compared.true_gaps(table, TRUTH.empty())).all()


def test_a_mean_and_its_error_by_hand() -> None:
    # queries (1, 3) and (2): mean 2; sums of residuals 0 and 0, so the queries say the same
    same = compared.clustered_mean(np.array([1.0, 3.0, 2.0]), np.array([4, 4, 9]))
    assert same == (2.0, 2.0, 2.0, 3)
    # weights 1, 3: mean (0 + 3)/4; residuals -.75, 3/4: Var = 2 (2 * .5625) / 16
    found = compared.clustered_mean(np.array([0.0, 1.0]), np.array([0, 1]), np.array([1.0, 3.0]))
    error = np.sqrt(2 * 2 * 0.5625 / 16)
    assert found.mean == 0.75
    assert (found.low, found.high) == pytest.approx((0.75 - 1.959964 * error, 0.75 + 1.959964 * error))
    assert compared.clustered_mean(np.array([5.0, 7.0]), np.array([3, 3])) == (6.0, None, None, 2)


def test_documents_of_one_query_are_not_taken_for_independent() -> None:
    value = np.repeat([0.0, 1.0, 1.0, 0.0], 10)
    apart = compared.clustered_mean(value, np.arange(40))
    together = compared.clustered_mean(value, np.repeat(np.arange(4), 10))
    assert apart.high is not None
    assert together.high is not None
    assert together.high - 0.5 == pytest.approx((apart.high - 0.5) * np.sqrt(10 * (4 / 3) / (40 / 39)))


def test_a_share_is_wilsons_where_documents_are_independent() -> None:
    flags = np.arange(100) < 8
    found = compared.clustered_share(flags, np.arange(100))
    n, p, z = 99.0, 0.08, 1.959964  # Var has G/(G - 1): the effective size is 99
    half = z * np.sqrt(p * (1 - p) / n + z**2 / (4 * n**2)) / (1 + z**2 / n)
    middle = (p + z**2 / (2 * n)) / (1 + z**2 / n)
    assert (found.low, found.high) == pytest.approx((middle - half, middle + half), abs=1e-6)


def test_no_false_negative_among_few_queries_is_not_none_at_all() -> None:
    flags = np.zeros(400, dtype=bool)
    many, few = (compared.clustered_share(flags, np.arange(400) % queries) for queries in (100, 5))
    assert (many.mean, many.low) == (few.mean, few.low) == (0.0, 0.0)
    assert many.high == pytest.approx(3.8415 / (100 + 3.8415), abs=1e-4)
    assert few.high == pytest.approx(3.8415 / (5 + 3.8415), abs=1e-4)


@given(st.lists(st.tuples(st.booleans(), st.integers(0, 5), st.floats(0.01, 1.0)), min_size=1, max_size=40))
def test_a_share_lies_in_its_interval(rows: list[tuple[bool, int, float]]) -> None:
    flags, owner, weight = (np.array(column) for column in zip(*rows, strict=True))
    found = compared.clustered_share(flags, owner, weight)
    assert found.mean == pytest.approx((weight * flags).sum() / weight.sum())
    if len(set(owner.tolist())) > 1:
        assert found.low is not None
        assert found.high is not None
        assert 0.0 <= found.low <= found.mean <= found.high <= 1.0  # type: ignore[operator]
    else:
        assert found.low is found.high is None


def test_intervals_of_shares_hold_the_truth_about_as_often_as_they_say() -> None:
    rng, held = np.random.default_rng(7), 0
    owner = np.repeat(np.arange(120), 6)
    for _ in range(400):
        p = np.repeat(rng.beta(0.4, 7.6, 120), 6)  # .05 on average, alike within a query
        found = compared.clustered_share(rng.random(720) < p, owner)
        held += found.low <= 0.05 <= found.high  # type: ignore[operator]
    assert 0.92 <= held / 400 <= 0.98


def test_bins_hold_their_lower_edge_and_leave_out_what_lies_outside() -> None:
    at, value = np.array([-1.0, 0.0, 9.9, 10.0, 20.0]), np.array([9.0, 1.0, 2.0, 4.0, 9.0])
    first, second = compared.binned(at, value, np.arange(5), np.array([0.0, 10.0, 20.0]))
    assert (first.mean, first.n, second.mean, second.n) == (1.5, 2, 4.0, 1)
    assert (second.low, second.high) == (None, None)
    assert first.high == pytest.approx(1.5 + 1.959964 * 0.5)


@given(st.lists(st.floats(-5000, 5000), max_size=30))
def test_edges_of_gap_bins(gaps: list[float]) -> None:
    edges = compared.gap_edges(np.array(gaps))
    assert 2 <= len(edges) <= 41
    assert len(set(np.diff(edges).tolist())) == 1
    assert edges[0] <= 0.0
    assert edges[-1] >= 700.0
    if gaps:
        assert edges[0] <= np.quantile(gaps, 0.01)
        assert edges[-1] >= np.quantile(gaps, 0.99)


def test_overlap_by_hand() -> None:
    a, b, c, d = (identity.doc_id(name) for name in "abcd")
    first = pairs([(0, a), (0, b), (1, a)])
    second = pairs([(0, b), (0, c), (1, a), (2, d)])
    members, owner = compared.memberships([first, second], ids([query(2), query(0), query(1)]))
    assert members.sum(axis=1).tolist() == [3, 4]
    assert members.shape[1] == 5
    found = compared.overlap(members, owner)
    # query 0: {a, b}, {b, c}: 1/3; query 1: the same; query 2: nothing, {d}
    each = [1 / 3, 1.0, 0.0]
    half = 1.959964 * np.std(each, ddof=1) / np.sqrt(3)
    assert found.mean[0, 1] == found.mean[1, 0] == pytest.approx(np.mean(each))
    assert found.low[0, 1] == pytest.approx(max(0.0, np.mean(each) - half))
    assert found.high[0, 1] == pytest.approx(min(1.0, np.mean(each) + half))
    assert found.mean[0, 0] == found.mean[1, 1] == 1.0
    assert found.queries.tolist() == [[2, 3], [3, 3]]


def test_a_document_of_two_examples_of_a_query_counts_once() -> None:
    a, b = identity.doc_id("a"), identity.doc_id("b")
    members, owner = compared.memberships([pairs([(0, a), (0, a)]), pairs([(0, a), (0, b)])], ids([query(0)]))
    assert members.tolist() in ([[True, False], [True, True]], [[False, True], [True, True]])
    assert compared.overlap(members, owner).mean[0, 1] == 0.5


def test_hidden_positives_are_rated_relevant_and_anchor_nothing() -> None:
    tables = make_tables([Query([300.0, 200.0, 0.0], positives=(0,)), Query([1.0, 0.0], positives=(0, 1))])
    rows = [(0, doc_id(0, 0), 1), (0, doc_id(0, 1), 2), (0, doc_id(0, 2), 0), (0, identity.doc_id("unrated"), 1)]
    rows += [(1, doc_id(1, 0), 1), (1, doc_id(1, 1), 1)]
    columns = ("query_id", "doc_id", "grade")
    qrels = QREL.table(dict(zip(columns, zip(*((query(q), d, g) for q, d, g in rows), strict=True), strict=True)))
    found = compared.hidden_positives(qrels, tables.gaps)
    assert found.to_pylist() == [{"query_id": query(0), "doc_id": doc_id(0, 1)}]
    assert compared.hidden_positives(QREL.empty(), tables.gaps).num_rows == 0
