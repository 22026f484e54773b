"""Collections in BEIR layout: corpus.jsonl, queries.jsonl, qrels/{train,dev,test}.tsv, each plain, .gz or .zst.

The folder may be on any filesystem that pyarrow knows (s3://bucket/folder). Lines that cannot be used become rejects
with file and line; too many of them are an error.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TypeVar

import pyarrow as pa
from pyarrow import fs

from anmi_ray import identity
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.corpus.reader import SPLITS_BY_RANK, QueryRow, Reader, dev_by_group
from anmi_ray.errors import DataError, from_os_error
from anmi_ray.records import DOCUMENT, QREL

_SUFFIXES = ("", ".gz", ".zst")
_COLUMNS = ("query-id", "corpus-id", "score")
_INTEGER = re.compile(r"[+-]?\d{1,9}")
_LAYOUT = "a BEIR folder holds corpus.jsonl, queries.jsonl and qrels/{train,dev,test}.tsv, each plain, .gz or .zst"


@dataclass(frozen=True)
class QrelRow:
    """One judged pair, as read; `split` is its file's."""

    query: str
    document: str
    grade: int
    split: str
    place: str


class LineError(Exception):
    """Why one line cannot be used; caught where lines are read, and turned into a reject."""

    def __init__(self, reason: str, key: str = "", detail: str = "") -> None:
        super().__init__(reason)
        self.reason, self.key, self.detail = reason, key, detail


Row = TypeVar("Row")


