"""Look up texts and relevance grades in a collection, for commands that work on users' runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from pathlib import Path
from typing import Protocol, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import TEXT_OF
from anmi_ray.corpus.ids import report_unknown
from anmi_ray.corpus.parsing import FORMS, Document, Judged, Query, TrimmedId, judged_lines
from anmi_ray.corpus.reader import qrel_table
from anmi_ray.tables.formats import text_lines
from anmi_ray.tables.streams import LineError
from anmi_ray.tables.trec import NamedRun, place_of

_LIMIT = CorpusConfig().max_reject_fraction  # share of qrels that may be malformed, as by default in a run
_SHOWN = 3  # malformed lines in a message
_DETAIL = 80  # characters of their detail that are shown
Grades = dict[tuple[str, str], int]  # by query and document
Say = Callable[[str], None]
_Row = TypeVar("_Row", bound=tuple[str, ...])

_QUERY_TEXTS = pa.schema([("query_id", identity.ID), ("external_id", pa.string()), ("text", pa.string())])


class CorpusFiles(Protocol):
    """A collection: BEIR's folder (`BeirFiles`), or a run's.

    place: its name in messages.
    """

    place: str

    def documents(self) -> Iterator[Document]: ...
    def queries(self) -> Iterator[Query]: ...
    def find_optional(self, name: str) -> str | None: ...
    def names(self, folder: str) -> list[str]: ...
    def judged(self, name: str) -> Iterator[tuple[str, Judged | LineError]]: ...


def read_texts(files: CorpusFiles, query_ids: pa.ChunkedArray, doc_ids: pa.ChunkedArray) -> tuple[pa.Table, pa.Table]:
    """Return queries (query_id, external_id, text) and documents (Text) with these ids; reads no qrels.

    The first of several with the same id is used, as in a run. Malformed lines are skipped: the caller reports missing
    texts.
    """
    queries = _first(files.queries(), identity.query_id, set(pc.unique(query_ids).to_pylist()))
    documents = _first(files.documents(), identity.doc_id, set(pc.unique(doc_ids).to_pylist()))
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
    """Return the first row of each wanted id."""
    found: dict[bytes, _Row] = {}
    for row in rows:
        if (key := id_of(row[0])) in wanted:
            found.setdefault(key, row)
    return found


def graded_split(files: CorpusFiles, split: str, say: Say | None = None) -> Grades:
    """Return the grades in `qrels/<split>.tsv`, negative ones as 0. DataError if it is missing, or as `graded_file`."""
    name = files.find_optional(f"qrels/{split}.tsv")
    if name is None:
        there = ", ".join(files.names("qrels")) or "nothing"
        raise DataError(
            f"no qrels of split {split}; there is: {there}",
            f"{files.place}/qrels",
            "name another with --split, or a file with --qrels",
        )
    return _graded(files.judged(name), f"{files.place}/{name}", say)


def graded_file(path: Path, say: Say | None = None) -> Grades:
    """Return the grades in a qrels file, TREC's or BEIR's; `-` is standard input.

    If a pair is judged twice, its first grade counts. `say` receives a message about malformed lines, which are left
    out. Raises DataError if more than one in a hundred lines, or all, are malformed.
    """
    place = place_of(path)
    lines = ((f"{place}:{number}", line.encode()) for number, line in enumerate(text_lines(path), 1) if line.strip())
    return _graded(judged_lines(lines, place), place, say)


def read_qrels(path: Path, say: Say | None = None) -> pa.Table:
    """Return the Qrel table of a qrels file."""
    return qrel_table(graded_file(path, say))


def check_ids(files: CorpusFiles, runs: Mapping[str, NamedRun], grades: Grades, say: Say | None = None) -> Grades:
    """Check ids of runs (by place) and grades against a collection; return the grades of known ids.

    `say` receives the number of unknown ids. Without a corpus.jsonl or queries.jsonl their ids are not checked.
    Raises DataError if half of a run's ids or of the grades are unknown.
    """
    kept = grades
    for at, (kind, file, rows) in enumerate(
        (("queries", "queries.jsonl", files.queries), ("documents", "corpus.jsonl", files.documents))
    ):
        if files.find_optional(file) is None:
            continue
        unknown = {pair[at] for pair in grades}.union(*(getattr(run, kind) for run in runs.values()))
        for row in rows():
            unknown.discard(row[0])
            if not unknown:
                break
        graded = [pair[at] for pair in grades if pair[at] in unknown]
        known = (row[0] for row in rows())
        report_unknown(set(graded), len(graded), len(grades), f"grades are about {kind} that", files.place, known, say)
        for place, run in runs.items():
            missing = getattr(run, kind).keys() & unknown
            known = (row[0] for row in rows())
            report_unknown(missing, len(missing), len(getattr(run, kind)), kind, place, known, say)
        kept = {pair: grade for pair, grade in kept.items() if pair[at] not in unknown}
    return kept


def _graded(rows: Iterator[tuple[str, Judged | LineError]], place: str, say: Say | None) -> Grades:
    """Return grades by query and document, by the rules of a run."""
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
        share = len(malformed) / (len(grades) + len(malformed))
        what = f"{len(malformed):,} of {len(grades) + len(malformed):,} qrels are malformed"
        examples = "; ".join(malformed[:_SHOWN])
        if share > _LIMIT:
            raise DataError(f"{what} ({share:.1%}, allowed {_LIMIT:.1%}): {examples}", place, "correct these lines")
        if say is not None:
            say(f"{place}: {what} and left out: {examples}")
    if not grades:
        raise DataError("holds no usable row", place, f"write each line as {FORMS}")
    if trimmed and say is not None:
        say(f"{place}: white space or invisible characters around the ids of {trimmed:,} grades were removed")
    return grades
