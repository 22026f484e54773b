"""What readers share whose collection comes with queries and, perhaps, with relevance grades per split.

A layout (`beir`, `trec`, `table`, `ir_datasets`) says where records stand and how one is parsed; which are kept, and
why the others are not, is said here once. A query that nobody judged in any split that is read is a train query, but
for those that the settings hold out.
"""

from __future__ import annotations

import itertools
from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar

import pyarrow as pa

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity
from anmi_ray.core.records import DOCUMENT
from anmi_ray.corpus import sources
from anmi_ray.corpus.doc_ids import SeenIds
from anmi_ray.corpus.parsing import Document, Judged, LineError, Query
from anmi_ray.corpus.reader import SPLITS_BY_RANK, QueryRow, Reader, dev_by_group, qrel_table
from anmi_ray.corpus.unknown_ids import report_unknown

_NAMED = 3  # files in a message
_BLOCK = 256  # documents whose ids are looked up at once


@dataclass(frozen=True)
class QrelRow:
    """One judged pair, as read; `split` is its file's."""

    query: str
    document: str
    grade: int
    split: str
    place: str


class JudgedReader(Reader):
    """A collection whose qrels, where it has any, say which split a query belongs to.

    The records come as (place, record or LineError).
    """

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        self._documents = SeenIds()
        self._documents_read = False
        self._judged: list[QrelRow] = []
        self._split_of: dict[str, str] = {}  # of judged queries: test before dev before train
        self._kept: set[str] = set()
        self._known: set[str] = set()  # every query id met, kept or not
        self._unknown: dict[str, list[str]] = {"queries": [], "documents": []}  # of grades, by what they name

    @property
    @abstractmethod
    def judged_splits(self) -> tuple[str, ...]:
        """The splits that have qrels which may be read: of the settings' labels, or hidden ones."""

    @abstractmethod
    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        """Documents in the order of the collection."""

    @abstractmethod
    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        """Queries of all splits."""

    @abstractmethod
    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        """Judged pairs of one split."""

    def documents(self) -> Iterator[pa.Table]:
        """Documents in their order; a document without title and text, or with an id seen before, is a reject."""
        rows: list[Document] = []
        for place, row in self._new_documents():
            self._seen["documents"] += 1
            if isinstance(row, LineError):
                self._refuse_line("documents", place, row)
                continue
            self._count_trimmed("documents", row[0])
            rows.append(row)
            if len(rows) == self.config.shard_documents:
                yield _document_table(rows)
                rows = []
        self._check_fraction("documents")
        self._documents_read = True
        if rows:
            yield _document_table(rows)

    def queries(self) -> pa.Table:
        """Queries in the split that judges them; without any usable qrel they are held out, train, or left out."""
        if not self._documents_read:
            raise AssertionError("documents() must be consumed before queries()")
        texts = self._read_queries()
        self._judged = self._read_qrels()
        splits = self._split_of
        for row in self._judged:
            splits[row.query] = min(row.split, splits.get(row.query, row.split), key=SPLITS_BY_RANK.index)
        read = [QueryRow(key, text, splits.get(key, "train"), place) for key, (text, place) in texts.items()]
        held_out = self._held_out({row.external_id: row.text_key for row in read}, splits)
        rows = []
        for row in read:
            if row.external_id in held_out:
                rows.append(replace(row, split=held_out[row.external_id]))
            elif row.external_id not in splits and self.config.unlabelled == "leave-out":
                self._left_out += 1
            else:
                rows.append(row)
        if "dev" not in self._labelled_splits:
            rows = self._carve_dev(rows)
        table = self._query_table(rows)
        self._kept = set(table["external_id"].to_pylist())
        return table

    def qrels(self) -> pa.Table:
        """Grades of the queries that were kept; grades below zero (TREC's spam is -2) are stored as 0, not relevant."""
        kept: dict[tuple[str, str], int] = {}
        for row in self._judged:
            key = f"{row.query} {row.document}"
            split = self._split_of[row.query]
            if row.query in self._beyond:
                self._grades_beyond += 1
            elif row.query not in self._kept:
                self._refuse("qrels", row.place, key, "query was left out", malformed=False)
            elif split != row.split:
                self._refuse("qrels", row.place, key, "query belongs to another split", split, malformed=False)
            elif (row.query, row.document) in kept:
                self._refuse("qrels", row.place, key, "pair judged twice", str(row.grade))
            else:
                kept[row.query, row.document] = max(0, row.grade)
        self._check_fraction("qrels")
        return qrel_table(kept)

    def hidden_qrels(self) -> pa.Table:
        """Of a pair that is judged twice the first grade, as of others."""
        unlabelled = self._kept - set(self._split_of)
        kept: dict[tuple[str, str], int] = {}
        for split in self.judged_splits:
            for _, row in self._qrel_records(split) if split in self.config.hidden else ():
                if (
                    not isinstance(row, LineError)
                    and row[0] in unlabelled
                    and identity.doc_id(row[1]) in self._documents
                ):
                    kept.setdefault(row[:2], max(0, row[2]))
        return qrel_table(kept)

    @property
    def _labelled_splits(self) -> list[str]:
        return [split for split in self.judged_splits if split in self.config.labels]

    def _new_documents(self) -> Iterator[tuple[str, Document | LineError]]:
        """The documents with, in the place of one whose id was seen before, an error."""
        records = self._document_records()
        while block := list(itertools.islice(records, _BLOCK)):
            ids = [identity.doc_id(row[0]) for _, row in block if not isinstance(row, LineError)]
            new = iter(self._documents.add(ids))
            for place, row in block:
                if isinstance(row, LineError) or next(new):
                    yield place, row
                else:
                    yield place, LineError("duplicate id", row[0])

    def _read_queries(self) -> dict[str, tuple[str, str]]:
        texts: dict[str, tuple[str, str]] = {}
        for place, row in self._query_records():
            self._seen["queries"] += 1
            try:
                if isinstance(row, LineError):
                    raise row
                key, text = row
                if key in texts:
                    raise LineError("duplicate id", key)
                self._count_trimmed("queries", key)
                texts[key] = (text, place)
            except LineError as error:
                self._refuse_line("queries", place, error)
        self._known = set(texts)
        self._check_fraction("queries")
        return texts

    def _read_qrels(self) -> list[QrelRow]:
        rows = []
        for split in self._labelled_splits if self._known else ():  # else each grade would be refused for that reason
            for place, row in self._qrel_records(split):
                self._seen["qrels"] += 1
                if isinstance(row, LineError):
                    self._refuse_line("qrels", place, row)
                    continue
                query, document, grade = row
                self._count_trimmed("qrels", query, document)
                if query not in self._known:
                    self._refuse("qrels", place, f"{query} {document}", "unknown query", malformed=False)
                    self._unknown["queries"].append(query)
                elif identity.doc_id(document) not in self._documents:
                    self._refuse("qrels", place, f"{query} {document}", "unknown document", malformed=False)
                    self._unknown["documents"].append(document)
                else:
                    rows.append(QrelRow(query, document, grade, split, place))
        self._check_fraction("qrels")
        self._check_unknown()
        return rows

    def _check_unknown(self) -> None:
        """Raise DataError if half of the grades or more are about queries or documents that the collection lacks.

        A larger max_reject_fraction allows more.
        """
        usable = self._seen["qrels"] - self._malformed["qrels"]
        if self._seen["documents"] == self._malformed["documents"]:
            return  # `counted` reports that there are no documents
        for kind, unknown in self._unknown.items():
            if 2 * len(unknown) >= usable and len(unknown) > self.config.max_reject_fraction * usable:
                what = f"grades are about {kind} that"
                ids = partial(self._ids, kind)
                report_unknown(set(unknown), len(unknown), usable, what, self._place(), ids)

    def _ids(self, kind: str) -> Iterator[str]:
        records = self._query_records() if kind == "queries" else self._document_records()
        return (row[0] for _, row in records if not isinstance(row, LineError))

    def _carve_dev(self, rows: list[QueryRow]) -> list[QueryRow]:
        """Where the collection has no dev split, a share of its judged train queries, chosen by hash, becomes one.

        Unlabelled ones would choose nothing there: where none is judged, there is no dev query.
        Queries that share a relevant document stay together: a reranker remembers documents, and a dev whose documents
        it was trained on promises more than a test whose documents are new to it.
        """
        train = [row for row in rows if row.split == "train" and row.external_id in self._split_of]
        relevant: dict[str, list[str]] = {}
        for judged in self._judged:
            if judged.grade > 0:
                relevant.setdefault(judged.query, []).append(judged.document)
        groups = [[row.text_key, *map(identity.doc_id, relevant.get(row.external_id, []))] for row in train]
        dev = dev_by_group([row.text_key for row in train], groups, self.config.dev_share, self.config.split_seed)
        chosen = {row.external_id for row, is_dev in zip(train, dev, strict=True) if is_dev}
        return [replace(row, split="dev") if row.external_id in chosen else row for row in rows]


