"""Answers that somebody has already: a table of them becomes Judgment and Comparison records, row by row checked.

Letters: N rows of the table, C comparisons (a pair of documents under a query, in a round).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core import identity
from anmi_ray.core.records import COMPARISON, JUDGMENT
from anmi_ray.judging.audit.agreement import Reals
from anmi_ray.judging.protocol import ORDERS
from anmi_ray.tables.rows import Flags, Longs, Numbers, Refusals, Rows, pair_checks, preference_checks, verdict

TEXTS = ("query_id", "doc_a", "doc_b", "judge", "order", "error")
NUMBERS = ("preference", "round", "length_a", "length_b")
_NEEDED = ("query_id", "doc_a", "doc_b", "preference")
_LENGTHS = ("length_a", "length_b")
REPEATED = "repeated: an earlier row has its query, documents, judge, order and round"
_DESIGN = "imported"


@dataclass(frozen=True)
class Imported(Refusals):
    """rows = judgments.num_rows + rejects.num_rows; comparisons are sorted by (query_id, comparison_id).

    log_length float64[C] is ln(length of doc_a / length of doc_b), NaN where no row tells; doc_a is the record's.
    """

    judgments: pa.Table
    comparisons: pa.Table
    log_length: Reals
    source: Longs


@dataclass(frozen=True)
class _Columns:
    """The table's rows as ranks and numbers: int64[N] query, a, b (of the ids' hashes), judge, round; first bool[N].

    first: doc_a was shown first; preference NaN where the judge failed, and `error` says how.
    """

    query: Longs
    a: Longs
    b: Longs
    judge: Longs
    round: Longs
    first: Flags
    preference: Reals
    log_length: Reals
    error: pa.Array

    def take(self, rows: Longs) -> _Columns:
        columns = {name: value[rows] for name, value in vars(self).items() if name != "error"}
        return _Columns(**columns, error=self.error.take(pa.array(rows)))


def read_judgments(source: pa.Table | Rows) -> Imported:
    """Check a table: query_id, doc_a, doc_b, preference, and [judge] [order] [error] [round] [length_a, length_b].

    preference in [0, 1] is of doc_a. order is ab where doc_a was shown first, else ba; without the column doc_a was. A
    row with an error is a failure, whatever its preference. round is a whole number that tells apart what was asked
    again. Lengths, in any unit, may be empty. Refused with reason and place: documents missing or compared with
    themselves; a preference that is missing, no number or outside [0, 1]; another order; a round that is no whole
    number; a length that is not above 0; and what repeats an earlier row of its query, documents, judge, order and
    round, failures included. DataError: a column is missing or of a type that cannot hold such values.
    """
    rows = source if isinstance(source, Rows) else Rows(source)
    given = set(rows.columns) & set(_LENGTHS)
    rows.need((*_NEEDED, *(_LENGTHS if given else ())), (*TEXTS, *NUMBERS))
    query, a, b = (rows.text(name) for name in _NEEDED[:3])
    error = _error(rows)
    asked, order_checks = _order(rows)
    round_, round_checks = _round(rows)
    preference = rows.number("preference")
    failed = error.is_valid().to_numpy(zero_copy_only=False)
    judged = {why: flags & ~failed for why, flags in preference_checks(preference).items()}
    log_length, length_checks = _log_length(rows)
    checks = pair_checks(query, a, b) | order_checks | round_checks | judged | length_checks
    code = verdict(checks)

    good = np.flatnonzero(code == 0)
    queries, query_rank = _hashed(query.take(pa.array(good)), identity.query_id)
    documents, ranks = _hashed(pa.concat_arrays([a.take(pa.array(good)), b.take(pa.array(good))]), identity.doc_id)
    judges, judge_rank = _judges(rows, good)
    columns = _Columns(
        query_rank, ranks[: len(good)], ranks[len(good) :], judge_rank, round_[good], asked[good],
        np.where(failed, np.nan, preference[0])[good], log_length[good], error.take(pa.array(good)),
    )  # fmt: skip
    columns, kept = _once(_oriented(columns))
    again = np.zeros(len(code), np.bool_)
    again[np.delete(good, kept)] = True
    checks[REPEATED] = again
    code[again] = len(checks)
    rejects = rows.rejects(checks, code, (query, a, b), (*NUMBERS, "order"))
    count = rows.table.num_rows + rows.refused.num_rows
    judgments, comparisons, log_length, sort = _records(columns, queries, documents, judges)
    return Imported(rows.place, count, rejects, judgments, comparisons, log_length, good[kept][sort])


def _error(rows: Rows) -> pa.Array:
    """What went wrong, null where nothing did."""
    if "error" not in rows.table.column_names:
        return pa.nulls(rows.table.num_rows, pa.string())
    text = pc.utf8_trim_whitespace(rows.text("error"))
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, pa.string()), text)


def _order(rows: Rows) -> tuple[Flags, dict[str, Flags]]:
    """Whether doc_a was shown first, and what refuses."""
    if "order" not in rows.table.column_names:
        return np.ones(rows.table.num_rows, np.bool_), {}
    order = rows.text("order")
    unknown = pc.invert(pc.is_in(order, value_set=pa.array([*ORDERS, None], pa.string())))
    checks = {
        "order missing": order.is_null().to_numpy(zero_copy_only=False),
        "order neither ab nor ba": unknown.to_numpy(zero_copy_only=False),
    }
    return pc.fill_null(pc.equal(order, ORDERS[0]), False).to_numpy(zero_copy_only=False), checks


def _round(rows: Rows) -> tuple[Longs, dict[str, Flags]]:
    if "round" not in rows.table.column_names:
        return np.zeros(rows.table.num_rows, np.int64), {}
    value, _ = rows.number("round")
    whole = (np.abs(value) < 2**31) & (value == np.round(value))  # NaN is not
    return np.where(whole, value, 0.0).astype(np.int64), {"round no whole number": ~whole}


def _log_length(rows: Rows) -> tuple[Reals, dict[str, Flags]]:
    """ln(length_a / length_b), NaN where one is not given, and what refuses."""
    if _LENGTHS[0] not in rows.table.column_names:
        return np.full(rows.table.num_rows, np.nan), {}
    found: dict[str, Numbers] = {name: rows.number(name) for name in _LENGTHS}
    checks: dict[str, Flags] = {}
    for name, (value, wrong) in found.items():
        bad = ~((value > 0.0) & (value < np.inf)) & ~wrong["missing"]
        checks[f"{name} no number above 0"] = bad
    a, b = (np.where(checks[f"{name} no number above 0"], np.nan, value) for name, (value, _) in found.items())
    return np.log(a) - np.log(b), checks


def _hashed(column: pa.Array, hashed: object) -> tuple[NDArray[np.uint8], Longs]:
    """The ids of a column's values, uint8[V, 16] in their own order, and the rank of each row's."""
    encoded = column.dictionary_encode()
    ids = [hashed(name) for name in encoded.dictionary.to_pylist()]  # type: ignore[operator]
    order = sorted(range(len(ids)), key=ids.__getitem__)
    rank = np.empty(len(ids), np.int64)
    rank[order] = np.arange(len(ids))
    matrix = identity.id_matrix(identity.id_array(ids[i] for i in order))
    return matrix, rank[encoded.indices.to_numpy()]


def _judges(rows: Rows, good: Longs) -> tuple[pa.Array, Longs]:
    """Names of the judges, sorted, and each good row's; one without a name where there is no column."""
    if "judge" not in rows.table.column_names:
        return pa.array([""], pa.string()), np.zeros(len(good), np.int64)
    judge = pc.fill_null(rows.text("judge"), "").take(pa.array(good))
    names = pc.unique(judge).sort()
    return names, pc.index_in(judge, value_set=names).to_numpy(zero_copy_only=False).astype(np.int64)


