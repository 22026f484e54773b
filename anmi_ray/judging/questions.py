"""Questions to text judges: which of two documents, shown in this order, answers a query better.

Direct questions are about one document: does it answer the query? A placeholder with a fixed text and hash replaces the
second document. A question is identified by the hashes of its three texts, so equal texts share answers across runs.
Questions are sorted by query, first and second document, so prompts with a common prefix are adjacent; both orders of a
pair are two questions. A chunk is a range of whole queries.
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
_NO_TEXT = digest("nothing")  # hash of the placeholder
Admit = Callable[[list[Rows], bool], tuple[int, bool]]  # (queries, patient) -> a budget's Admission
_WAIT_S = 0.25
PATIENCE_S = 30.0
AT_ONCE = 256  # answers published together; a process that dies loses at most these


@dataclass(frozen=True)
class TextQuestions:
    """The distinct questions of a bucket.

    queries, texts: Query and Text rows.
    query, first, second: int64[N], rows of them.
    ids: uint8[N, 16], `mix_ids` of the texts' hashes.
    of_comparison: int64[P, 2], the question of each comparison, sorted by (query_id, comparison_id), in the orders ab
        and ba; -1 if that order is not asked.
    documents: number shown; direct questions (1) have one order.
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
        """Return the columns query_hash, first_hash and second_hash of the questions `which`."""
        texts = self.texts["text_hash"].combine_chunks()
        return {
            "query_hash": self.queries["text_hash"].combine_chunks().take(pa.array(self.query[which])),
            "first_hash": texts.take(pa.array(self.first[which])),
            "second_hash": texts.take(pa.array(self.second[which])),
        }

    def chunks(self, size: int) -> list[tuple[int, int]]:
        """Return ranges of whole queries, of at most `size` questions unless one query has more."""
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
    """Return the questions of a bucket's Comparisons. Raises DataError if a text is missing.

    `orders` as in JudgeConfig.
    """
    return _questions(comparisons, queries, texts, 2, orders == "one")


def direct_questions(comparisons: pa.Table, queries: pa.Table, texts: pa.Table) -> TextQuestions:
    """Return direct questions: for Comparisons with `identity.NOTHING`, whether doc_a answers the query."""
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
            f"missing texts of {missing[0]} queries and {missing[1] + missing[2]} compared documents",
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
    """Yield whole queries, at least `size` questions at a time, while `admit` admits them.

    lacking: returns the questions of a query that are still unanswered; others are left out.
    If a group is admitted in part, that part is a slice and the rest waits. After `patience_s` without an admission,
    waiting ends, since the actor whose answers it waits for may have died.
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
