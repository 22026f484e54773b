"""The data dictionary: valid tables pass, and every invariant of every record catches what it is there for."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import ID
from anmi_ray.core.records import RECORDS, REJECT, RUN, TRUTH, by_query, rejects
from anmi_ray.core.schema import Record

Row = dict[str, Any]
Columns = dict[str, list[Any]]
NAMES = sorted(RECORDS)
NAN, INF = float("nan"), float("inf")


def an_id(number: int) -> bytes:
    return number.to_bytes(16, "big")


def valid_columns(name: str, queries: list[int]) -> Columns:
    """Columns of a valid table: `queries[i]` rows for query i, with every kind of row that a record knows."""
    rows = [_row(name, q, i, size) for q, size in enumerate(queries) for i in range(size)]
    record = RECORDS[name]
    return {column: [row[column] for row in rows] for column in record.schema.names}


def _row(name: str, q: int, i: int, size: int) -> Row:
    query, doc = an_id(1000 + q), an_id(i)
    source = ("retrieved", "added", "random")[i % 3]
    has_random = i % 2 == 0
    judgment: Row = {
        "comparison_id": an_id(100 * q + i // 2),
        "judge": "a",
        "order": ("ab", "ba")[i % 2],
        "p_a": i % 3 / 2 if i % 5 else None,
        "error": None if i % 5 else "refused",
    }
    known: Mapping[str, Row] = {
        "Document": {"doc_id": an_id(100 * q + i), "title": "" if i % 2 else "title", "text": "" if not i % 2 else "x"},
        "Query": {
            "query_id": an_id(100 * q + i),
            "text": "what",
            "text_hash": an_id(q),
            "split": ("train", "dev", "test")[q % 3],
        },
        "Qrel": {"grade": i},
        "Run": {"system": "bm25", "rank": size - i, "score": float(i)},
        "Candidate": {
            "source": source,
            "is_positive": source == "added",
            "rank": i + 1 if source == "retrieved" else None,
            "fused_score": 0.5 if source == "retrieved" else None,
            "retriever_ranks": [("bm25", i)] if source == "retrieved" else [],
            "similarity": 0.5,
        },
        "Text": {"doc_id": an_id(100 * q + i), "text_hash": an_id(i), "title": "", "text": "x"},
        "Comparison": {"comparison_id": an_id(100 * q + i), "doc_a": doc, "doc_b": an_id(i + 1), "design": "cycle"},
        "Judgment": judgment,
        "Imported": {**judgment, "doc_a": doc, "doc_b": an_id(i + 1)},
        "Answer": {
            "query_hash": query,
            "first_hash": an_id(100 * q + i),
            "second_hash": an_id(7),
            "text": None if i % 3 else "0.5",
            "error": "http 500" if i % 3 == 1 else None,
            "transient": i % 3 == 1,
            **dict.fromkeys(("log_first", "log_second", "log_tie"), -1.0 if i % 3 == 2 else None),
        },
        "Truth": {"latent": -1.5},
        "Rating": {"rating_elo": 1.0, "std_err_elo": 2.0, "latent": i - (size - 1) / 2, "games": 3.0, "component": 0},
        "Fit": {
            "query_id": an_id(100 * q + i),
            "estimate": ("mean", "mode")[i % 2],
            "triads": i,
            "cycle_rate": 0.25 if i else None,
        },
        "Gap": {"anchor_id": an_id(500), "anchor_kind": ("known", "top-rated")[i % 2]},
        "Relevance": {
            "probability": 0.25,
            "by_judges": 0.125,
            "answer": None if i % 2 else 0.5,
            "may_anchor": i % 2 == 0,
        },
        "Example": {
            "example_id": doc,
            "doc_ids": [an_id(1), an_id(2)],
            "ratings": [10.0, None if has_random else 5.0],
            "weights": [1.0, 0.5],
            "categories": ["anchor", "random" if has_random else "soft"],
            "tiers": [0, 1],
            "gaps": [0.0, None],
            "rating_errors": [40.0, None if has_random else 30.0],
            "gap_errors": [0.0, None],
        },
        "Metric": {"system": f"system {i}", "measure": "nDCG@10", "value": 0.5},
        "Prediction": {
            "model": ("binary", "ternary", "two-head")[i % 3],
            "target": ("binary", "ternary", "two-head")[i % 3],
            "step": 100 * (i // 3),
            "comparison_id": an_id(100 * q),
            "score": 0.5 if q % 2 else 1.0,
            **({} if i % 3 == 2 else {"p_a": 0.25, "p_b": 0.75 - i % 3 / 2, "p_tie": i % 3 / 2}),
            **(dict.fromkeys(("p_a", "p_b", "p_tie")) if i % 3 == 2 else dict.fromkeys(("mean", "decided"))),
        },
        "Reject": {"place": "rate", "key": "k", "reason": "alone", "detail": ""},
    }
    defaults: Row = {"query_id": query, "doc_id": doc, "external_id": "e"}
    plain = {pa.int32(): 0, pa.int64(): 0, pa.float64(): 0.5, pa.bool_(): True, pa.string(): "x"}
    row = {field.name: plain.get(field.type) for field in RECORDS[name].schema}
    return {**row, **{key: value for key, value in defaults.items() if key in row}, **known[name]}


def build(name: str, columns: Mapping[str, Any]) -> pa.Table:
    return RECORDS[name].table(columns)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=15, deadline=None)
@given(queries=st.lists(st.integers(0, 7), max_size=4), cut=st.integers(0, 20))
@example(queries=[], cut=0)
def test_valid_tables_pass(name: str, queries: list[int], cut: int) -> None:
    record, table = RECORDS[name], build(name, valid_columns(name, queries))
    assert record.check(table, "here") is table
    chunked = pa.concat_tables([table.slice(0, cut), table.slice(cut)])
    assert record.check(chunked, "here") is chunked


@pytest.mark.parametrize("name", NAMES)
def test_names_and_keys_are_of_the_schema(name: str) -> None:
    record = RECORDS[name]
    assert record.name == name
    assert set(record.key) <= set(record.schema.names)
    assert not any(record.schema.field(column).nullable for column in record.key)
    assert record.version >= 1


# --- the shape of a table ----------------------------------------------------------------------------------------


def refused(record: Record, table: pa.Table) -> str:
    with pytest.raises(DataError) as caught:
        record.check(table, "some place")
    assert caught.value.place == "some place"
    assert caught.value.remedy == "recompute the stage that wrote it"
    assert record.name in caught.value.message
    return caught.value.message


@pytest.mark.parametrize("name", NAMES)
def test_columns_that_differ_from_the_schema(name: str) -> None:
    """In order, number, type, or by a null where none is allowed."""
    record = RECORDS[name]
    columns = valid_columns(name, [3])
    table = build(name, columns)
    dates = pa.array([datetime.date(2020, 1, 1)] * 3)
    assert "must have" in refused(record, table.select(record.schema.names[::-1]))
    refused(record, table.append_column("more", dates))
    for at, field in enumerate(record.schema):
        refused(record, table.drop_columns([field.name]))
        assert "date32" in refused(record, table.set_column(at, field.name, dates))
        if not field.nullable:  # else an invariant decides whether a null fits the others
            missing = {**columns, field.name: [*columns[field.name][:-1], None]}
            assert f"{name}.{field.name} holds nulls" in refused(record, build(name, missing))


@pytest.mark.parametrize("name", [name for name in NAMES if RECORDS[name].key])
def test_a_key_twice(name: str) -> None:
    """The key as a whole: rows that share a part of it are another matter."""
    record, columns = RECORDS[name], valid_columns(name, [4])
    for column in record.key:
        columns[column] = [*columns[column][:-1], columns[column][0]]
    assert f"1 rows repeat a key ({', '.join(record.key)})" in refused(record, build(name, columns))


# --- the invariants ----------------------------------------------------------------------------------------------

Change = Callable[[Columns], None]


def put(**values: Any) -> Change:
    """Change the first row."""

    def change(columns: Columns) -> None:
        for column, value in values.items():
            columns[column][0] = value

    return change


def not_finite(name: str, *columns: str) -> list[tuple[str, str, Change]]:
    return [
        (name, f"{column} holds values that are not finite", put(**{column: value}))
        for column in columns
        for value in (NAN, INF, -INF)
    ]


VIOLATIONS: list[tuple[str, str, Change]] = [
    ("Document", "1 rows: empty text", put(title="", text="")),
    ("Query", "split must be one of", put(split="valid")),
    ("Query", "1 query texts are in more than one split", put(split="test")),
    ("Run", "1 rankings whose ranks are not 1..n", put(rank=0)),
    ("Run", "1 rankings whose ranks are not 1..n", put(rank=1)),
    ("Run", "1 rankings whose ranks are not 1..n", put(rank=7)),
    ("Run", "rankings whose ranks are not 1..n", put(system="other")),
    *not_finite("Run", "score"),
    ("Candidate", "source must be one of", put(source="found")),
    ("Candidate", "ranked are the retrieved", put(source="random")),
    ("Candidate", "ranked are the retrieved", put(rank=None, fused_score=None)),
    ("Candidate", "a rank or a fused score alone", put(fused_score=None)),
    ("Candidate", "added but not a known positive", put(source="added", rank=None, fused_score=None)),
    ("Candidate", "a random positive", put(source="random", rank=None, fused_score=None, is_positive=True)),
    *not_finite("Candidate", "similarity", "fused_score"),
    ("Comparison", "1 pairs are not stored with doc_a < doc_b", put(doc_a=an_id(1))),
    ("Comparison", "1 pairs are not stored with doc_a < doc_b", put(doc_a=an_id(2))),
    ("Judgment", "order must be one of ab, ba", put(order="AB")),
    ("Judgment", "p_a outside [0.0, 1.0]", put(p_a=1.0000001, error=None)),
    ("Judgment", "p_a outside [0.0, 1.0]", put(p_a=-1e-9, error=None)),
    ("Judgment", "p_a outside [0.0, 1.0]", put(p_a=NAN, error=None)),
    ("Judgment", "exactly one of p_a and error", put(p_a=0.5, error="refused")),
    ("Judgment", "exactly one of p_a and error", put(p_a=None, error=None)),
    ("Imported", "1 pairs are not stored with doc_a < doc_b", put(doc_a=an_id(1))),
    ("Imported", "order must be one of ab, ba", put(order="first")),
    ("Imported", "p_a outside [0.0, 1.0]", put(p_a=1.5, error=None)),
    ("Imported", "exactly one of p_a and error", put(p_a=None, error=None)),
    ("Answer", "an answer or an error, not both", put(text=None, log_first=None)),
    ("Answer", "an answer or an error, not both", put(text="1", error="http 500", transient=False)),
    ("Answer", "1 rows: transient but no error", put(text="1", error=None, transient=True)),
    *not_finite("Answer", "dollars", "seconds"),
    *not_finite("Truth", "latent"),
    *not_finite("Rating", "rating_elo", "std_err_elo", "games"),
    *not_finite("Rating", "latent"),
    ("Rating", "have mean", put(latent=-1.5 + 1e-5)),
    ("Rating", "have mean", put(component=1)),
    *not_finite("Fit", "gradient_norm", "deviance", "spread_elo"),
    ("Fit", "estimate must be one of mean, mode", put(estimate="median")),
    ("Fit", "1 rows: cycle_rate outside [0.0, 1.0]", put(triads=1, cycle_rate=1.5)),
    ("Fit", "1 rows: a cycle rate without triads", put(triads=0, cycle_rate=0.5)),
    ("Fit", "1 rows: a cycle rate without triads", put(triads=3, cycle_rate=None)),
    *not_finite("Gap", "gap_elo", "gap_se_elo"),
    ("Gap", "anchor_kind must be one of", put(anchor_kind="guessed")),
    ("Relevance", "probability outside [0.0, 1.0]", put(probability=1.5)),
    ("Relevance", "by_judges outside [0.0, 1.0]", put(by_judges=-1e-9)),
    ("Relevance", "answer outside [0.0, 1.0]", put(answer=-0.5)),
    *[
        ("Example", "differ in length", put(**{name: [value]}))
        for name, value in {
            "doc_ids": an_id(1),
            "ratings": 1.0,
            "weights": 1.0,
            "categories": "anchor",
            "tiers": 0,
            "gaps": 0.0,
            "gap_errors": 0.0,
            "rating_errors": 0.0,
        }.items()
    ],
    ("Example", "does not start with its anchor", put(categories=["random", "anchor"])),
    ("Example", "does not start with its anchor", put(categories=[None, "random"])),
    (
        "Example",
        "does not start with its anchor",
        put(doc_ids=[], ratings=[], weights=[], categories=[], tiers=[], gaps=[], gap_errors=[], rating_errors=[]),
    ),
    ("Example", "an anchor's weight is not 1", put(weights=[0.9, 1.0])),
    ("Example", "an anchor's weight is not 1", put(weights=[None, 1.0])),
    ("Example", "weights must be finite", put(weights=[1.0, NAN])),
    ("Example", "weights must be finite", put(weights=[1.0, None])),
    ("Example", "random documents, and only they, have no rating", put(ratings=[10.0, 5.0])),
    ("Example", "random documents, and only they, have no rating", put(ratings=[None, None])),
    ("Example", "a rating without its error", put(rating_errors=[None, None])),
    ("Example", "an error without a rating", put(rating_errors=[40.0, 40.0])),
    *not_finite("Example", "rating_mean", "rating_sd"),
    *not_finite("Metric", "value"),
    ("Prediction", "target must be one of binary, ternary, two-head", put(target="trinary")),
    ("Prediction", "1 rows: a step below 0", put(step=-1)),
    *[
        ("Prediction", f"1 rows: {column} outside [0.0, 1.0]", put(**{column: value}))
        for column in ("score", "p_a", "p_b", "p_tie", "mean", "decided")
        for value in (NAN, -0.1, 1.1)
    ],
    *[("Prediction", "1 rows: must have p_a, p_b", put(**{name: None})) for name in ("p_a", "p_b", "p_tie")],
    *[("Prediction", "1 rows: must have p_a, p_b", put(**{name: 0.5})) for name in ("mean", "decided", "p_a")],
    ("Prediction", "1 rows: must have p_a, p_b", put(target="two-head")),
    ("Prediction", "1 rows: must have p_a, p_b", put(target="two-head", mean=0.5, decided=0.5)),
    ("Prediction", "1 rows: a binary tie", put(p_a=0.0, p_tie=0.25)),
    ("Prediction", "1 values of comparison_id have more than one score", put(score=0.75)),
    ("Prediction", "1 values of comparison_id have more than one query_id", put(query_id=an_id(1))),
    ("Prediction", "1 values of model have more than one target", put(model="ternary", step=7)),
]


@pytest.mark.parametrize(("name", "problem", "change"), VIOLATIONS)
def test_a_violation_is_caught(name: str, problem: str, change: Change) -> None:
    columns = valid_columns(name, [4, 1])
    record = RECORDS[name]
    record.check(build(name, columns), "valid")
    change(columns)
    assert problem in refused(record, build(name, columns))


@pytest.mark.parametrize(("name", "number"), [(n, i) for n in NAMES for i in range(len(RECORDS[n].invariants))])
def test_every_invariant_catches_something(name: str, number: int) -> None:
    """None is vacuous (of some violation it is the first to object), none objects to valid or empty tables."""
    invariants = RECORDS[name].invariants
    assert invariants[number](build(name, valid_columns(name, [4, 1]))) is None
    assert invariants[number](RECORDS[name].empty()) is None
    first = set()
    for other, _, change in VIOLATIONS:
        if other == name:
            columns = valid_columns(name, [4, 1])
            change(columns)
            table = build(name, columns)
            first.add(next(i for i, invariant in enumerate(invariants) if invariant(table)))
    assert number in first


@given(st.binary(min_size=16, max_size=16), st.binary(min_size=16, max_size=16))
def test_pairs_are_ordered_as_bytes(a: bytes, b: bytes) -> None:
    columns = {**valid_columns("Comparison", [1]), "doc_a": [a], "doc_b": [b]}
    (ordered,) = RECORDS["Comparison"].invariants
    assert (ordered(build("Comparison", columns)) is None) == (a < b)


# --- building tables ---------------------------------------------------------------------------------------------


def test_table_takes_arrays_of_every_kind() -> None:
    ids = np.arange(32, dtype=np.uint8).reshape(2, 16)
    want = [row.tobytes() for row in ids]
    for column in (
        ids,
        np.asfortranarray(ids),
        want,
        pa.array(want, ID),
        pa.array(want),
        pa.chunked_array([want[:1], want[1:]]),
    ):
        table = TRUTH.table({"query_id": column, "doc_id": want, "latent": np.array([1, 2])})
        assert table.schema.equals(TRUTH.schema)
        assert table["query_id"].to_pylist() == want


@pytest.mark.parametrize("shape", [(2, 8), (16,), (2, 32), (1, 2, 16)])
def test_ids_of_another_width(shape: tuple[int, ...]) -> None:
    """An id matrix of another shape would be read beyond its end."""
    with pytest.raises(AssertionError, match="ids must be uint8"):
        TRUTH.table({"query_id": np.zeros(shape, dtype=np.uint8), "doc_id": [], "latent": []})


def test_rejects_builds_rows() -> None:
    table = rejects("rate", [("k", "alone", "no comparison")] * 2)  # rejects may repeat
    assert (
        REJECT.check(table, "here").to_pylist()
        == [{"place": "rate", "key": "k", "reason": "alone", "detail": "no comparison"}] * 2
    )
    assert rejects("rate", []).num_rows == 0


# --- by_query ----------------------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 5), max_size=40), st.integers(0, 40))
def test_by_query_is_a_grouping(queries: list[int], cut: int) -> None:
    """Against a plain grouping: queries in order of their id, rows in the order of the table."""
    spread = [an_id(7919 * q % 256 << 120 | q) for q in queries]  # ids whose order is not that of the numbers
    table = RUN.table(
        {
            "query_id": spread,
            "doc_id": [an_id(i) for i in range(len(queries))],
            "system": ["s"] * len(queries),
            "rank": list(range(len(queries))),
            "score": [0.0] * len(queries),
        }
    )
    expected: dict[bytes, list[Row]] = {}
    for row in table.to_pylist():
        expected.setdefault(row["query_id"], []).append(row)
    for given_table in (table, pa.concat_tables([table.slice(0, cut), table.slice(cut)])):
        made = [(query, part.to_pylist()) for query, part in by_query(given_table)]
        assert made == sorted(expected.items())