def _oriented(c: _Columns) -> _Columns:
    """Every row from the side of the document with the smaller id."""
    swap = c.a > c.b
    return _Columns(
        c.query, np.minimum(c.a, c.b), np.maximum(c.a, c.b), c.judge, c.round, c.first ^ swap,
        np.where(swap, 1.0 - c.preference, c.preference), np.where(swap, -c.log_length, c.log_length), c.error,
    )  # fmt: skip


def _group(*columns: Longs) -> tuple[Longs, Longs]:
    """(first row of every distinct tuple, each row's tuple), tuples in order of their columns."""

    def join(left: Longs, right: Longs) -> Longs:
        values, code = np.unique(right, return_inverse=True)
        return np.unique(left * max(len(values), 1) + code, return_inverse=True)[1]

    _, first, inverse = np.unique(reduce(join, columns), return_index=True, return_inverse=True)
    return first, inverse


def _once(c: _Columns) -> tuple[_Columns, Longs]:
    """The first row of every question to a judge, and which those are."""
    kept = np.sort(_group(c.query, c.a, c.b, c.round, c.judge, c.first.astype(np.int64))[0])
    return c.take(kept), kept


def _records(
    c: _Columns, queries: NDArray[np.uint8], documents: NDArray[np.uint8], judges: pa.Array
) -> tuple[pa.Table, pa.Table, Reals, Longs]:
    """Judgment and Comparison tables, sorted by their ids, the comparisons' log ratios of lengths, judgments' rows."""
    head, pair = _group(c.query, c.a, c.b, c.round)
    sides = [queries[c.query[head]], documents[c.a[head]], documents[c.b[head]]]
    names = (*([row.tobytes() for row in side] for side in sides), c.round[head].tolist())
    ids = identity.id_matrix(identity.id_array(identity.comparison_id(*name) for name in zip(*names, strict=True)))
    order = identity.id_order(sides[0], ids)
    place = np.empty(len(order), np.int64)
    place[order] = np.arange(len(order))
    comparisons = COMPARISON.table(
        {
            "comparison_id": ids[order],
            "query_id": sides[0][order],
            "doc_a": sides[1][order],
            "doc_b": sides[2][order],
            "round": c.round[head][order],
            "design": pa.repeat(pa.scalar(_DESIGN), len(order)),
        }
    )
    sort = np.lexsort((~c.first, c.judge, place[pair]))
    row, failed = c.take(sort), c.error.take(pa.array(sort)).is_valid()
    judgments = JUDGMENT.table(
        {
            "comparison_id": ids[pair[sort]],
            "query_id": queries[row.query],
            "judge": judges.take(pa.array(row.judge)),
            "order": pa.array(np.where(row.first, *ORDERS)),
            "p_a": pa.array(row.preference, mask=failed.to_numpy(zero_copy_only=False)),
            "error": row.error,
        }
    )
    known = ~np.isnan(c.log_length)
    total = np.bincount(place[pair[known]], c.log_length[known], len(order))
    times = np.bincount(place[pair[known]], minlength=len(order))
    return judgments, comparisons, np.where(times > 0, total / np.maximum(times, 1), np.nan), sort
