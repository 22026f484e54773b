"""Collections in BEIR layout: corpus.jsonl, queries.jsonl, qrels/{train,dev,test}.tsv, each plain, .gz or .zst.

Any of the qrels may be missing, even all. The folder may be on any filesystem that pyarrow supports (s3://bucket/folder).
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
from anmi_ray.corpus.parsing import Document, Judged, Query
from anmi_ray.corpus.reader import Reader
from anmi_ray.tables.streams import LineError, json_object, parsed

_SUFFIXES = ("", ".gz", ".zst")
_LAYOUT = "a BEIR folder holds corpus.jsonl, queries.jsonl and perhaps qrels/{train,dev,test}.tsv, also as .gz or .zst"
_QREL_FILES = tuple(f".tsv{suffix}" for suffix in _SUFFIXES)


class BeirFiles:
    """The files of a BEIR folder, each plain, .gz or .zst. Raises DataError if one is missing."""

    def __init__(self, path: str, encoding: str = "utf-8") -> None:
        self._encoding = encoding
        self.place = f"corpus {redaction.scrub(as_written(path))}"  # for messages
        self._fs, self._root, kind = sources.opened(path, "path")
        if kind != fs.FileType.Directory:
            message = "no such folder" if kind == fs.FileType.NotFound else "not a folder"
            raise DataError(message, self.place, f"give the collection's folder (corpus.path, --collection); {_LAYOUT}")

    def documents(self) -> Iterator[Document]:
        """Yield (id, title, text) of every well-formed line of corpus.jsonl."""
        return (row for _, row in self.document_records() if not isinstance(row, LineError))

    def queries(self) -> Iterator[Query]:
        """Yield (id, text) of every well-formed line of queries.jsonl."""
        return (row for _, row in self.query_records() if not isinstance(row, LineError))

    def grades(self, name: str) -> Iterator[Judged]:
        """Yield (query, document, grade) of every well-formed line of a qrels file."""
        return (row for _, row in self.judged(name) if not isinstance(row, LineError))

    def document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        """Yield (place, document or error) of every line of corpus.jsonl."""
        lines = self.file(self.find("corpus.jsonl")).lines()
        return parsed(lines, lambda line: parsing.document_in(json_object(line), "_id"))

    def query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        """Yield (place, query or error) of every line of queries.jsonl."""
        lines = self.file(self.find("queries.jsonl")).lines()
        return parsed(lines, lambda line: parsing.query_in(json_object(line), "_id"))

    def judged(self, name: str) -> Iterator[tuple[str, Judged | LineError]]:
        """Yield (place, judged pair or error) of every line of a qrels file. DataError if its header lacks a column."""
        file = self.file(name)
        return parsing.judged_lines(file.lines(), file.place)

    def names(self, folder: str) -> list[str]:
        """Return the names in a folder of the collection, sorted."""
        path = str(PurePosixPath(self._root) / folder)
        infos = self._fs.get_file_info(fs.FileSelector(path, allow_not_found=True))
        return sorted(info.base_name for info in infos)

    def find_optional(self, name: str) -> str | None:
        """Return `name` with the suffix that the file has, or None."""
        paths = {name + suffix: str(PurePosixPath(self._root) / f"{name}{suffix}") for suffix in _SUFFIXES}
        return next((one for one, path in paths.items() if self._fs.get_file_info(path).is_file), None)

    def find(self, name: str) -> str:
        """Return `name` with the suffix that the file has. Raises DataError."""
        found = self.find_optional(name)
        if found is None:
            there = ", ".join(self.names("")[:12]) or "nothing"
            raise DataError(f"no {name} here; there is: {there}", self.place, _LAYOUT)
        return found

    def file(self, name: str) -> sources.File:
        """Return the file of this name."""
        path = str(PurePosixPath(self._root) / name)
        return sources.File(self._fs, path, name, f"{self.place}/{name}", self._encoding)


class BeirReader(Reader):
    """Reads a BEIR folder. Raises DataError if a file or column is missing, naming what is there."""

    def __init__(self, config: CorpusConfig, documents_alone: bool = False) -> None:
        super().__init__(config)
        self._files = BeirFiles(config.path or "", config.encoding)
        self._names = {"documents": self._files.find("corpus.jsonl")}
        if documents_alone:
            return
        self._names["queries"] = self._files.find("queries.jsonl")
        found = {split: self._files.find_optional(f"qrels/{split}.tsv") for split in (*config.labels, *config.hidden)}
        self._qrels = {split: name for split, name in found.items() if name}
        there = (f"qrels/{name}" for name in self._files.names("qrels") if name.endswith(_QREL_FILES))
        self.unread = tuple(name for name in there if name not in self._qrels.values())
        self.judged_splits = tuple(self._qrels)

    def place_of(self, kind: str) -> str:
        return self._files.file(self._names[kind]).place

    def content_fingerprint(self) -> str:
        """Hash of the files' names and bytes as stored."""
        names = (*self._names.values(), *sorted(self._qrels.values()))
        return sources.content_hash((name, self._files.file(name)) for name in names)

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        return self._files.document_records()

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        return self._files.query_records()

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        return self._files.judged(self._qrels[split])
