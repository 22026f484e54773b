"""Tables of anybody's answers: what is accepted and refused, and that orientation and order of rows do not matter."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import comparison_id, doc_id, query_id, rng
from anmi_ray.core.records import COMPARISON, JUDGMENT, REJECT
from anmi_ray.judging import audit, read_judgments
from anmi_ray.judging.imported import Imported
from anmi_ray.rating.graph import count_triads

ROW: dict[str, Any] = {"query_id": "q", "doc_a": "a", "doc_b": "b", "preference": 1.0}
REPEATED = "repeated: an earlier row has its query, documents, judge, order and round"


def read(*rows: dict[str, Any], **columns: Any) -> Imported:
    """Rows as given, on top of ROW; checked as records."""
    found = read_judgments(pa.Table.from_pylist([ROW | columns | row for row in rows]))
    COMPARISON.check(found.comparisons, "test")
    JUDGMENT.check(found.judgments, "test")
    REJECT.check(found.rejects, "test")
    assert found.rows == found.judgments.num_rows + found.rejects.num_rows
    return found


def reasons(*rows: dict[str, Any], **columns: Any) -> dict[str, int]:
    return {reason: count for reason, (count, _) in read(*rows, **columns).reasons().items()}


def audited(found: Imported, **more: Any) -> dict[str, Any]:
    return audit(found.judgments, found.comparisons, log_length=found.log_length, triads=count_triads, **more)  # type: ignore[return-value]


def test_a_row_becomes_records() -> None:
    found = read({"judge": "j", "order": "ba", "preference": 0.8, "length_a": 200, "length_b": 100})
    low, high = sorted([doc_id("a"), doc_id("b")])
    swapped = low == doc_id("b")
    assert found.comparisons.to_pylist() == [
        {
            "comparison_id": comparison_id(query_id("q"), low, high),
            "query_id": query_id("q"),
            "doc_a": low,
            "doc_b": high,
            "round": 0,
            "design": "imported",
        }
    ]
    [judgment] = found.judgments.to_pylist()
    assert judgment["order"] == ("ab" if swapped else "ba")  # doc_b was shown first
    assert judgment["p_a"] == pytest.approx(0.2 if swapped else 0.8)
    assert found.log_length[0] == pytest.approx(-math.log(2) if swapped else math.log(2))


def test_without_order_doc_a_was_shown_first() -> None:
    found = read({"doc_a": "a", "doc_b": "b"}, {"doc_a": "b", "doc_b": "a"})
    assert found.comparisons.num_rows == 1
    assert found.judgments["order"].to_pylist() == ["ab", "ba"]
    bias = audited(found)["judges"][""]["position_bias"]
    assert (bias["pairs"], bias["first_preferred"], bias["second_preferred"]) == (1, 1, 0)


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"query_id": ""}, "query_id missing"),
        ({"doc_b": None}, "document missing"),
        ({"doc_b": "a"}, "document compared with itself"),
        ({"preference": None}, "preference missing"),
        ({"preference": math.nan}, "preference NaN"),
        ({"preference": 1.01}, "preference outside [0, 1]"),
        ({"preference": -math.inf}, "preference outside [0, 1]"),
        ({"order": None}, "order missing"),
        ({"order": "0"}, "order neither ab nor ba"),
        ({"round": 0.5}, "round no whole number"),
        ({"round": None}, "round no whole number"),
        ({"length_a": 0.0}, "length_a no number above 0"),
        ({"length_b": -3.0}, "length_b no number above 0"),
        ({"length_b": math.inf}, "length_b no number above 0"),
    ],
    ids=str,
)
def test_bad_rows_are_refused(row: dict[str, Any], reason: str) -> None:
    more = {"order": "ab", "round": 1.0, "length_a": 10.0, "length_b": 20.0}
    assert reasons({"query_id": "other"}, row, **more) == {reason: 1}


def test_text_is_read_as_a_file_gives_it() -> None:
    rows = [{"preference": text} for text in ("1", " .5 ", "", "much", "nan", "2")]
    columns = {"length_a": "7", "length_b": ""}
    found = read(*[row | {"query_id": f"q{i}", "round": "3"} for i, row in enumerate(rows)], **columns)
    assert {reason: count for reason, (count, _) in found.reasons().items()} == {
        "preference NaN": 1,
        "preference missing": 1,
        "preference not a number": 1,
        "preference outside [0, 1]": 1,
    }
    assert found.comparisons["round"].to_pylist() == [3, 3]
    assert np.isnan(found.log_length).all()
    assert found.rejects["detail"].to_pylist() == ["", "much", "nan", "2"]
    assert read({"length_a": "x", "length_b": "1"}).reasons().keys() == {"length_a no number above 0"}


def test_failures_need_no_preference_and_never_vote() -> None:
    found = read(
        {"error": "timeout", "preference": None},
        {"error": "refused", "preference": 7.0, "query_id": "q2"},
        {"error": " ", "preference": 0.5, "query_id": "q3"},
        {"error": None, "preference": None, "query_id": "q4"},
    )
    assert sorted(found.judgments["error"].drop_null().to_pylist()) == ["refused", "timeout"]
    judge = audited(found)["judges"][""]
    assert (judge["n"], judge["answered"], judge["failures"]) == (3, 1, {"refused": 1, "timeout": 1})
    assert judge["failure_rate"] == pytest.approx(2 / 3)
    assert found.reasons().keys() == {"preference missing"}


def test_the_first_of_repeated_rows_counts() -> None:
    rows = [
        {"preference": 1.0},
        {"doc_a": "b", "doc_b": "a", "order": "ba", "preference": 1.0},  # the same question from its other side
        {"order": "ba", "preference": 0.0},
        {"order": "ba", "preference": 1.0},
        {"judge": "k"},
        {"round": 1},
    ]
    found = read(*rows, order="ab", judge="j", round=0)
    assert found.reasons() == {REPEATED: (2, ["table row 2", "table row 4"])}
    assert found.comparisons.num_rows == 2  # the round tells them apart
    [pair] = [row for row in found.comparisons.to_pylist() if not row["round"]]
    mine = [row for row in found.judgments.to_pylist() if row["comparison_id"] == pair["comparison_id"]]
    assert {(row["order"], row["p_a"]) for row in mine if row["judge"] == "j"} == {("ab", 1.0), ("ba", 0.0)}
    assert reasons({"error": "timeout"}, {"error": None}, order="ab") == {REPEATED: 1}  # failures included


def test_columns_that_cannot_hold_such_values() -> None:
    for name, value, said in (("order", 1.5, "order holds double"), ("round", True, "round holds true or false")):
        with pytest.raises(DataError, match=said):
            read({name: value})
    with pytest.raises(DataError, match="has no column length_b"):
        read({"length_a": 3})
    with pytest.raises(DataError, match=r"has no column preference.*needed are query_id, doc_a, doc_b, preference"):
        read_judgments(pa.table({"query_id": ["q"], "doc_a": ["a"], "doc_b": ["b"]}))


def test_nothing_is_no_error() -> None:
    found = read_judgments(pa.table({name: pa.array([], pa.string()) for name in ROW}))
    assert (found.rows, found.judgments.num_rows, found.comparisons.num_rows) == (0, 0, 0)
    assert audited(found)["judges"] == {}


def random_rows(seed: int, queries: int = 12, bias: float = 0.3) -> list[dict[str, Any]]:
    """Both orders of pairs of five documents, with ties, failures, lengths, two judges."""
    r = rng("answers", seed)
    rows = []
    for q in range(queries):
        for a in range(5):
            for b in range(a):
                for judge in ("j", "k"):
                    for order, side in (("ab", 1), ("ba", -1)):
                        drawn = (a - b) / 3 + side * bias + r.normal()
                        error = "timeout" if r.random() < 0.05 else None
                        preference = 0.5 if abs(drawn) < 0.1 else float(drawn > 0)
                        row = {"query_id": f"q{q}", "doc_a": f"d{a}", "doc_b": f"d{b}", "judge": judge, "order": order}
                        row |= {"preference": None if error else preference, "error": error}
                        rows.append(row | {"length_a": 10.0 + a * a, "length_b": 10.0 + b * b})
    return rows


def turned(row: dict[str, Any]) -> dict[str, Any]:
    """The same answer, told from the other document's side."""
    p = row["preference"]
    return row | {
        "doc_a": row["doc_b"],
        "doc_b": row["doc_a"],
        "length_a": row["length_b"],
        "length_b": row["length_a"],
        "order": "ba" if row["order"] == "ab" else "ab",
        "preference": None if p is None else 1 - p,
    }


