"""Collections in BEIR layout: corpus.jsonl, queries.jsonl, qrels/{train,dev,test}.tsv, each plain, .gz or .zst.

Any of the qrels may be missing, and all of them. The folder may be on any filesystem that pyarrow knows
(s3://bucket/folder). Lines that cannot be used become rejects with file and line; too many of them are an error.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePosixPath

from pyarrow import fs

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.config.paths import as_written
from anmi_ray.core import redaction
from anmi_ray.core.errors import DataError
from anmi_ray.corpus import parsing, sources
from anmi_ray.corpus.judged import JudgedReader
from anmi_ray.corpus.parsing import Document, Judged, LineError, Query, parsed
from anmi_ray.corpus.qrels import judged_lines

_SUFFIXES = ("", ".gz", ".zst")
_LAYOUT = "a BEIR folder holds corpus.jsonl, queries.jsonl and perhaps qrels/{train,dev,test}.tsv, also as .gz or .zst"
_QREL_FILES = tuple(f".tsv{suffix}" for suffix in _SUFFIXES)


class BeirFiles:
    """The files of a BEIR folder, each plain, .gz or .zst. Raises DataError where one is missing."""

    def __init__(self, path: str, encoding: str = "utf-8") -> None:
        self._encoding = encoding
        self.place = f"corpus {redaction.scrub(as_written(path))}"  # for messages
        self._fs, self._root, kind = sources.opened(path, "path")
        if kind != fs.FileType.Directory:
            message = "no such folder" if kind == fs.FileType.NotFound else "not a folder"
            raise DataError(message, self.place, f"give the collection's folder (corpus.path, --collection); {_LAYOUT}")

    def documents(self) -> Iterator[Document]:
        """(id, title, text) of every line of corpus.jsonl that is well-formed."""
        found = parsed(self.file(self.find("corpus.jsonl")).lines(), document)
        return (row for _, row in found if not isinstance(row, LineError))

    def queries(self) -> Iterator[Query]:
        """(id, text) of every line of queries.jsonl that is well-formed."""
        found = parsed(self.file(self.find("queries.jsonl")).lines(), query)
        return (row for _, row in found if not isinstance(row, LineError))

    def grades(self, name: str) -> Iterator[Judged]:
        """(query, document, grade) of every line of a qrels file that is well-formed."""
        return (row for _, row in self.judged(name) if not isinstance(row, LineError))

    def judged(self, name: str) -> Iterator[tuple[str, Judged | LineError]]:
        """(place, judged pair) of every line of a qrels file. DataError if its header lacks a column."""
        file = self.file(name)
        return judged_lines(file.lines(), file.place)

    def names(self, folder: str) -> list[str]:
        """The names in a folder of the collection, sorted."""
        path = str(PurePosixPath(self._root) / folder)
        infos = self._fs.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in infos)

    def find_optional(self, name: str) -> str | None:
        """`name` with the suffix that it has here, or None."""
        for suffix in _SUFFIXES:
            path = str(PurePosixPath(self._root) / f"{name}{suffix}")
            if self._fs.get_file_info(path).type == fs.FileType.File:
                return name + suffix
        return None

    def find(self, name: str) -> str:
        """`name` with the suffix that it has here. Raises DataError."""
        found = self.find_optional(name)
        if found is None:
            there = ", ".join(self.names("")[:12]) or "nothing"
            raise DataError(f"no {name} here; there is: {there}", self.place, _LAYOUT)
        return found

    def file(self, name: str) -> sources.File:
        """The file of this name, to be read."""
        return sources.File(
            self._fs, str(PurePosixPath(self._root) / name), name, f"{self.place}/{name}", self._encoding
        )


class BeirReader(JudgedReader):
    """Reads a BEIR folder. Raises DataError where a file or column is missing, naming what is there."""

    def __init__(self, config: CorpusConfig, documents_alone: bool = False) -> None:
        super().__init__(config)
        self._files = BeirFiles(config.path or "", config.encoding)
        self._corpus = self._files.find("corpus.jsonl")
        if documents_alone:
            return
        self._queries = self._files.find("queries.jsonl")
        found = {split: self._files.find_optional(f"qrels/{split}.tsv") for split in (*config.labels, *config.hidden)}
        self._qrels = {split: name for split, name in found.items() if name}
        there = (f"qrels/{name}" for name in self._files.names("qrels") if name.endswith(_QREL_FILES))
        self._unread = tuple(name for name in there if name not in self._qrels.values())

    def place_of(self, kind: str) -> str:
        return self._files.file(self._corpus if kind == "documents" else self._queries).place

    def content_fingerprint(self) -> str:
        """Hash of the files' names and bytes (as stored, so compression is not undone)."""
        names = (self._corpus, self._queries, *sorted(self._qrels.values()))
        return sources.content_hash((name, self._files.file(name)) for name in names)

    @property
    def judged_splits(self) -> tuple[str, ...]:
        return tuple(self._qrels)

    @property
    def unread(self) -> tuple[str, ...]:
        return self._unread

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        return parsed(self._files.file(self._corpus).lines(), document)

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        return parsed(self._files.file(self._queries).lines(), query)

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        return self._files.judged(self._qrels[split])


def document(line: bytes) -> Document:
    """A line of corpus.jsonl. LineError where it cannot be used."""
    value = parsing.json_object(line)
    key = parsing.key_of(value, "_id")
    return parsing.document_of(key, parsing.text_of(value, "title", key, ""), parsing.text_of(value, "text", key))


def query(line: bytes) -> Query:
    """A line of queries.jsonl. LineError where it cannot be used."""
    value = parsing.json_object(line)
    key = parsing.key_of(value, "_id")
    return parsing.query_of(key, parsing.text_of(value, "text", key))