class BeirFiles:
    """The files of a BEIR folder, each plain, .gz or .zst. Raises DataError where one is missing."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._fs, self._root = _open_folder(path)

    @property
    def place(self) -> str:
        """The folder, for messages."""
        return f"corpus {self._path}"

    def documents(self) -> Iterator[tuple[str, str, str]]:
        """(id, title, text) of every line of corpus.jsonl that is well-formed."""
        yield from self._parsed("corpus.jsonl", _document)

    def queries(self) -> Iterator[tuple[str, str]]:
        """(id, text) of every line of queries.jsonl that is well-formed."""
        yield from self._parsed("queries.jsonl", _query)

    def columns(self, line: bytes, name: str) -> tuple[list[int], bool]:
        """Where query, document and grade stand, from the first line; and whether that line is a header."""
        fields = [field.strip() for field in line.decode("utf-8", "replace").split("\t")]
        if all(column in fields for column in _COLUMNS) and len(fields) == len(_COLUMNS):
            return [fields.index(column) for column in _COLUMNS], True
        if len(fields) == len(_COLUMNS) and _INTEGER.fullmatch(fields[2]):
            return [0, 1, 2], False
        raise DataError(
            f"columns are {', '.join(repr(field) for field in fields)}; must be {', '.join(_COLUMNS)}",
            f"{self.place}/{name}:1",
            "write a tab-separated header query-id, corpus-id, score (TREC's four columns: drop the second)",
        )

    def grades(self, name: str) -> Iterator[tuple[str, str, int]]:
        """(query, document, grade) of every line of a qrels file that is well-formed."""
        columns: list[int] | None = None
        for _, line in self.lines(name):
            if columns is None:
                columns, is_header = self.columns(line, name)
                if is_header:
                    continue
            try:
                yield _grade(line, columns)
            except LineError:
                continue

    def _parsed(self, name: str, parse: Callable[[bytes], Row]) -> Iterator[Row]:
        for _, line in self.lines(self.find(name)):
            try:
                yield parse(line)
            except LineError:
                continue

    def names(self, folder: str) -> list[str]:
        path = str(PurePosixPath(self._root) / folder)
        infos = self._fs.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in infos)

    def find_optional(self, name: str) -> str | None:
        for suffix in _SUFFIXES:
            path = str(PurePosixPath(self._root) / f"{name}{suffix}")
            if self._fs.get_file_info(path).type == fs.FileType.File:
                return name + suffix
        return None

    def find(self, name: str) -> str:
        found = self.find_optional(name)
        if found is None:
            there = ", ".join(self.names("")[:12]) or "nothing"
            raise DataError(f"no {name} here; there is: {there}", self.place, _LAYOUT)
        return found

    def open(self, name: str, compression: str | None) -> pa.NativeFile:
        try:
            return self._fs.open_input_stream(str(PurePosixPath(self._root) / name), compression=compression)
        except OSError as error:
            raise from_os_error(error, f"{self.place}/{name}") from error

    def lines(self, name: str) -> Iterator[tuple[str, bytes]]:
        """("corpus.jsonl:17", line) of every line that is not blank."""
        compression = {".gz": "gzip", ".zst": "zstd"}.get(PurePosixPath(name).suffix)
        with self.open(name, compression) as raw, io.BufferedReader(raw, 1 << 20) as file:  # pyright: ignore[reportArgumentType]
            try:
                for number, line in enumerate(file, start=1):
                    line = line.removeprefix(b"\xef\xbb\xbf") if number == 1 else line
                    if line.strip():
                        yield f"{name}:{number}", line.rstrip(b"\r\n")
            except OSError as error:
                place = f"{self.place}/{name}"
                raise DataError(f"cannot be read to its end: {error}", place, "fetch the file again") from error


class BeirReader(Reader):
    """Reads a BEIR folder. Raises DataError where a file or column is missing, naming what is there."""

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        self._files = BeirFiles(str(config.path))
        self._corpus, self._queries = self._files.find("corpus.jsonl"), self._files.find("queries.jsonl")
        found = {split: self._files.find_optional(f"qrels/{split}.tsv") for split in ("train", "dev", "test")}
        self._qrels = {split: name for split, name in found.items() if name}
        if not self._qrels:
            there = ", ".join(self._files.names("qrels")) or "nothing"
            raise DataError(
                f"no train.tsv, dev.tsv or test.tsv in qrels/; there is: {there}", self._files.place, _LAYOUT
            )
        self._documents: set[bytes] = set()
        self._documents_read = False
        self._judged: list[QrelRow] = []
        self._file_split: dict[str, str] = {}  # of judged queries: test before dev before train
        self._kept: set[str] = set()
        self._known: set[str] = set()  # every query id met, kept or not

    def content_fingerprint(self) -> str:
        """Hash of the files' names and bytes (as stored, so compression is not undone)."""
        h = hashlib.blake2b(digest_size=16)
        for name in (self._corpus, self._queries, *sorted(self._qrels.values())):
            h.update(f"\0{name}\0".encode())
            with self._files.open(name, compression=None) as file:
                while chunk := file.read(1 << 22):
                    h.update(chunk)
        return h.hexdigest()

    def documents(self) -> Iterator[pa.Table]:
        """Documents in file order; a document without title and text, or with an id seen before, is a reject."""
        rows: list[tuple[str, str, str]] = []
        for place, line in self._files.lines(self._corpus):
            self._seen["documents"] += 1
            try:
                row = _document(line)
                identifier = identity.doc_id(row[0])
                if identifier in self._documents:
                    raise LineError("duplicate id", row[0])
            except LineError as error:
                self._refuse("documents", place, error.key, error.reason, error.detail)
                continue
            self._documents.add(identifier)
            rows.append(row)
            if len(rows) == self.config.shard_documents:
                yield _document_table(rows)
                rows = []
        self._check_fraction("documents")
        self._documents_read = True
        if rows:
            yield _document_table(rows)

    def queries(self) -> pa.Table:
        """Queries judged in a split; those without any usable qrel are rejects that count towards no limit."""
        if not self._documents_read:
            raise AssertionError("documents() must be consumed before queries()")
        texts = self._read_queries()
        self._judged = self._read_qrels()
        splits = self._file_split
        for row in self._judged:
            splits[row.query] = min(row.split, splits.get(row.query, row.split), key=SPLITS_BY_RANK.index)
        rows = []
        for key, (text, place) in texts.items():
            if key in splits:
                rows.append(QueryRow(key, text, splits[key], place))
            else:
                self._refuse("queries", place, key, "not judged in any split", malformed=False)
        if "dev" not in self._qrels:
            rows = self._carve_dev(rows)
        table = self._query_table(rows)
        self._kept = set(table["external_id"].to_pylist())
        return table

    def qrels(self) -> pa.Table:
        """Grades of the queries that were kept; grades below zero are stored as 0 (not relevant)."""
        kept: dict[tuple[str, str], int] = {}
        for row in self._judged:
            key, split = f"{row.query} {row.document}", self._file_split[row.query]
            if row.query not in self._kept:
                self._refuse("qrels", row.place, key, "query was left out", malformed=False)
            elif split != row.split:
                self._refuse("qrels", row.place, key, "query belongs to another split", split, malformed=False)
            elif (row.query, row.document) in kept:
                self._refuse("qrels", row.place, key, "pair judged twice", str(row.grade))
            else:
                kept[row.query, row.document] = max(0, row.grade)
        self._check_fraction("qrels")
        return QREL.table(
            {
                "query_id": identity.id_array(identity.query_id(query) for query, _ in kept),
                "doc_id": identity.id_array(identity.doc_id(document) for _, document in kept),
                "grade": list(kept.values()),
            }
        )

    def _read_queries(self) -> dict[str, tuple[str, str]]:
        texts: dict[str, tuple[str, str]] = {}
        for place, line in self._files.lines(self._queries):
            self._seen["queries"] += 1
            try:
                key, text = _query(line)
                if key in texts:
                    raise LineError("duplicate id", key)
                texts[key] = (text, place)
            except LineError as error:
                self._refuse("queries", place, error.key, error.reason, error.detail)
        self._known = set(texts)
        self._check_fraction("queries")
        return texts

    def _read_qrels(self) -> list[QrelRow]:
        rows = []
        for split, name in self._qrels.items():
            columns: list[int] | None = None
            for place, line in self._files.lines(name):
                if columns is None:
                    columns, is_header = self._files.columns(line, name)
                    if is_header:
                        continue
                self._seen["qrels"] += 1
                try:
                    rows.append(self._qrel(line, columns, split, place))
                except LineError as error:
                    self._refuse("qrels", place, error.key, error.reason, error.detail)
        self._check_fraction("qrels")
        return rows

    def _qrel(self, line: bytes, columns: list[int], split: str, place: str) -> QrelRow:
        query, document, grade = _grade(line, columns)
        key = f"{query} {document}"
        if query not in self._known:
            raise LineError("unknown query", key)
        if identity.doc_id(document) not in self._documents:
            raise LineError("unknown document", key)
        return QrelRow(query, document, grade, split, place)

    def _carve_dev(self, rows: list[QueryRow]) -> list[QueryRow]:
        """Where the collection has no dev split, a share of its train queries, chosen by hash, becomes one.

        Queries that share a relevant document stay together: a reranker remembers documents, and a dev whose documents
        it was trained on promises more than a test whose documents are new to it.
        """
        train = [row for row in rows if row.split == "train"]
        relevant: dict[str, list[str]] = {}
        for judged in self._judged:
            if judged.grade > 0:
                relevant.setdefault(judged.query, []).append(judged.document)
        groups = [[row.text_key, *map(identity.doc_id, relevant.get(row.external_id, []))] for row in train]
        dev = dev_by_group([row.text_key for row in train], groups, self.config.dev_share, self.config.split_seed)
        chosen = {row.external_id for row, is_dev in zip(train, dev, strict=True) if is_dev}
        return [replace(row, split="dev") if row.external_id in chosen else row for row in rows]