@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 1000), queries=st.sampled_from([1, 3, 12]))
def test_sides_and_order_of_rows_do_not_matter(seed: int, queries: int) -> None:
    rows = random_rows(seed, queries)
    r = rng("turn", seed)
    other = [turned(row) if r.random() < 0.5 else row for row in rows]
    other = [other[i] for i in r.permutation(len(rows))]
    expected, found = (audited(read_judgments(pa.Table.from_pylist(some))) for some in (rows, other))
    assert found == approximately(expected)


@settings(max_examples=10, deadline=None)
@given(seed=st.integers(0, 1000))
def test_without_order_the_sides_are_the_orders(seed: int) -> None:
    rows = random_rows(seed, 3)
    plain = [turned(row) if row["order"] == "ba" else row for row in rows]
    without = [{name: value for name, value in row.items() if name != "order"} for row in plain]
    expected, found = (audited(read_judgments(pa.Table.from_pylist(some))) for some in (rows, without))
    assert found == approximately(expected)


def approximately(value: Any) -> Any:
    """Equal but for the last digits of sums taken in another order."""
    if isinstance(value, dict):
        return {key: approximately(one) for key, one in value.items()}
    if isinstance(value, list):
        return [approximately(one) for one in value]
    return pytest.approx(value, rel=1e-9, abs=1e-12) if isinstance(value, float) else value
