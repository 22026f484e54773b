"""Collections by their id in ir_datasets' catalogue (https://ir-datasets.com), an optional part of the installation.

The library downloads missing files into IR_DATASETS_HOME (~/.ir_datasets) on the driver, for the fingerprint, and on
the node that ingests.
"""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError, DataError
from anmi_ray.corpus import parsing
from anmi_ray.corpus.parsing import Document, Judged, Query
from anmi_ray.corpus.reader import Reader
from anmi_ray.tables.streams import LineError, parsed

_BODIES = ("text", "body", "abstract")  # fields for the rest of a document with a title


class CatalogueReader(Reader):
    """Reads datasets of ir_datasets, one or more a split. Raises ConfigError for an unknown id, DataError otherwise."""

    def __init__(self, config: CorpusConfig) -> None:
        super().__init__(config)
        assert config.datasets is not None
        self._library = _library()
        self._splits = config.datasets.named
        self._datasets = {
            name: _load(self._library, name, split, split in config.labels and split != "train")
            for split, names in self._splits.items()
            for name in names
        }
        labelled = {
            split: [name for name in names if self._datasets[name].has("qrels")]
            for split, names in self._splits.items()
        }
        read = (*config.labels, *config.hidden)
        self._judged_by = {split: names for split, names in labelled.items() if names and split in read}
        self.judged_splits = tuple(self._judged_by)
        unread = (name for split, names in labelled.items() if split not in read for name in names)
        self.unread = tuple(f"qrels of {name}" for name in unread)
        self._first = next(iter(self._datasets))
        own, parent = self._datasets[self._first].docs_handler(), self._library.docs_parent_id(self._first)
        for name, dataset in self._datasets.items():
            other = self._library.docs_parent_id(name)
            if dataset.docs_handler() is not own and other != parent:
                raise ConfigError(
                    f"{self._first} is over the documents of {parent}, {name} over those of {other}",
                    "corpus.datasets",
                    "name datasets over one collection, and run the others separately",
                )

    def content_fingerprint(self) -> str:
        """Hash of ids, the library's version, and every record, so all is parsed twice."""
        h = hashlib.blake2b(digest_size=16)
        h.update(f"{self._library.__version__}\0{self._splits}\0".encode())
        parts = [(self._first, "docs")]
        judged = [name for names in self._judged_by.values() for name in names]
        for name in self._datasets:
            parts += [(name, "queries"), *([(name, "qrels")] if name in judged else [])]
        for name, part in parts:
            h.update(f"\0{name} {part}\0".encode())
            for _, record in self._iterate(name, part):
                h.update(repr(_fields(record, part)).encode("utf-8", "backslashreplace"))
        return h.hexdigest()

    def _document_records(self) -> Iterator[tuple[str, Document | LineError]]:
        return parsed(self._iterate(self._first, "docs"), _document)

    def _query_records(self) -> Iterator[tuple[str, Query | LineError]]:
        """Yield the queries of all datasets, which often share some: equal ones once."""
        met: dict[str, Query] = {}
        for name in self._datasets:
            mine: dict[str, Query] = {}
            for place, row in parsed(self._iterate(name, "queries"), _query):
                if not isinstance(row, LineError):
                    if met.get(row[0]) == row:
                        continue
                    mine[row[0]] = row
                yield place, row
            met |= mine

    def _qrel_records(self, split: str) -> Iterator[tuple[str, Judged | LineError]]:
        for name in self._judged_by[split]:
            yield from parsed(self._iterate(name, "qrels"), _judged)

    def _iterate(self, name: str, part: str) -> Iterator[tuple[str, Any]]:
        """Yield ("beir/scifact/test:17", the 17th record) of one part of a dataset. DataError if it cannot be read."""
        number = 0
        try:
            iterate: Callable[[], Iterable[Any]] = getattr(self._datasets[name], f"{part}_iter")
            for number, record in enumerate(iterate(), start=1):
                yield f"{name}:{number}", record
        except (OSError, RuntimeError, ValueError, KeyError) as error:  # raised by formats and downloads
            raise DataError(
                f"ir_datasets gives no more {part} after {number}: {type(error).__name__}: {error}",
                f"corpus {name}",
                "download its files again under IR_DATASETS_HOME (~/.ir_datasets); without a network, fetch them "
                f"elsewhere (ir_datasets export {name} {part}) and copy that folder",
            ) from error


def _library() -> Any:
    try:
        import ir_datasets  # pyright: ignore[reportMissingImports]
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"needs ir_datasets, which is not installed here ({error})",
            "corpus.reader: ir_datasets",
            f"{environment.install('ir-datasets')}, on every node where the driver or ingest may run",
        ) from None
    return ir_datasets


def _load(library: Any, name: str, split: str, judged: bool) -> Any:
    """Load a dataset; `judged`: it must have qrels. Raises ConfigError if it does not exist or lacks a part."""
    try:
        dataset = library.load(name)
    except KeyError:
        near = difflib.get_close_matches(name, list(library.registry), n=3, cutoff=0.6)
        hint = f"did you mean {' or '.join(near)}?" if near else "see https://ir-datasets.com for all ids"
        raise ConfigError(f"ir_datasets knows no dataset {name!r}", f"corpus.datasets.{split}", hint) from None
    parts = ("docs", "queries", "qrels") if judged else ("docs", "queries")
    if missing := [part for part in parts if not dataset.has(part)]:
        below = sorted(one for one in library.registry if one.startswith(f"{name}/"))[:12]
        raise ConfigError(
            f"{name} has no {' and no '.join(missing)}",
            f"corpus.datasets.{split}",
            f"name one that has: {', '.join(below)}" if below else f"name one with {', '.join(parts)}",
        )
    return dataset


def _document(record: Any) -> Document:
    fields = zip(("doc_id", "title", "text"), _fields(record, "docs"), strict=True)
    return parsing.document_in(dict(fields), "doc_id", "")


def _query(record: Any) -> Query:
    return parsing.query_in(dict(zip(("query_id", "text"), _fields(record, "queries"), strict=True)), "query_id")


def _judged(record: Any) -> Judged:
    value = {"query_id": record.query_id, "doc_id": record.doc_id}
    return parsing.judged_of(parsing.key_of(value, "query_id"), parsing.key_of(value, "doc_id"), record.relevance)


def _fields(record: Any, part: str) -> tuple[Any, ...]:
    """Return (id, title, text), (id, text) or (query, document, grade) of a record.

    The text of a document with a title is in the field text, body or abstract; other texts are the library's defaults.
    """
    if part == "docs":
        body = next((name for name in _BODIES if name in record._fields), None)
        if "title" in record._fields and body:
            return record.doc_id, record.title, getattr(record, body)
        return record.doc_id, "", record.default_text()
    if part == "queries":
        return record.query_id, record.default_text()
    return record.query_id, record.doc_id, record.relevance
