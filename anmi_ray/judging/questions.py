"""Questions to judges that read texts: which of two documents, shown in this order, answers a query better.

Direct questions are about one document: whether it answers the query. Nothing is in the place of the other, with a text
and a hash of its own.

A question is named by the hashes of its three texts, so documents and queries of equal text share it, and what was
bought for one run answers another. Questions stand sorted by query, first-shown and second document: prompts that begin
alike are neighbours, and both orders of a pair are two questions. A chunk is a range of whole queries.
Letters: P comparisons, N questions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import NOTHING, digest, id_column, id_matrix, id_order, mix_ids
from anmi_ray.core.records import TEXT_OF, find_rows
from anmi_ray.judging.protocol import PLACE, drawn_orders

Rows = NDArray[np.int64]
_NO_TEXT = digest("nothing")  # no document's text has it
Admit = Callable[[list[Rows], bool], tuple[int, bool]]  # of a group and whether it may be patient: a budget's Admission
_WAIT_S = 0.25
PATIENCE_S = 30.0
AT_ONCE = 256  # questions whose answers are published together: no more are lost when a process dies


@dataclass(frozen=True)
class TextQuestions:
    """The questions of a bucket, each once.

    queries: Query rows; texts: Text rows; query, first, second int64[N]: rows of them; ids uint8[N, 16] (`mix_ids` of
    the texts' hashes); of_comparison int64[P, 2]: the question of each comparison in the orders ab and ba, comparisons
    in the order of (query_id, comparison_id), -1 in an order that is not asked. documents: how many a question shows;
    direct ones (1) have one order.
    """

    queries: pa.Table
    texts: pa.Table
    query: Rows
    first: Rows
    second: Rows
    ids: NDArray[np.uint8]
    of_comparison: Rows
    documents: int = 2

    def hashes(self, which: Rows) -> dict[str, pa.Array]:
        """Columns query_hash, first_hash, second_hash of the questions `which`."""
        texts = self.texts["text_hash"].combine_chunks()
        return {
            "query_hash": self.queries["text_hash"].combine_chunks().take(pa.array(self.query[which])),
            "first_hash": texts.take(pa.array(self.first[which])),
            "second_hash": texts.take(pa.array(self.second[which])),
        }

    def chunks(self, size: int) -> list[tuple[int, int]]:
        """Ranges of questions that hold whole queries, of at most `size` questions each unless one query has more."""
        ends = np.append(np.flatnonzero(np.diff(self.query)) + 1, len(self.query))
        bounds = []
        start = 0
        for before, end in zip(np.concatenate([[0], ends[:-1]]).tolist(), ends.tolist(), strict=True):
            if end - start > size and before > start:
                bounds.append((start, before))
                start = before
        return [*bounds, (start, len(self.query))] if len(self.query) else []


def text_questions(
    comparisons: pa.Table, queries: pa.Table, texts: pa.Table, orders: Literal["both", "one"] = "both"
) -> TextQuestions:
    """The questions of a bucket's Comparisons. Raises DataError where a query's or a document's text is not there.

    `orders` as in JudgeConfig.
    """
    return _questions(comparisons, queries, texts, 2, orders == "one")


def direct_questions(comparisons: pa.Table, queries: pa.Table, texts: pa.Table) -> TextQuestions:
    """The same of Comparisons with nothing (`identity.NOTHING`): whether doc_a answers the query."""
    nothing = {"doc_id": [NOTHING], "external_id": [""], "text_hash": [_NO_TEXT], "title": [""], "text": ["nothing"]}
    return _questions(comparisons, queries, pa.concat_tables([texts, TEXT_OF.table(nothing)]), 1)


def _questions(
    comparisons: pa.Table, queries: pa.Table, texts: pa.Table, documents: int, one: bool = False
) -> TextQuestions:
    order = id_order(id_matrix(comparisons["query_id"]), id_matrix(comparisons["comparison_id"]))
    comparisons = comparisons.take(pa.array(order))
    query = find_rows(queries, {"query_id": comparisons["query_id"]})
    a, b = (find_rows(texts, {"doc_id": comparisons[name].combine_chunks()}) for name in ("doc_a", "doc_b"))
    missing = [int((rows < 0).sum()) for rows in (query, a, b)]
    if any(missing):
        raise DataError(
            f"no text of {missing[0]} queries and {missing[1] + missing[2]} documents that are compared",
            PLACE,
            "recompute the retrieve stage",
        )
    orders = ((a, b), (b, a))[:documents]
    rows = np.stack([np.tile(query, len(orders)), *(np.concatenate(sides) for sides in zip(*orders, strict=True))])
    asked = np.ones(rows.shape[1], dtype=bool)
    if one:
        asked = (drawn_orders(id_matrix(comparisons["comparison_id"])) == np.arange(documents)[:, None]).ravel()
    sort = np.lexsort((rows[2], rows[1], rows[0]))
    sort = sort[asked[sort]]
    text_hashes = id_matrix(texts["text_hash"])
    hashes = (id_matrix(queries["text_hash"])[rows[0]], text_hashes[rows[1]], text_hashes[rows[2]])
    ids = mix_ids(*hashes)[sort]
    number = id_column(ids).dictionary_encode().indices.to_numpy().astype(np.int64)  # in order of first appearance
    once = np.unique(number, return_index=True)[1]
    of_row = np.full(rows.shape[1], -1, dtype=np.int64)
    of_row[sort] = number
    kept = sort[once]
    query_row, first, second = rows[:, kept]
    of_comparison = of_row.reshape(documents, -1).T
    return TextQuestions(queries, texts, query_row, first, second, ids[once], of_comparison, documents)


def slices(
    queries: list[Rows],
    size: int,
    admit: Admit,
    patience_s: float = PATIENCE_S,
    lacking: Callable[[Rows], Rows] = lambda rows: rows,
) -> Iterator[Rows]:
    """Whole queries, at least `size` questions at a time, as long as `admit` lets a group through.

    lacking: gives those of a query's questions that nobody answered meanwhile; the others are left out.
    Where it lets through a part for now, that is a slice, and the rest waits. Whose answers it waits for may have died:
    after `patience_s` without anything let through it is no longer patient.
    """
    rest = queries[::-1]
    waited = 0.0
    while rest:
        group: list[Rows] = []
        while rest and sum(map(len, group)) < size:
            if len(wanted := lacking(rest.pop())):
                group.append(wanted)
        if not group:
            return
        admitted, over = admit(group, waited < patience_s)
        if admitted:
            waited = 0.0
            yield np.concatenate(group[:admitted])
        if over:
            return
        rest += group[admitted:][::-1]
        if not admitted:
            time.sleep(_WAIT_S)
            waited += _WAIT_S
