"""Read a collection: documents, queries with their split, relevance grades, and rejects.

A layout says where records are and how one is parsed; which are kept, and why others are not, is decided here. For
each of the three kinds rows in = rows out + rejects; queries that the settings leave out, and their grades, are not
counted. A share of malformed rows above `max_reject_fraction` is an error, not a smaller corpus.
"""

from __future__ import annotations

import itertools
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity, redaction
from anmi_ray.core.errors import DataError, visible
from anmi_ray.core.records import DOCUMENT, QREL, QUERY, reject_rows
from anmi_ray.corpus.ids import SeenIds, report_unknown
from anmi_ray.corpus.parsing import ENCODING, Document, Judged, Query, TrimmedId
from anmi_ray.corpus.splits import SPLITS_BY_RANK, QueryRow, dev_by_group
from anmi_ray.tables.streams import NOT_UTF8, LineError, guessed_encoding

KINDS = ("documents", "queries", "qrels")
_SHOWN = 3  # malformed rows that a message names
_DETAIL = 80  # characters of a reject's detail that a message shows
_SAMPLE = 1 << 14  # bytes by which the encoding of a collection is guessed
_TOO_MANY = 50_000  # after this many more malformed rows their share is checked before the end
_BLOCK = 256  # documents whose ids are looked up at once


@dataclass(frozen=True)
class QrelRow:
    """A judged pair; `split` is its file's."""

    query: str
    document: str
    grade: int
    split: str
    place: str


