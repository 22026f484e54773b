"""The audit's figures: known answers by hand, judges whose habits are known, intervals that cover."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core.identity import doc_id, query_id, rng
from anmi_ray.core.records import QREL
from anmi_ray.core.scale import wilson
from anmi_ray.judging import audit, read_judgments
from anmi_ray.judging.audit.intervals import (
    MIN_QUERIES,
    Queries,
    alpha_of,
    alpha_terms,
    krippendorff,
    linearised,
)
from anmi_ray.rating.graph import count_triads


def audited(rows: list[dict[str, Any]], grades: dict[tuple[str, str], int] | None = None) -> dict[str, Any]:
    """The audit of rows as of a file, with grades by (query, document)."""
    read = read_judgments(pa.Table.from_pylist(rows))
    assert not read.rejects.num_rows
    qrels = None
    if grades is not None:
        ids = [query_id(q) for q, _ in grades], [doc_id(d) for _, d in grades]
        qrels = QREL.table({"query_id": ids[0], "doc_id": ids[1], "grade": list(grades.values())})
    return audit(  # type: ignore[return-value]
        read.judgments, read.comparisons, grades=qrels, log_length=read.log_length, triads=count_triads
    )


def both(a: str, b: str, first: float, second: float, **more: Any) -> list[dict[str, Any]]:
    """A pair in both orders: preferences for `a` when it was shown first, and when it was shown second."""
    row = {"query_id": "q", "doc_a": a, "doc_b": b, "judge": "j"} | more
    return [row | {"order": "ab", "preference": first}, row | {"order": "ba", "preference": second}]


BY_HAND = [
    *both("a", "b", 1.0, 1.0, length_a=4, length_b=1),  # a beats b, the longer
    *both("b", "c", 1.0, 1.0, length_a=1, length_b=2),  # b beats c, the shorter
    *both("c", "a", 1.0, 1.0, length_a=2, length_b=4),  # c beats a: in a circle
    *both("a", "d", 1.0, 0.0, length_a=4, length_b=1),  # flips to the first shown
    *both("b", "d", 0.0, 1.0, length_a=1, length_b=1),  # flips to the second shown
    *both("c", "d", 0.5, 0.0, length_a=2, length_b=1),  # inconsistent, no flip: leans to the first shown
]
GRADES = {("q", "a"): 3, ("q", "b"): 1, ("q", "c"): 1, ("q", "d"): 0}


def test_figures_by_hand() -> None:
    judge = audited(BY_HAND, GRADES)["judges"]["j"]
    assert (judge["n"], judge["answered"], judge["failures"]) == (12, 12, {})
    assert judge["tie_rate"] == pytest.approx(1 / 12)
    assert judge["flip_rate"] == pytest.approx(2 / 6)
    assert judge["order_inconsistent_rate"] == pytest.approx(3 / 6)
    bias = judge["position_bias"]
    assert (bias["pairs"], bias["first_preferred"], bias["second_preferred"]) == (6, 2, 1)
    first = np.array([0.5, 0.5, 0.5, 1.0, 0.0, 0.75])  # mean preference for the first shown
    assert bias["probability"] == pytest.approx(first.mean() - 0.5)
    slack = 1.959963984540054 * first.std(ddof=1) / math.sqrt(6)  # one query: over pairs
    assert bias["interval"] == pytest.approx([first.mean() - 0.5 - slack, first.mean() - 0.5 + slack])
    # decided pairs: ab, bc, ca, cd; of these only abc is a triad
    assert (judge["cycle_rate"], judge["counts"]["cycle_rate"]) == (1.0, 1)
    assert judge["intervals"]["cycle_rate"] is None
    # lengths differ and decided: ab (longer wins), bc (shorter), ca (shorter), cd (d wins, shorter)
    length = judge["length_bias"]
    assert (length["both_orders"], length["pairs"], length["longer"]) == (True, 4, 0.25)
    assert (length["equal_grades"]["pairs"], length["equal_grades"]["longer"]) == (1, 0.0)  # bc
    # unlike grades (all but bc): ab right, ca and cd wrong; right answers: 2 of ab, 1 of ad, 1 of bd, of 9 decided
    assert judge["accuracy_both_orders"] == pytest.approx(1 / 3)
    assert judge["accuracy"] == pytest.approx(4 / 9)
    assert judge["counts"]["accuracy"] == 9


def test_agreement_by_hand() -> None:
    rows = [
        *both("a", "b", 1.0, 1.0),
        *both("a", "c", 1.0, 1.0),
        *both("b", "c", 1.0, 0.0),  # no side
        *both("a", "b", 1.0, 1.0, judge="k"),
        *both("a", "c", 0.0, 0.0, judge="k"),
        *both("b", "c", 1.0, 1.0, judge="k"),
    ]
    panel = audited(rows, {("q", "a"): 1, ("q", "b"): 0, ("q", "c"): 0})["panel"]
    assert panel["agreement_pairs"] == {"j ~ k": {"share": 0.5, "interval": [0.0, 1.0], "pairs": 2}}
    assert panel["alpha"] == panel["alpha_pairs"]["j ~ k"]
    assert panel["graded"] == {"comparisons": 3, "different": 2}
    assert panel["alpha_interval"] is None


def test_alpha_from_sums_is_alpha() -> None:
    values = rng("alpha").integers(0, 3, (40, 4)) / 2
    values[rng("alpha", "lost").random((40, 4)) < 0.3] = np.nan
    sums = alpha_terms(values)
    assert alpha_of(sums.sum(axis=0)) == pytest.approx(krippendorff(values))
    parts = np.stack([sums[::2].sum(axis=0), sums[1::2].sum(axis=0)])
    assert alpha_of(parts) == pytest.approx([krippendorff(values[::2]), krippendorff(values[1::2])])
    assert np.isnan(alpha_of(np.zeros(4)))


def world(seed: int, queries: int, first: float = 0.0, noise: float = 1.0, longer: float = 0.0) -> list[dict[str, Any]]:
    """Both orders of all pairs of six documents: P(a wins) = σ((a - b)·.3/noise ± first + longer · log ratio)."""
    r, rows = rng("habits", seed), []
    for q in range(queries):
        length = np.exp(r.normal(5, 0.7, 6))
        for a in range(6):
            for b in range(a):
                for order, side in (("ab", 1), ("ba", -1)):
                    x = 0.3 * (a - b) / noise + side * first + longer * math.log(length[a] / length[b])
                    row = {"query_id": f"q{q}", "doc_a": f"d{a}", "doc_b": f"d{b}", "order": order, "judge": "j"}
                    row |= {"length_a": length[a], "length_b": length[b]}
                    rows.append(row | {"preference": float(r.logistic() < x)})
    return rows


@pytest.mark.parametrize("queries", [1, 12])
@pytest.mark.parametrize(("p", "bias"), [(1.0, 0.5), (0.0, -0.5)])
def test_a_judge_that_looks_at_the_order_only(queries: int, p: float, bias: float) -> None:
    rows = [row | {"preference": p if row["order"] == "ab" else 1 - p} for row in world(0, queries)]
    judge = audited(rows)["judges"]["j"]
    found = judge["position_bias"]
    assert found["probability"] == bias
    assert judge["order_inconsistent_rate"] == 1.0
    assert (found["second_preferred"], found["first_preferred"])[int(p)] == 15 * queries
    low, high = sorted(abs(end) for end in found["interval"])
    assert 0.25 < low < high == 0.5  # it does not claim to know
    assert found["probit"] is None
    assert judge["cycle_rate"] is None  # nothing is decided
    assert judge["length_bias"]["longer"] is None


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000), queries=st.sampled_from([2, 15]), soft=st.booleans())
def test_answers_that_the_order_leaves_cold_have_no_bias(seed: int, queries: int, soft: bool) -> None:
    """The second order repeats the first: whatever was preferred, nothing is to be seen of a position."""
    rows = world(seed, queries)
    for one, other in zip(rows[::2], rows[1::2], strict=True):
        one["preference"] = other["preference"] = abs(one["preference"] - 0.2) if soft else one["preference"]
    judge = audited(rows)["judges"]["j"]
    assert judge["position_bias"]["probability"] == pytest.approx(0.0, abs=1e-12)
    assert judge["order_inconsistent_rate"] == judge["flip_rate"] == 0.0
    assert judge["position_bias"]["first_preferred"] == judge["position_bias"]["second_preferred"] == 0


@pytest.mark.parametrize("queries", [4, 25])
def test_intervals_cover(queries: int) -> None:
    """Over seeds the 95 % intervals of independent answers hold what the judge does; few queries, wide margins."""
    hits: list[bool] = []
    sigmoid = lambda x: 1 / (1 + np.exp(-np.asarray(x)))  # noqa: E731
    gaps = np.array([0.3 * (a - b) for a in range(6) for b in range(a)])
    true_bias = float((sigmoid(gaps + 0.4) / 2 + 1 / 2 - sigmoid(gaps - 0.4) / 2).mean() - 0.5)
    for seed in range(60):
        judge = audited(world(seed, queries, first=0.4))["judges"]["j"]
        low, high = judge["position_bias"]["interval"]
        hits.append(low <= true_bias <= high)
        assert low > 0 or queries == 4
    assert np.mean(hits) >= 0.85


def test_intervals_are_wider_where_queries_differ() -> None:
    """Queries of one mind each, alternating: over pairs the interval would be far too narrow."""
    queries, each = 20, 50
    of = np.repeat(np.arange(queries), each)
    part, whole = (of % 2).astype(float), np.ones(len(of))
    share = Queries(of, queries).shares({"x": (part, whole)})["x"]
    assert share.value == 0.5
    assert share.interval is not None
    narrow = linearised(part, whole)
    assert narrow is not None
    assert share.interval[1] - share.interval[0] > 5 * (narrow[1] - narrow[0])
    assert share == Queries(of, queries).shares({"y": (whole, whole), "x": (part, whole)})["x"]  # same draws


def test_what_never_happened_has_an_interval() -> None:
    def never(queries: int) -> Any:
        of = np.repeat(np.arange(queries), 3)
        return Queries(of, queries).shares({"x": (np.zeros(len(of)), np.ones(len(of)))})["x"].interval

    assert never(MIN_QUERIES) == pytest.approx(wilson(0.0, MIN_QUERIES))  # over queries
    assert never(2) == pytest.approx(wilson(0.0, 6))  # over comparisons
    half = Queries(np.arange(20), 20).shares({"x": (np.full(20, 0.5), np.ones(20))})["x"].interval
    unseen = wilson(0.0, 20)[1]  # it may hold any value
    assert half == pytest.approx([0.5 - unseen / 2, 0.5 + unseen / 2])
    empty = Queries(np.zeros(3, np.int64), 1).shares({"x": (np.zeros(3), np.zeros(3))})["x"]
    assert (empty.value, empty.interval) == (None, None)


def test_lengths_come_from_both_orders_where_there_are_some() -> None:
    rows = [
        *both("a", "b", 0.0, 0.0, length_a=9, length_b=1),
        {"query_id": "q", "doc_a": "c", "doc_b": "d", "judge": "j", "order": "ab", "preference": 1.0}
        | {"length_a": 9, "length_b": 1},
    ]
    length = audited(rows)["judges"]["j"]["length_bias"]
    assert (length["both_orders"], length["pairs"], length["longer"]) == (True, 1, 0.0)
    length = audited(rows[1:])["judges"]["j"]["length_bias"]
    assert (length["both_orders"], length["pairs"], length["longer"]) == (False, 2, 0.5)


def test_errors_against_grades_correlate_where_judges_share_them() -> None:
    r = rng("shared")
    rows, grades = [], {}
    for q in range(60):
        grades |= {(f"q{q}", "a"): 1, (f"q{q}", "b"): 0}
        lost = r.random() < 0.3
        for judge in "jkl":
            wrong = lost if judge != "l" else r.random() < 0.3
            rows.append(
                {"query_id": f"q{q}", "doc_a": "a", "doc_b": "b", "judge": judge, "preference": float(not wrong)}
            )
    panel = audited(rows, grades)["panel"]
    assert panel["error_correlation"]["j ~ k"] == pytest.approx(1.0)
    assert abs(panel["error_correlation"]["j ~ l"]) < 0.4
