"""Import existing answers: checked rows become Judgment and Comparison records, or the answers of a judge.

A file is read in batches; rows repeated across batches are rejected when batches are merged.
Letters: N rows, C comparisons (a pair of documents of a query, in a round).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core import identity
from anmi_ray.core.records import COMPARISON, IMPORTED, JUDGMENT, REJECT, find_rows
from anmi_ray.judging.audit.intervals import Reals
from anmi_ray.judging.protocol import ORDERS, Answers, AnswerSource, Order, Questions
from anmi_ray.tables.preferences import ANSWERS, PreferenceRows, check_preferences
from anmi_ray.tables.rows import Flags, Longs, Refusals, Rows

NOT_IN_FILE = "not in the file"
REPEATED = "repeated: an earlier row has its query, documents, judge, order and round"
_DESIGN = "imported"
_QUESTION = ("comparison_id", "judge", "order")


@dataclass(frozen=True)
class Imported(Refusals):
    """Imported records: rows = judgments.num_rows + rejects.num_rows; comparisons sorted by (query_id, comparison_id).

    log_length: float64[C], ln(length of doc_a / length of doc_b) with the record's doc_a, NaN if unknown.
    """

    judgments: pa.Table
    comparisons: pa.Table
    log_length: Reals


def read_judgments(source: pa.Table | Rows | PreferenceRows) -> Imported:
    """Read a table of answers: query_id, doc_a, doc_b, preference, and optionally judge, order, error, round, length_a
    and length_b; see `tables.preferences`.

    Rejects also rows (including failures) that repeat the query, documents, judge, order and round of an earlier one.
    Raises DataError if a column is missing or has the wrong type.
    """
    rows = source if isinstance(source, PreferenceRows) else check_preferences(source, ANSWERS)
    answers, swapped = _answers(rows)
    first = _first(answers)
    kept = np.flatnonzero(first)
    repeated = rows.refuse(np.flatnonzero(~first), REPEATED)
    answers = answers.take(pa.array(kept))
    log_length = np.where(swapped, -rows.log_length, rows.log_length)[kept]
    ids = answers["comparison_id"].combine_chunks().dictionary_encode()
    pair = ids.indices.to_numpy()
    head = answers.take(pa.array(np.unique(pair, return_index=True)[1]))
    order = identity.id_order(identity.id_matrix(head["query_id"]), identity.id_matrix(head["comparison_id"]))
    head = head.take(pa.array(order))
    columns = {name: head[name] for name in ("comparison_id", "query_id", "doc_a", "doc_b", "round")}
    comparisons = COMPARISON.table({**columns, "design": pa.repeat(pa.scalar(_DESIGN), len(order))})
    place = np.argsort(order)
    names = pc.unique(answers["judge"]).sort()
    judge = pc.index_in(answers["judge"], value_set=names).to_numpy()
    second = pc.equal(answers["order"], ORDERS[1]).to_numpy()
    sort = np.lexsort((second, judge, place[pair]))
    judgments = JUDGMENT.table({name: answers[name].take(pa.array(sort)) for name in JUDGMENT.schema.names})
    known = ~np.isnan(log_length)
    total = np.bincount(place[pair[known]], log_length[known], len(order))
    times = np.bincount(place[pair[known]], minlength=len(order))
    mean = np.where(times > 0, total / np.maximum(times, 1), np.nan)
    rejects = pa.concat_tables([rows.rejects, repeated])
    return Imported(rows.place, rows.rows, rejects, judgments, comparisons, mean, stripped=rows.stripped)


def imported_rows(rows: PreferenceRows) -> pa.Table:
    """Return Imported rows in the order of reading."""
    answers, _ = _answers(rows)
    columns = {name: answers[name] for name in answers.column_names}
    return IMPORTED.table({**columns, "place": rows.places(), "key": rows.keys()})


def refused(rows: pa.Table, reason: str) -> pa.Table:
    """Return Imported rows as Rejects."""
    count = rows.num_rows
    return REJECT.table(
        {"place": rows["place"], "key": rows["key"], "reason": [reason] * count, "detail": [""] * count}
    )


def once(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """Return the first Imported row of each comparison, judge and order, and Rejects of repeated ones."""
    first = pa.array(_first(rows))
    return rows.filter(first), refused(rows.filter(pc.invert(first)), REPEATED)


def judge_of(rows: pa.Table, judge: str) -> AnswerSource:
    """Return the answers of a judge in Imported rows; missing ones are failures, NOT_IN_FILE."""
    mine = rows.filter(pc.equal(rows["judge"], judge))

    def ask(asked: Questions, order: Order) -> Answers:
        held = mine.filter(pc.equal(mine["order"], order))
        row = find_rows(held, {"comparison_id": asked.table["comparison_id"]})
        p_a = np.append(held["p_a"].to_numpy(), np.nan)
        errors = pa.concat_arrays([held["error"].combine_chunks(), pa.array([NOT_IN_FILE])]).dictionary_encode()
        failure = pc.fill_null(errors.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Answers(p_a[row], failure[row], tuple(errors.dictionary.to_pylist()))

    return ask


def _first(answers: pa.Table) -> Flags:
    """Return which rows are the first of their comparison, judge and order."""
    numbered = answers.select(_QUESTION).append_column("row", pa.array(np.arange(answers.num_rows)))
    firsts = numbered.group_by(list(_QUESTION), use_threads=False).aggregate([("row", "min")])["row_min"]
    flags = np.zeros(answers.num_rows, np.bool_)
    flags[firsts.to_numpy()] = True
    return flags


def _answers(rows: PreferenceRows) -> tuple[pa.Table, Flags]:
    """Return columns of Judgment and Comparison per row, with the smaller id as doc_a, and which rows were swapped."""
    query = _hashed(rows.query, identity.query_id)
    ends = _hashed(pa.concat_arrays([rows.doc_a, rows.doc_b]), identity.doc_id)
    count = len(rows.number)
    a = ends[:count]
    b = ends[count:]
    swap = _before(b, a)
    sides = [query, np.where(swap[:, None], b, a), np.where(swap[:, None], a, b)]
    p_a = np.where(swap, 1.0 - rows.preference, rows.preference)
    answers = pa.table(
        {
            "comparison_id": _comparison_ids(sides, rows.round),
            "query_id": identity.id_column(sides[0]),
            "doc_a": identity.id_column(sides[1]),
            "doc_b": identity.id_column(sides[2]),
            "round": rows.round.astype(np.int32),
            "judge": rows.judge,
            "order": pa.array(np.where((rows.shown > 0) ^ swap, *ORDERS), pa.string()),
            "p_a": pa.array(p_a, mask=rows.error.is_valid().to_numpy(zero_copy_only=False)),
            "error": rows.error,
        }
    )
    return answers, swap


def _hashed(column: pa.Array, hashed: Callable[[str], bytes]) -> NDArray[np.uint8]:
    """Return the id of each value, uint8[N, 16]; distinct values are hashed once."""
    encoded = column.dictionary_encode()
    ids = identity.id_matrix(identity.id_array([hashed(name) for name in encoded.dictionary.to_pylist()]))
    return ids[encoded.indices.to_numpy()]


def _before(left: NDArray[np.uint8], right: NDArray[np.uint8]) -> Flags:
    """Return whether ids (uint8[N, 16]) sort before others, bool[N]."""
    x = np.ascontiguousarray(left).view(">u8")
    y = np.ascontiguousarray(right).view(">u8")
    return (x[:, 0] < y[:, 0]) | ((x[:, 0] == y[:, 0]) & (x[:, 1] < y[:, 1]))


def _comparison_ids(sides: list[NDArray[np.uint8]], round_: Longs) -> pa.Array:
    """Return the comparison id of each row; distinct comparisons are hashed once."""
    key = np.hstack([*sides, round_.astype(">i8").view(np.uint8).reshape(-1, 8)])
    names = pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(key.shape[1]), len(key), [None, pa.py_buffer(np.ascontiguousarray(key))]
    ).dictionary_encode()
    heads = np.unique(names.indices.to_numpy(), return_index=True)[1]
    columns = (*([row.tobytes() for row in side[heads]] for side in sides), round_[heads].tolist())
    ids = identity.id_array([identity.comparison_id(*name) for name in zip(*columns, strict=True)])
    return ids.take(names.indices)
