"""Interface of judges: vectorized functions from a bucket's questions and a presentation order to answers.

Letters: D documents of the bucket, P comparisons, J judges. p_a is the preference for doc_a in either order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import JUDGMENT, find_rows

Order = Literal["ab", "ba"]
ORDERS: tuple[Order, Order] = ("ab", "ba")
PLACE = "judge"


@dataclass(frozen=True)
class Documents:
    """The bucket's non-random candidates, sorted by (query_id, doc_id)."""

    table: pa.Table
    ids: NDArray[np.uint8]  # [D, 16], one per (query, document): the two ids xor-ed, to draw random numbers from
    query: NDArray[np.int64]  # [D], 0..Q-1
    is_positive: NDArray[np.bool_]  # [D]
    similarity: NDArray[np.float64]  # [D]


@dataclass(frozen=True)
class Questions:
    """The bucket's comparisons, sorted by (query_id, comparison_id), with both documents as rows of `documents`."""

    table: pa.Table
    ids: NDArray[np.uint8]  # [P, 16], comparison ids
    a: NDArray[np.int64]  # [P]
    b: NDArray[np.int64]  # [P], -1: nothing
    documents: Documents
    orders: tuple[Order, ...] = ORDERS  # presentation orders
    one: NDArray[np.int64] | None = None  # [P], index of the only order of each comparison; None: all orders


@dataclass(frozen=True)
class Answers:
    """One judge's answers in one order.

    p_a: float[P], NaN for failures.
    failure: int[P], index of the failure's message in `errors`, or -1.
    errors: messages.
    """

    p_a: NDArray[np.float64]
    failure: NDArray[np.int64]
    errors: tuple[str, ...] = ()


AnswerSource = Callable[[Questions, Order], Answers]  # a judge's answers from any source


def documents(candidates: pa.Table) -> Documents:
    """Return the non-random candidates in a canonical order."""
    kept = candidates.filter(pc.not_equal(candidates["source"], "random"))
    order = identity.id_order(identity.id_matrix(kept["query_id"]), identity.id_matrix(kept["doc_id"]))
    table = kept.take(pa.array(order))
    query_ids = identity.id_matrix(table["query_id"])
    doc_ids = identity.id_matrix(table["doc_id"])
    changed = np.ones(len(query_ids), dtype=np.int64)
    changed[1:] = (query_ids[1:] != query_ids[:-1]).any(axis=1)
    similarity = table["similarity"].to_numpy().astype(np.float64)
    if not np.isfinite(similarity).all():
        raise DataError("a candidate's similarity is not finite", PLACE, "recompute the retrieve stage")
    return Documents(
        table, query_ids ^ doc_ids, np.cumsum(changed) - 1, table["is_positive"].to_numpy().astype(bool), similarity
    )


def drawn_orders(comparison_ids: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Choose one of ORDERS for each comparison (ids uint8[P, 16]) by its hash, int64[P]."""
    return (identity.uniforms(comparison_ids, "order") < 0.5).astype(np.int64)


def questions(
    comparisons: pa.Table, candidates: pa.Table, direct: bool = False, orders: Literal["both", "one"] = "both"
) -> Questions:
    """Join a bucket's Comparisons to its Candidates. Raises DataError if a compared document is not a candidate.

    `direct`: comparisons are with nothing, and asked in one order. `orders` as in JudgeConfig.
    """
    order = identity.id_order(
        identity.id_matrix(comparisons["query_id"]), identity.id_matrix(comparisons["comparison_id"])
    )
    table = comparisons.take(pa.array(order))
    known = documents(candidates)
    a, b = candidate_rows(table, known.table, direct)
    ids = identity.id_matrix(table["comparison_id"])
    if direct:
        return Questions(table, ids, a, b, known, ORDERS[:1])
    return Questions(table, ids, a, b, known, one=drawn_orders(ids) if orders == "one" else None)


def candidate_rows(
    comparisons: pa.Table, candidates: pa.Table, direct: bool = False
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows int64[P] of doc_a and doc_b among Candidates; direct: doc_b is nothing, row -1.

    Raises DataError if a document is not a candidate.
    """
    a, b = document_rows(comparisons, candidates)
    if missing := int((a < 0).sum()) + (0 if direct else int((b < 0).sum())):
        raise DataError(
            f"{missing} compared documents are not candidates of their query", PLACE, "recompute the compare stage"
        )
    return a, b


def document_rows(comparisons: pa.Table, table: pa.Table) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the rows int64[P] of doc_a and doc_b in a table with query_id and doc_id, -1 if absent."""
    a, b = (
        find_rows(table, {"query_id": comparisons["query_id"], "doc_id": comparisons[name]})
        for name in ("doc_a", "doc_b")
    )
    return a, b


def answer(asked: Questions, judges: Sequence[tuple[str, AnswerSource]]) -> pa.Table:
    """Return the Judgments of all judges and orders, sorted by (query_id, comparison_id, judge, order)."""
    panel = sorted(judges, key=lambda judge: judge[0])
    slots: list[tuple[str, AnswerSource, Order]] = [
        (name, judge, order) for name, judge in panel for order in asked.orders
    ]
    answers = [judge(asked, order) for _, judge, order in slots]
    pairs = len(asked.ids)
    width = len(slots)
    p_a = np.empty((pairs, width))
    failure = np.full((pairs, width), -1, dtype=np.int64)
    messages: list[str] = []
    for slot, given in enumerate(answers):
        p_a[:, slot] = given.p_a
        failure[:, slot] = np.where(given.failure < 0, -1, given.failure + len(messages))
        messages.extend(given.errors)
    flat = failure.ravel()
    error = pa.DictionaryArray.from_arrays(pa.array(flat, mask=flat < 0), pa.array(messages or [""])).cast(pa.string())
    repeated = pa.array(np.repeat(np.arange(pairs), width))
    table = JUDGMENT.table(
        {
            "comparison_id": asked.table["comparison_id"].take(repeated),
            "query_id": asked.table["query_id"].take(repeated),
            "judge": _cycle([name for name, _, _ in slots], pairs),
            "order": _cycle([order for _, _, order in slots], pairs),
            "p_a": pa.array(p_a.ravel(), mask=flat >= 0),
            "error": error,
        }
    )
    if asked.one is None:
        return table
    return table.filter(pa.array((np.arange(width) % len(asked.orders) == asked.one[:, None]).ravel()))


def _cycle(values: Sequence[str], times: int) -> pa.Array:
    index = pa.array(np.tile(np.arange(len(values)), times))
    return pa.DictionaryArray.from_arrays(index, pa.array(values)).cast(pa.string())
