"""Queries that are documents of the collection under the same id, as in Quora and ArguAna.

Such a document answers nothing, and every system would rank it first. BEIR drops it by its id alone. Here texts decide,
since queries and documents are often both numbered from 1: a document is the query's own if it has the query's id and
repeats its text. If most documents with a query's id do, all of them count as own documents, including edited ones. If
by the grades most of them are relevant to their query, an id links a query to its answer, and only a document equal to
the query is its own.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.corpus import OwnDocument
from anmi_ray.core.arrays import rank_within
from anmi_ray.core.identity import doc_id, id_array, query_id
from anmi_ray.core.records import QREL, RUN, find_rows, rejects
from anmi_ray.core.scripts import other_words

_SAME = 0.8  # share of words that two versions of a text have in common (Dice)
_FEWEST = 3  # words with which a text must begin to repeat a shorter one
_WORD = re.compile(r"\w+")
_KEY = ["query_id", "doc_id"]
Texts = Callable[[pa.ChunkedArray, pa.ChunkedArray], tuple[pa.Table, pa.Table]]


class OwnDocuments(NamedTuple):
    """Documents with the id of a query: those that rankings leave out, and how many are kept."""

    pairs: pa.Table  # query_id, doc_id, grade 0
    kept: int

    def notice(self, setting: str = "corpus.own_document") -> str | None:
        """Return a message for the user; None if no document has the id of a query."""
        if self.pairs.num_rows:
            more = f", {self.kept:,} others with another text are kept" if self.kept else ""
            return (
                f"{self.pairs.num_rows:,} queries are documents under their own id: each ranking leaves out the "
                f"query's own document{more} ({setting})"
            )
        if self.kept:
            return (
                f"{self.kept:,} queries have the id of a document with another text, which is kept; if it is the "
                f"query itself, set {setting} to same-id"
            )
        return None


NOTHING = OwnDocuments(QREL.empty(), 0)


def with_ids_of(queries: pa.Table) -> pa.Table:
    """Return for each query (query_id, external_id) the doc_id of a document with the same id, with grade 0."""
    return QREL.table(
        {
            "query_id": queries["query_id"],
            "doc_id": id_array(map(doc_id, queries["external_id"].to_pylist())),
            "grade": [0] * queries.num_rows,
        }
    )


def find(
    queries: pa.Table, documents: Iterable[pa.Table], rule: OwnDocument, known: pa.Table | None = None
) -> OwnDocuments:
    """Find the own documents of `queries` (query_id, external_id, text) in tables of `documents` (doc_id, title, text).

    `known`: Qrels that may be used.
    """
    if rule == "keep":
        return NOTHING
    pairs = with_ids_of(queries)
    linked = rule == "same-text" and _answers(pairs, known)
    query_of = dict(zip(pairs["doc_id"].to_pylist(), range(pairs.num_rows), strict=True))
    wanted = pairs["doc_id"].combine_chunks()
    rows: list[int] = []
    same: list[bool] = []
    for table in documents:
        table = table.filter(pc.is_in(table["doc_id"], value_set=wanted))
        for doc, title, text in zip(*(table[name].to_pylist() for name in ("doc_id", "title", "text")), strict=True):
            rows.append(query_of[doc])
            query = queries["text"][rows[-1]].as_py()
            same.append(_words(query) == _words(f"{title} {text}") if linked else repeats(query, title, text))
    if rule == "same-id" or (2 * sum(same) > len(rows) and not linked):
        same = [True] * len(rows)
    own = sorted(row for row, is_own in zip(rows, same, strict=True) if is_own)
    return OwnDocuments(pairs.take(pa.array(own, pa.int64())), 0 if linked else len(rows) - len(own))


def find_in_run(
    run: pa.Table,
    names: Iterable[str],
    rule: OwnDocument,
    texts: Texts | None,
    grades: pa.Table | None = None,
    say: Callable[[str], None] | None = None,
) -> pa.Table:
    """Return the own documents (query_id, doc_id) in a Run; `say` receives a message if there are any.

    names: external ids of the run's documents.
    texts: reads queries and documents by id; if None, documents with the id of a query are own documents if at least
    half of the queries have theirs in the run.
    grades: Qrels that may be used.
    """
    ids = sorted(set(names))
    pairs = pa.table({"query_id": id_array(map(query_id, ids)), "doc_id": id_array(map(doc_id, ids))})
    there = find_rows(run.group_by(_KEY).aggregate([]), {name: pairs[name] for name in _KEY}) >= 0
    pairs = pairs.filter(pa.array(there))
    own = NOTHING
    if texts is not None and pairs.num_rows:
        queries, documents = texts(pairs["query_id"], pairs["doc_id"])
        own = find(queries, [documents], rule, grades)
    elif rule == "same-id" or (rule == "same-text" and not _answers(pairs, grades)):
        most = rule == "same-id" or 2 * pairs.num_rows >= pc.count_distinct(run["query_id"]).as_py()
        own = OwnDocuments(pairs, 0) if most else OwnDocuments(pairs.slice(0, 0), pairs.num_rows)
    if say is not None and (notice := own.notice("--own-document")) is not None:
        say(notice)
    return own.pairs


def leave_out(run: pa.Table, own: pa.Table) -> pa.Table:
    """Return a Run without the pairs `own`, ranked again."""
    run = without(run, own)
    system, query = (run[name].combine_chunks().dictionary_encode() for name in ("system", "query_id"))
    group = system.indices.to_numpy().astype(np.int64) * len(query.dictionary) + query.indices.to_numpy()
    rank = rank_within(group, run["rank"].to_numpy()) + 1
    return run.set_column(run.schema.get_field_index("rank"), RUN.schema.field("rank"), pa.array(rank, pa.int32()))


def without(table: pa.Table, own: pa.Table) -> pa.Table:
    """Return the rows of `table` (query_id, doc_id, ...) that are not in the pairs `own`."""
    return table.filter(pa.array(find_rows(own, {name: table[name] for name in _KEY}) < 0))


def graded(qrels: pa.Table, own: pa.Table) -> pa.Table:
    """Return Reject rows for the grades of own documents."""
    rows = qrels.filter(pa.array(find_rows(own, {name: qrels[name] for name in _KEY}) >= 0))
    return rejects("qrels", [(doc.hex(), "the query's own document", "") for doc in rows["doc_id"].to_pylist()])


def repeats(query: str, title: str, text: str) -> bool:
    """Return whether a document's title, text or both equal the query up to case, punctuation and small edits.

    >>> repeats("How do I sort a list?", "", "how do i sort a list"), repeats("sort a list", "Tuples", "are immutable")
    (True, False)
    """
    asked = _words(query)
    return any(_alike(asked, _words(part)) for part in (title, text, f"{title} {text}"))


def _answers(pairs: pa.Table, grades: pa.Table | None) -> bool:
    """Return whether, for most labelled queries, the document with the query's id is relevant."""
    if grades is None:
        return False
    relevant = grades.filter(pc.greater(grades["grade"], 0))
    hits = int((find_rows(pairs, {name: relevant[name] for name in _KEY}) >= 0).sum())
    return 2 * hits > pc.count_distinct(relevant["query_id"]).as_py()


def _alike(one: list[str], other: list[str]) -> bool:
    shorter = min(len(one), len(other))
    if shorter >= _FEWEST and one[:shorter] == other[:shorter]:
        return True
    common = (Counter(one) & Counter(other)).total()
    return shorter > 0 and 2 * common >= _SAME * (len(one) + len(other))


def _words(text: str) -> list[str]:
    rest, others = other_words(text)
    return [*_WORD.findall(rest.casefold()), *others]
