"""Parts of a BEIR folder by id, for the commands that work on anyone's runs: texts to rerank, qrels to measure by."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from functools import partial
from pathlib import Path, PurePosixPath
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import TEXT_OF
from anmi_ray.corpus import beir, qrels
from anmi_ray.corpus.parsing import Judged, LineError, TrimmedId
from anmi_ray.corpus.reader import qrel_table
from anmi_ray.corpus.unknown_ids import report_unknown
from anmi_ray.tables.formats import text_lines
from anmi_ray.tables.trec import place_of

_LIMIT = CorpusConfig().max_reject_fraction  # share of qrels that may be malformed, as in a run where nobody says more
_SHOWN = 3  # malformed lines that are named
_DETAIL = 80  # characters of their detail that are shown
Grades = dict[tuple[str, str], int]  # by query and document
Ids = tuple[Set[str], Set[str]]  # of queries and of documents
Say = Callable[[str], None]
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


def graded_split(folder: str, split: str, say: Say | None = None) -> Grades:
    """Grades of `qrels/<split>.tsv`, those below 0 as 0. DataError if there is no such split, or as `graded_file`."""
    files = beir.BeirFiles(folder)
    name = files.find_optional(f"qrels/{split}.tsv")
    if name is None:
        there = ", ".join(files.names("qrels")) or "nothing"
        raise DataError(
            f"no qrels of split {split}; there is: {there}",
            str(PurePosixPath(folder) / "qrels"),
            "name another with --split, or a file with --qrels",
        )
    return _graded(files.judged(name), f"{folder}/{name}", say)


def graded_file(path: Path, say: Say | None = None) -> Grades:
    """Grades of a qrels file, TREC's or BEIR's; `-` is standard input.

    Of a pair that is judged twice the first grade counts. `say` receives what is left out as malformed. Raises
    DataError if that is more than one in a hundred lines, or all.
    """
    place = place_of(path)
    lines = ((f"{place}:{number}", line.encode()) for number, line in enumerate(text_lines(path), 1) if line.strip())
    return _graded(qrels.judged_lines(lines, place), place, say)


def read_qrels(path: Path, say: Say | None = None) -> pa.Table:
    """The Qrel table of a qrels file."""
    return qrel_table(graded_file(path, say))


def check_ids(folder: str, runs: Mapping[str, Ids], grades: Grades, say: Say | None = None) -> Grades:
    """Check ids of runs (by place) and grades against a BEIR folder; return the grades about what it has.

    `say` receives how many ids are unknown, as those of malformed lines are. Without a corpus.jsonl or queries.jsonl
    its ids are not checked. Raises DataError if half of a run's ids or of the grades are unknown.
    """
    files = beir.BeirFiles(folder)
    kept = grades
    for at, (kind, file, rows) in enumerate(
        (("queries", "queries.jsonl", files.queries), ("documents", "corpus.jsonl", files.documents))
    ):
        if files.find_optional(file) is None:
            continue
        unknown = {pair[at] for pair in grades}.union(*(ids[at] for ids in runs.values()))
        for row in rows():
            unknown.discard(row[0])
            if not unknown:
                break
        known = partial(_names, rows)
        graded = [pair[at] for pair in grades if pair[at] in unknown]
        report_unknown(set(graded), len(graded), len(grades), f"grades are about {kind} that", folder, known, say)
        for place, ids in runs.items():
            missing = ids[at] & unknown
            report_unknown(missing, len(missing), len(ids[at]), kind, place, known, say)
        kept = {pair: grade for pair, grade in kept.items() if pair[at] not in unknown}
    return kept


def _names(rows: Callable[[], Iterable[tuple[str, ...]]]) -> Iterator[str]:
    return (row[0] for row in rows())


def _graded(rows: Iterator[tuple[str, Judged | LineError]], place: str, say: Say | None) -> Grades:
    """Grades by query and document, by the rules of a run."""
    grades: Grades = {}
    malformed: list[str] = []
    trimmed = 0
    for where, row in rows:
        if isinstance(row, LineError):
            shown = f": {row.detail[:_DETAIL]}" if row.detail else ""
            malformed.append(f"{where} ({row.reason}{shown})")
        elif row[:2] in grades:
            malformed.append(f"{where} (pair judged twice)")
        else:
            grades[row[:2]] = max(0, row[2])
            trimmed += any(isinstance(name, TrimmedId) for name in row[:2])
    if malformed:
        _check_malformed(malformed, len(grades) + len(malformed), place, say)
    if not grades:
        raise DataError("holds no usable row", place, f"write each line as {qrels.FORMS}")
    if trimmed and say is not None:
        say(f"{place}: white space or invisible characters around the ids of {trimmed:,} grades were removed")
    return grades


def _check_malformed(malformed: list[str], rows: int, place: str, say: Say | None) -> None:
    """Tell of malformed lines, or raise DataError where they are too many of the rows to measure by the others."""
    share = len(malformed) / rows
    what = f"{len(malformed):,} of {rows:,} qrels are malformed"
    examples = "; ".join(malformed[:_SHOWN])
    if share > _LIMIT:
        raise DataError(f"{what} ({share:.1%}, allowed {_LIMIT:.1%}): {examples}", place, "correct these lines")
    if say is not None:
        say(f"{place}: {what} and left out: {examples}")