class FilesReader(JudgedReader):
    """A collection in the files that `documents`, `queries` and `qrels` name, each list sorted by path.

    Raises DataError where one is missing, or of none of the `kinds` that the layout has. Qrels may be of any kind.
    """

    kinds: ClassVar[tuple[str, ...]] = ()  # suffixes; none: any
    query_kinds: ClassVar[tuple[str, ...]] = ()  # those of queries besides

    def __init__(self, config: CorpusConfig, documents_alone: bool = False) -> None:
        super().__init__(config)
        encoding = config.encoding
        self._document_files = sources.files_of(config.documents, "documents", self.kinds, encoding)
        if documents_alone:
            return
        kinds = self.kinds + self.query_kinds
        self._query_files = sources.files_of(config.queries, "queries", kinds, encoding)
        places = config.qrels.named if config.qrels is not None else {}
        self._qrel_files = {
            split: sources.files_of(names, f"qrels.{split}", self.kinds, encoding, any_file=True)
            for split, names in places.items()
            if split in (*config.labels, *config.hidden)
        }
        self._unread = tuple(f"corpus.qrels.{split}" for split in places if split not in self._qrel_files)

    def content_fingerprint(self) -> str:
        """Hash of roles, names and bytes as stored; every byte is read once more than ingest reads it.

        Neither sizes nor times of modification would do: a fingerprint stands for the content wherever it lies.
        """
        judged = ((f"qrels {split}", files) for split, files in self._qrel_files.items())
        roles = (("documents", self._document_files), ("queries", self._query_files), *judged)
        return sources.content_hash((f"{role} {file.name}", file) for role, files in roles for file in files)

    def place_of(self, kind: str) -> str:
        files = self._document_files if kind == "documents" else self._query_files
        return ", ".join(file.place for file in files[:_NAMED]) + (", ..." if len(files) > _NAMED else "")

    @property
    def judged_splits(self) -> tuple[str, ...]:
        return tuple(self._qrel_files)

    @property
    def unread(self) -> tuple[str, ...]:
        return self._unread


def _document_table(rows: list[Document]) -> pa.Table:
    keys, titles, texts = (list(column) for column in zip(*rows, strict=True))
    return DOCUMENT.table(
        {
            "doc_id": identity.id_array(identity.doc_id(key) for key in keys),
            "external_id": keys,
            "title": titles,
            "text": texts,
        }
    )