def _open_folder(path: str) -> tuple[fs.FileSystem, str]:
    place = f"corpus {path}"
    try:
        if "://" in path:
            filesystem, root = fs.FileSystem.from_uri(path)
        else:
            filesystem, root = fs.LocalFileSystem(), os.path.expanduser(path)
        kind = filesystem.get_file_info(root).type
    except (OSError, ValueError, pa.ArrowException) as error:
        raise DataError(f"cannot be opened: {error}", place, "check corpus.path") from error
    if kind != fs.FileType.Directory:
        message = "no such folder" if kind == fs.FileType.NotFound else "not a folder"
        raise DataError(message, place, f"set corpus.path to the collection's folder; {_LAYOUT}")
    return filesystem, root


def _decode(line: bytes) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise LineError("not UTF-8", detail=f"byte {error.start}") from None


def _object(line: bytes) -> dict[str, object]:
    try:
        value = json.loads(_decode(line))
    except (ValueError, RecursionError) as error:
        raise LineError("broken JSON", detail=str(error)) from None
    if not isinstance(value, dict):
        raise LineError("broken JSON", detail="not an object")
    return value


def _key(value: dict[str, object]) -> str:
    key = value.get("_id")
    if isinstance(key, int) and not isinstance(key, bool):
        key = str(key)
    if not isinstance(key, str) or not key.strip():
        raise LineError("missing _id", detail=", ".join(value)[:200])
    return _checked(key, key)


def _field(value: dict[str, object], name: str, key: str, default: str | None = None) -> str:
    text = value.get(name, default)
    if text is None and default is not None:
        text = default
    if not isinstance(text, str):
        raise LineError(f"missing {name}", key, detail=", ".join(value)[:200])
    return _checked(text, key)


def _checked(text: str, key: str) -> str:
    try:
        text.encode()
    except UnicodeEncodeError:  # JSON may spell half of a surrogate pair, which no UTF-8 column can hold
        raise LineError("not valid Unicode", key) from None
    return text


def _document(line: bytes) -> tuple[str, str, str]:
    value = _object(line)
    key = _key(value)
    title, text = _field(value, "title", key, "").strip(), _field(value, "text", key).strip()
    if not title and not text:
        raise LineError("empty document", key)
    return key, title, text


def _query(line: bytes) -> tuple[str, str]:
    value = _object(line)
    key = _key(value)
    text = _field(value, "text", key).strip()
    if not text:
        raise LineError("empty query", key)
    return key, text


def _grade(line: bytes, columns: list[int]) -> tuple[str, str, int]:
    fields = _decode(line).split("\t")
    if len(fields) != len(_COLUMNS):
        raise LineError("wrong number of columns", detail=f"{len(fields)} columns, must be 3 (tab-separated)")
    query, document, grade = (fields[column].strip() for column in columns)
    if not _INTEGER.fullmatch(grade):
        raise LineError("grade is not an integer", f"{query} {document}", grade)
    return query, document, int(grade)


def _document_table(rows: list[tuple[str, str, str]]) -> pa.Table:
    keys, titles, texts = (list(column) for column in zip(*rows, strict=True))
    return DOCUMENT.table(
        {
            "doc_id": identity.id_array(identity.doc_id(key) for key in keys),
            "external_id": keys,
            "title": titles,
            "text": texts,
        }
    )
