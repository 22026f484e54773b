"""Preferences of somebody's own file as a judge: rows become Imported records, and those answer comparisons.

A file is read in batches; what batches cannot know of each other (repeated rows) is settled where their rows meet.
Letters: N rows, P comparisons.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core.records import IMPORTED, REJECT, find_rows
from anmi_ray.judging.imported import REPEATED, read_judgments
from anmi_ray.judging.protocol import Answers, AnswerSource, Order, Questions
from anmi_ray.tables.rows import Rows

NOT_IN_FILE = "not in the file"


def imported_rows(rows: Rows) -> tuple[pa.Table, pa.Table]:
    """(Imported rows in the order in which they stand in the table, Rejects). DataError: see `read_judgments`."""
    found = read_judgments(rows)
    judgments = found.judgments
    pair = found.comparisons.take(
        pc.index_in(
            judgments["comparison_id"].combine_chunks(), value_set=found.comparisons["comparison_id"].combine_chunks()
        )
    )
    sides = [rows.text(name).take(pa.array(found.source)) for name in ("query_id", "doc_a", "doc_b")]
    key = pc.binary_join_element_wise(pc.binary_join_element_wise(sides[0], sides[1], ": "), sides[2], ", ")
    columns = {name: pair[name] for name in ("doc_a", "doc_b", "round")}
    columns |= {name: judgments[name] for name in judgments.column_names}
    table = IMPORTED.table({**columns, "place": rows.places(found.source), "key": key})
    return table.take(pa.array(np.argsort(found.source, kind="stable"))), found.rejects


def refused(rows: pa.Table, reason: str) -> pa.Table:
    """Imported rows as Rejects."""
    count = rows.num_rows
    return REJECT.table(
        {"place": rows["place"], "key": rows["key"], "reason": [reason] * count, "detail": [""] * count}
    )


def once(rows: pa.Table) -> tuple[pa.Table, pa.Table]:
    """(the first Imported row of every comparison, judge and order, Rejects of those that repeat one)."""
    number = pa.array(np.arange(rows.num_rows))
    keys = ["comparison_id", "judge", "order"]
    first = rows.select(keys).append_column("row", number).group_by(keys, use_threads=False).aggregate([("row", "min")])
    kept = pc.is_in(number, value_set=first["row_min"].combine_chunks())
    return rows.filter(kept), refused(rows.filter(pc.invert(kept)), REPEATED)


def judge_of(rows: pa.Table, judge: str) -> AnswerSource:
    """The judge that gave the Imported rows of its name: what it did not answer is a failure, NOT_IN_FILE."""
    mine = rows.filter(pc.equal(rows["judge"], judge))

    def ask(asked: Questions, order: Order) -> Answers:
        held = mine.filter(pc.equal(mine["order"], order))
        row = find_rows(held, {"comparison_id": asked.table["comparison_id"]})
        p_a = np.append(held["p_a"].to_numpy(), np.nan)
        errors = pa.concat_arrays([held["error"].combine_chunks(), pa.array([NOT_IN_FILE])]).dictionary_encode()
        failure = pc.fill_null(errors.indices, -1).to_numpy(zero_copy_only=False).astype(np.int64)
        return Answers(p_a[row], failure[row], tuple(errors.dictionary.to_pylist()))

    return ask
