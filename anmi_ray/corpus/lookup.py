"""Parts of a BEIR folder by id, for the commands that work on anyone's runs: texts to rerank, qrels to measure by."""

from __future__ import annotations

from pathlib import PurePosixPath

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import TEXT_OF
from anmi_ray.corpus import beir
from anmi_ray.corpus.reader import qrel_table

_QUERY_TEXTS = pa.schema([("query_id", identity.ID), ("external_id", pa.string()), ("text", pa.string())])


def read_texts(folder: str, query_ids: pa.ChunkedArray, doc_ids: pa.ChunkedArray) -> tuple[pa.Table, pa.Table]:
    """Queries (query_id, external_id, text) and documents (Text) of `folder` with these ids; no qrels are needed.

    Malformed lines are passed over: whoever asks counts what it asked for and did not get.
    """
    files = beir.BeirFiles(folder)
    wanted_queries = set(pc.unique(query_ids).to_pylist())
    wanted_docs = set(pc.unique(doc_ids).to_pylist())
    queries = {i: row for row in files.queries() if (i := identity.query_id(row[0])) in wanted_queries}
    documents = {i: row for row in files.documents() if (i := identity.doc_id(row[0])) in wanted_docs}
    query_columns = [list(queries), [row[0] for row in queries.values()], [row[1] for row in queries.values()]]
    texts = {
        "doc_id": identity.id_array(documents),
        "external_id": [row[0] for row in documents.values()],
        "text_hash": identity.id_array(identity.text_hash(*row[1:]) for row in documents.values()),
        "title": [row[1] for row in documents.values()],
        "text": [row[2] for row in documents.values()],
    }
    return pa.table(query_columns, schema=_QUERY_TEXTS), TEXT_OF.table(texts)


def read_qrels(folder: str, split: str) -> pa.Table:
    """The Qrel table of `qrels/<split>.tsv`. Raises DataError where the split or a usable row is missing."""
    files = beir.BeirFiles(folder)
    name = files.find_optional(f"qrels/{split}.tsv")
    if name is None:
        there = ", ".join(files.names("qrels")) or "nothing"
        raise DataError(
            f"no qrels of split {split}; there is: {there}",
            str(PurePosixPath(folder) / "qrels"),
            "name another with --split",
        )
    grades = {(query, document): max(0, grade) for query, document, grade in files.grades(name)}
    if not grades:
        raise DataError("holds no usable row", f"{folder}/{name}", "write each line as: query-id, corpus-id, score")
    return qrel_table(grades)
