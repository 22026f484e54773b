"""Parts of a BEIR folder by id, for the commands that work on anyone's runs: texts to rerank, qrels to measure by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Set
from pathlib import PurePosixPath
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import TEXT_OF
from anmi_ray.corpus import beir
from anmi_ray.corpus.parsing import Judged, LineError
from anmi_ray.corpus.reader import qrel_table

_LIMIT = CorpusConfig().max_reject_fraction  # share of qrels that may be malformed, as in a run where nobody says more
_SHOWN = 3  # malformed lines that are named
_Row = TypeVar("_Row", bound=tuple[str, ...])

_QUERY_TEXTS = pa.schema([("query_id", identity.ID), ("external_id", pa.string()), ("text", pa.string())])


def read_texts(folder: str, query_ids: pa.ChunkedArray, doc_ids: pa.ChunkedArray) -> tuple[pa.Table, pa.Table]:
    """Queries (query_id, external_id, text) and documents (Text) of `folder` with these ids; no qrels are needed.

    Of an id that stands twice the first is it, as in a run. Malformed lines are passed over: whoever asks counts what
    it asked for and did not get.
    """
    files = beir.BeirFiles(folder)
    wanted_queries = set(pc.unique(query_ids).to_pylist())
    wanted_docs = set(pc.unique(doc_ids).to_pylist())
    queries = _first(files.queries(), identity.query_id, wanted_queries)
    documents = _first(files.documents(), identity.doc_id, wanted_docs)
    query_columns = [list(queries), [row[0] for row in queries.values()], [row[1] for row in queries.values()]]
    texts = {
        "doc_id": identity.id_array(documents),
        "external_id": [row[0] for row in documents.values()],
        "text_hash": identity.id_array(identity.text_hash(*row[1:]) for row in documents.values()),
        "title": [row[1] for row in documents.values()],
        "text": [row[2] for row in documents.values()],
    }
    return pa.table(query_columns, schema=_QUERY_TEXTS), TEXT_OF.table(texts)


def _first(rows: Iterable[_Row], id_of: Callable[[str], bytes], wanted: Set[bytes]) -> dict[bytes, _Row]:
    """Of each id that is wanted, the first row."""
    found: dict[bytes, _Row] = {}
    for row in rows:
        if (key := id_of(row[0])) in wanted:
            found.setdefault(key, row)
    return found


def read_qrels(folder: str, split: str, say: Callable[[str], None] | None = None) -> pa.Table:
    """The Qrel table of `qrels/<split>.tsv`; of a pair that is judged twice the first grade, as in a run.

    `say` is told of lines that are left out. Raises DataError where they are more than one in a hundred, and where the
    split or a usable row is missing.
    """
    files = beir.BeirFiles(folder)
    name = files.find_optional(f"qrels/{split}.tsv")
    if name is None:
        there = ", ".join(files.names("qrels")) or "nothing"
        raise DataError(
            f"no qrels of split {split}; there is: {there}",
            str(PurePosixPath(folder) / "qrels"),
            "name another with --split",
        )
    grades, malformed = _grades(files.judged(name))
    place = f"{folder}/{name}"
    if malformed:
        _check_malformed(malformed, len(grades) + len(malformed), place, say)
    if not grades:
        raise DataError("holds no usable row", place, "write each line as: query-id, corpus-id, score")
    return qrel_table(grades)


def _grades(rows: Iterator[tuple[str, Judged | LineError]]) -> tuple[dict[tuple[str, str], int], list[str]]:
    """Grades by query and document, and the lines that give none, with the reason."""
    grades: dict[tuple[str, str], int] = {}
    malformed: list[str] = []
    for place, row in rows:
        if isinstance(row, LineError):
            malformed.append(f"{place} ({row.reason})")
        elif row[:2] in grades:
            malformed.append(f"{place} (pair judged twice)")
        else:
            grades[row[:2]] = max(0, row[2])
    return grades, malformed


def _check_malformed(malformed: list[str], rows: int, place: str, say: Callable[[str], None] | None) -> None:
    """Tell of malformed lines, or raise DataError where they are too many of the rows to measure by the others."""
    share = len(malformed) / rows
    what = f"{len(malformed):,} of {rows:,} qrels are malformed"
    examples = "; ".join(malformed[:_SHOWN])
    if share > _LIMIT:
        raise DataError(f"{what} ({share:.1%}, allowed {_LIMIT:.1%}): {examples}", place, "mend these lines")
    if say is not None:
        say(f"{place}: {what} and left out: {examples}")