class Reader(ABC):
    """One collection, read once: `documents()`, `queries()`, `qrels()`, `hidden_qrels()`; then `rejects()`.

    A query without a grade in any split that is read is a train query, unless the settings hold it out or leave it out.
    Records come as (place, record or LineError).

    judged_splits: splits whose grades may be read: those of the settings' labels, and hidden ones.
    unread: names of relevance grades that exist and are not read.
    held_out: by split, unlabelled queries that became dev or test; complete after `queries()`.
    left_out: unlabelled queries left out as `unlabelled` says; complete after `queries()`.
    repeated: repeats of queries in logs without ids; complete after `queries()`.
    trimmed: by kind, ids that had white space or invisible characters around them; complete after `qrels()`.
    """

    judged_splits: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()

    def __init__(self, config: CorpusConfig) -> None:
        self.config = config
        self.held_out: dict[str, int] = {}
        self.left_out = 0
        self.repeated = 0
        self.trimmed: Counter[str] = Counter()
        self._seen: Counter[str] = Counter()
        self._malformed: Counter[str] = Counter()
        self._examples: dict[str, list[str]] = {kind: [] for kind in KINDS}
        self._rejects: list[tuple[str, str, str, str]] = []
        self._sample = b""  # of records that are not UTF-8
        self._beyond: dict[str, str] = {}  # queries beyond a maximum of the settings, with their split
        self._grades_beyond = 0
        self._documents = SeenIds()
        self._documents_read = False
        self._judged: list[QrelRow] = []
        self._split_of: dict[str, str] = {}  # of judged queries: test before dev before train
        self._kept: set[str] = set()
        self._unknown: dict[str, list[str]] = {"queries": [], "documents": []}  # ids in grades

    @abstractmethod
    def content_fingerprint(self) -> str:
        """Hash of the source's content: the input fingerprint of ingest."""

    @abstractmethod
    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        """Documents in the order of the collection."""

    @abstractmethod
    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        """Queries of all splits."""

    @abstractmethod
    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        """Judged pairs of one split."""

    def place_of(self, kind: str) -> str:
        """Name the files of a kind (documents, queries) in messages."""
        return self._place()

    @property
    def over_maximum(self) -> dict[str, int]:
        """By split the queries beyond its maximum; complete after `queries()`."""
        return dict(Counter(self._beyond.values()))

    def documents(self) -> Iterator[pa.Table]:
        """Yield Document tables of at most `shard_documents` rows, in the order of the collection.

        A document without title and text, or with an id seen before, is a reject. Raises DataError.
        """
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
        """Return the Query table, each text in one split only; call after `documents()`. Raises DataError."""
        if not self._documents_read:
            raise AssertionError("documents() must be consumed before queries()")
        texts = self._read_queries()
        labelled_splits = [split for split in self.judged_splits if split in self.config.labels]
        self._judged = self._read_qrels(labelled_splits, texts)
        splits = self._split_of
        for row in self._judged:
            splits[row.query] = min(row.split, splits.get(row.query, row.split), key=SPLITS_BY_RANK.index)
        read = [QueryRow(key, text, splits.get(key, "train"), place) for key, (text, place) in texts.items()]
        held_out = self._hold_out({row.external_id: row.text_key for row in read}, splits)
        rows = []
        for row in read:
            if row.external_id in held_out:
                rows.append(replace(row, split=held_out[row.external_id]))
            elif row.external_id not in splits and self.config.unlabelled == "leave-out":
                self.left_out += 1
            else:
                rows.append(row)
        if "dev" not in labelled_splits:
            rows = self._carve_dev(rows)
        rows = self._one_split_per_text(rows)
        rows = [row for split in ("train", "dev", "test") for row in self._within_maximum(rows, split)]
        rows.sort(key=lambda row: identity.query_id(row.external_id))
        self._kept = {row.external_id for row in rows}
        return QUERY.table(
            {
                "query_id": identity.id_array(identity.query_id(row.external_id) for row in rows),
                "external_id": [row.external_id for row in rows],
                "text": [row.text for row in rows],
                "text_hash": identity.id_array(identity.text_hash(row.text) for row in rows),
                "split": [row.split for row in rows],
            }
        )

    def qrels(self) -> pa.Table:
        """Return the Qrel table of the queries that were kept; call after `queries()`. Raises DataError.

        Grades below zero (TREC's spam is -2) are stored as 0, not relevant.
        """
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
        """Return the Qrel table of unlabelled queries in the splits that the settings hide; call after `qrels()`.

        Only a simulated panel reads it: malformed rows are skipped, and of a pair judged twice the first grade counts.
        """
        unlabelled = self._kept - set(self._split_of)
        kept: dict[tuple[str, str], int] = {}
        for split in self.judged_splits:
            for _, row in self._qrel_records(split) if split in self.config.hidden else ():
                if isinstance(row, LineError) or row[0] not in unlabelled:
                    continue
                if identity.doc_id(row[1]) in self._documents:
                    kept.setdefault(row[:2], max(0, row[2]))
        return qrel_table(kept)

    def rejects(self) -> pa.Table:
        """Return the Reject table; a place begins with the kind: "documents corpus.jsonl:17"."""
        return reject_rows(self._rejects)

    def rows_in(self) -> dict[str, int]:
        """Count the rows read by kind, without those that the settings leave out."""
        passed = {"queries": self.left_out + len(self._beyond), "qrels": self._grades_beyond}
        return {kind: self._seen[kind] - passed.get(kind, 0) for kind in KINDS}

    def _new_documents(self) -> Iterator[tuple[str, Document | LineError]]:
        """Yield the documents, with an error instead of one whose id was seen before."""
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
        """Return (text, place) by id."""
        texts: dict[str, tuple[str, str]] = {}
        for place, row in self._query_records():
            self._seen["queries"] += 1
            if isinstance(row, LineError):
                self._refuse_line("queries", place, row)
            elif row[0] in texts:
                self._refuse_line("queries", place, LineError("duplicate id", row[0]))
            else:
                self._count_trimmed("queries", row[0])
                texts[row[0]] = (row[1], place)
        self._check_fraction("queries")
        return texts

    def _read_qrels(self, splits: list[str], queries: Collection[str]) -> list[QrelRow]:
        rows = []
        for split in splits if queries else ():  # without queries every grade would be refused
            for place, row in self._qrel_records(split):
                self._seen["qrels"] += 1
                if isinstance(row, LineError):
                    self._refuse_line("qrels", place, row)
                    continue
                query, document, grade = row
                self._count_trimmed("qrels", query, document)
                if query not in queries:
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
        """Raise DataError if at least half of the grades, and more than max_reject_fraction, are about unknown ids."""
        usable = self._seen["qrels"] - self._malformed["qrels"]
        if self._seen["documents"] == self._malformed["documents"]:
            return  # `counted` reports missing documents
        for kind, unknown in self._unknown.items():
            if 2 * len(unknown) >= usable and len(unknown) > self.config.max_reject_fraction * usable:
                what = f"grades are about {kind} that"
                records = self._query_records() if kind == "queries" else self._document_records()
                known = (row[0] for _, row in records if not isinstance(row, LineError))
                report_unknown(set(unknown), len(unknown), usable, what, self._place(), known)

    def _refuse_line(self, kind: str, where: str, error: LineError) -> None:
        self._sample += error.sample[: max(0, _SAMPLE - len(self._sample))]
        self._refuse(kind, where, error.key, error.reason, error.detail, error.malformed)

    def _count_trimmed(self, kind: str, *ids: str) -> None:
        if count := sum(isinstance(one, TrimmedId) for one in ids):
            self.trimmed[kind] += count

    def _refuse(self, kind: str, where: str, key: str, reason: str, detail: str = "", malformed: bool = True) -> None:
        """Record a reject; only `malformed` ones count towards max_reject_fraction."""
        place = f"{kind} {where}"
        self._rejects.append((place, _valid(key), reason, _valid(detail)))
        if not malformed:
            return
        self._malformed[kind] += 1
        if len(self._examples[kind]) < _SHOWN:
            shown = f": {_valid(detail)[:_DETAIL]}" if detail else ""
            self._examples[kind].append(f"{where} ({reason}{shown})")
        if self._malformed[kind] % _TOO_MANY == 0:  # do not collect every line of a file in another format
            self._check_fraction(kind, "the first ")

    def _check_fraction(self, kind: str, part: str = "") -> None:
        """Raise DataError if more than max_reject_fraction of the rows of `kind` read up to now were malformed."""
        if kind == "qrels" and self._seen["documents"] == self._malformed["documents"]:
            return  # `counted` reports missing documents
        bad = self._malformed[kind]
        seen = self._seen[kind]
        limit = self.config.max_reject_fraction
        if seen and bad > limit * seen:
            share = bad / seen
            examples = "; ".join(self._examples[kind])
            allowed = min(1.0, float(np.ceil(share * 1000 + 1e-9) / 1000))
            others = f", or set corpus.max_reject_fraction to {allowed} to leave them out"
            remedy = f"correct these rows{others if part or bad < seen else '; no others are left'}"
            if NOT_UTF8 in examples:
                remedy = f"set {ENCODING}: {guessed_encoding(self._sample) or 'that of the text'}, the likely encoding"
            raise DataError(
                f"{bad} of {part}{seen} {kind} are malformed ({share:.1%}, allowed {limit:.1%}): {examples}",
                self._place(),
                remedy,
            )

    def _place(self) -> str:
        return f"corpus {redaction.scrub(self.config.name)}"

    def _hold_out(self, text_keys: Mapping[str, bytes], labelled: Collection[str]) -> dict[str, str]:
        """Return the split (test, dev) of the unlabelled queries that the settings hold out, given text keys by id.

        They are chosen by a salted hash; texts of labelled queries are not held out.
        """
        taken = {key for name, key in text_keys.items() if name in labelled}
        free = set(text_keys.values()) - taken
        test, dev = self.config.held_out("test", len(free)), self.config.held_out("dev", len(free))
        if not test + dev:
            return {}
        salted = {key: identity.digest("sample", "held out", self.config.split_seed, key) for key in free}
        order = sorted(free, key=salted.__getitem__)
        split = {key: "test" if place < test else "dev" for place, key in enumerate(order[: test + dev])}
        found = {name: split[key] for name, key in text_keys.items() if name not in labelled and key in split}
        self.held_out = dict(Counter(found.values()))
        return found

    def _carve_dev(self, rows: list[QueryRow]) -> list[QueryRow]:
        """Move a share of the judged train queries, chosen by hash, to dev, since the collection has no dev split.

        Queries that share a relevant document stay together: a reranker remembers documents, and a dev set whose
        documents it was trained on would be too optimistic.
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

    def _one_split_per_text(self, rows: list[QueryRow]) -> list[QueryRow]:
        best: dict[bytes, str] = {}
        for row in rows:
            best[row.text_key] = min(row.split, best.get(row.text_key, row.split), key=SPLITS_BY_RANK.index)
        kept = []
        for row in rows:
            if row.split == best[row.text_key]:
                kept.append(row)
            else:
                detail = f"{row.split} query whose text is also in {best[row.text_key]}"
                self._refuse("queries", row.place, row.external_id, "text in two splits", detail, malformed=False)
        return kept

    def _within_maximum(self, rows: list[QueryRow], split: str) -> list[QueryRow]:
        mine = [row for row in rows if row.split == split]
        limit = self.config.max_queries(split)
        if limit is None or len(mine) <= limit:
            return mine
        # Salted: splits and buckets are chosen by this hash too, and its smallest values would not be a sample.
        mine.sort(key=lambda row: (identity.digest("sample", "max_queries", row.text_key), row.external_id))
        self._beyond |= dict.fromkeys((row.external_id for row in mine[limit:]), split)
        return mine[:limit]


def qrel_table(grades: Mapping[tuple[str, str], int]) -> pa.Table:
    """Return the Qrel table of grades by external (query, document) ids, in their order."""
    return QREL.table(
        {
            "query_id": identity.id_array(identity.query_id(query) for query, _ in grades),
            "doc_id": identity.id_array(identity.doc_id(document) for _, document in grades),
            "grade": list(grades.values()),
        }
    )


def _document_table(rows: list[Document]) -> pa.Table:
    keys, titles, texts = (list(column) for column in zip(*rows, strict=True))
    ids = identity.id_array(identity.doc_id(key) for key in keys)
    return DOCUMENT.table({"doc_id": ids, "external_id": keys, "title": titles, "text": texts})


def _valid(text: str) -> str:
    return visible(text[:500].replace("\n", " "))
