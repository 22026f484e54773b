"""Scores of a query's documents as a Run, for the trained model and its peers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from anmi_ray.core.records import RUN
from anmi_ray.models.pairs import document_text
from anmi_ray.models.reranker import Reranker

SYSTEM = "reranked"


def rerank(run: pa.Table, queries: pa.Table, texts: pa.Table, model: Reranker, system: str = SYSTEM) -> pa.Table:
    """Score every (query, document) of `run` and rank by score; ties go to the better previous rank."""
    return ranked(run, model.score(*pairs_of(run, queries, texts)).astype(np.float64), system)


def pairs_of(run: pa.Table, queries: pa.Table, texts: pa.Table) -> tuple[list[str], list[str]]:
    """Return the texts of every row's query and document."""
    query_text = dict(zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True))
    document = dict(zip(texts["doc_id"].to_pylist(), document_texts(texts), strict=True))
    ids, docs = run["query_id"].to_pylist(), run["doc_id"].to_pylist()
    return [query_text[q] for q in ids], [document[d] for d in docs]


def document_texts(texts: pa.Table) -> list[str]:
    """Return the text that models read for each row of a Text table."""
    titles, bodies = texts["title"].to_pylist(), texts["text"].to_pylist()
    return [document_text(title, body) for title, body in zip(titles, bodies, strict=True)]


def ranked(run: pa.Table, score: NDArray[np.floating[Any]], system: str = SYSTEM) -> pa.Table:
    """Rank the documents of `run` (one system) by `score`, highest first; ties go to the better previous rank."""
    query = np.unique(np.array(run["query_id"].to_pylist(), dtype=object), return_inverse=True)[1]
    order = np.lexsort((run["rank"].to_numpy(), -score, query))
    first = np.flatnonzero(np.diff(query[order], prepend=-1))
    sizes = np.diff(np.append(first, len(order)))
    taken = run.take(pa.array(order))
    return RUN.table(
        {
            "query_id": taken["query_id"],
            "doc_id": taken["doc_id"],
            "system": [system] * len(order),
            "rank": (np.arange(len(order)) - np.repeat(first, sizes) + 1).astype(np.int32),
            "score": score[order].astype(np.float64),
        }
    )


def with_tail(reranked: pa.Table, run: pa.Table) -> pa.Table:
    """`reranked` followed, per query, by the documents of `run` below its depth, in their order.

    Their scores decrease by one a rank, so that sorting by score gives the same ranking.
    """
    lowest = reranked.group_by("query_id").aggregate([("score", "min"), ("rank", "max")])
    tail = run.join(lowest, "query_id", join_type="inner", use_threads=False)
    tail = tail.filter(pc.greater(tail["rank"], tail["rank_max"]))
    below = pc.subtract(tail["score_min"], pc.cast(pc.subtract(tail["rank"], tail["rank_max"]), pa.float64()))
    system = reranked["system"][0].as_py() if reranked.num_rows else ""
    columns = {name: tail[name] for name in ("query_id", "doc_id", "rank")}
    added = RUN.table({**columns, "system": [system] * tail.num_rows, "score": below})
    return pa.concat_tables([reranked, added]).sort_by([("query_id", "ascending"), ("rank", "ascending")])
