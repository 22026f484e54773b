"""Settings of the corpus: which collection is read, and how its queries are split."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from typing import Annotated, Any, Generic, Literal, Self, TypeVar

from pydantic import BeforeValidator, Field, ValidationInfo, field_validator, model_validator

from anmi_ray.config.base import Distinct, Settings
from anmi_ray.config.paths import PathOrUri, as_written

# Keys that mean something to some readers only; giving one to another reader is an error, not a silent no-op.
_ONLY = {
    "path": ("beir",),
    "documents": ("trec", "table"),
    "queries": ("trec", "table"),
    "qrels": ("trec", "table"),
    "topic_fields": ("trec",),
    "encoding": ("beir", "trec", "table"),
    "columns": ("table",),
    "datasets": ("ir_datasets",),
    "packages": ("pydocs",),
    "test_fraction": ("pydocs",),
    "own_document": ("beir", "trec", "table", "ir_datasets"),
}
_NEEDS = {
    "beir": {"path": "the folder that holds corpus.jsonl"},
    "trec": {"documents": "files or folders", "queries": "topics"},
    "table": {"documents": "files or folders", "queries": "a table"},
    "ir_datasets": {"datasets": "such as {train: beir/scifact/train, test: beir/scifact/test}"},
    "pydocs": {},
}
DOCUMENTS_ALONE = "documents alone"  # the key of a validation's context that says that no query and label is read
_OF_QUERIES = ("queries", "qrels")
_DEV_FRACTION = {"pydocs": 0.06}
_DEV_FRACTION_OF_JUDGED = 0.1
_HELD_OUT_FRACTION = 0.2
_MOST_HELD_OUT = 100

Size = Annotated[int, Field(strict=True, ge=0)] | Annotated[float, Field(ge=0, lt=1)] | Literal["auto"]

_LISTED = BeforeValidator(lambda value: (value,) if isinstance(value, str) else value)
Names = Annotated[tuple[str, ...], _LISTED]
Paths = Annotated[tuple[PathOrUri, ...], _LISTED]
Topic = Literal["title", "desc", "narr"]
SplitName = Literal["train", "dev", "test"]
OwnDocument = Literal["same-text", "same-id", "keep"]
SplitNames = Annotated[tuple[SplitName, ...], _LISTED, Distinct]
_SPLITS: tuple[SplitName, ...] = ("train", "dev", "test")


Named = TypeVar("Named", bound=tuple[str, ...])


_NONE: Any = ()  # of whichever names


class Splits(Settings, Generic[Named]):
    """Names or files of each split, one or more."""

    train: Named = _NONE
    """Train queries."""
    dev: Named = _NONE
    """Dev queries; if missing, some train queries become dev."""
    test: Named = _NONE
    """Test queries."""

    @model_validator(mode="before")
    @classmethod
    def _mapping(cls, data: object) -> object:
        if isinstance(data, str | list | tuple):
            raise ValueError("name its split, such as {test: NAME} or {train: NAME, test: [NAME, NAME]}")
        return data

    def _problems(self) -> Iterator[str]:
        if not self.named:
            yield "name at least one of train, dev, test"
        every = [name for names in self.named.values() for name in names]
        if twice := sorted({name for name in every if every.count(name) > 1}):
            yield f"{', '.join(twice)} is named twice; give every split its own"

    @property
    def named(self) -> dict[str, tuple[str, ...]]:
        """The names by split, of those that have some, in the order train, dev, test."""
        every = {"train": self.train, "dev": self.dev, "test": self.test}
        return {split: names for split, names in every.items() if names}


class Columns(Settings):
    """Names of columns; null: the usual name that the table has (an error if it has two)."""

    doc_id: str | None = None
    """Id of a document; null: _id, id, doc_id, docid or docno."""
    title: str | None = None
    """Title of a document; null: title, where there is one."""
    text: str | None = None
    """Text of a document; null: text."""
    query_id: str | None = None
    """Id of a query; null: _id, id, query_id or qid."""
    query: str | None = None
    """Text of a query; null: text or query."""
    qrels_query_id: str | None = None
    """Id of a query in relevance grades; null: query-id, query_id or qid."""
    qrels_doc_id: str | None = None
    """Id of a document in relevance grades; null: corpus-id, corpus_id, doc_id, docid or docno."""
    grade: str | None = None
    """Relevance grade; null: score, grade, relevance or rel."""


class CorpusConfig(Settings):
    """Which documents, queries and relevance grades a run starts from."""

    reader: Literal["pydocs", "beir", "trec", "table", "ir_datasets"] = "pydocs"
    """pydocs: this Python's own docstrings (embedded, no network); beir: a folder in BEIR layout; trec: SGML or MS
    MARCO's tsv, topics, qrels; table: Parquet, JSON lines, csv or tsv; ir_datasets: by that library's ids."""
    path: PathOrUri | None = None
    """beir: folder with corpus.jsonl, queries.jsonl and, where there are any, qrels/*.tsv."""
    documents: Paths = ()
    """trec, table: files and folders of documents, local or s3://, gs://, file://; read sorted by path."""
    queries: Paths = ()
    """trec: files of topics (<top> or tsv); table: of queries. Their split is that of their qrels, else train."""
    qrels: Splits[Paths] | None = None
    """trec, table: files of relevance grades by split, or null; a grade below 0 counts as 0, not relevant."""
    labels: SplitNames = _SPLITS
    """Splits whose relevance grades are read. Other grades are never read, and queries of those splits are unlabelled:
    [test] trains without labels, and measures with them."""
    unlabelled: Literal["train", "leave-out"] = "train"
    """Queries without a grade in any split that is read: train queries, or left out of the collection."""
    unlabelled_dev: Size | None = None
    """How many queries without a grade become dev, by hash of their text: a share below 1, a number, or auto, a fifth
    of them but at most 100; null is auto with evaluate.judged: unlabelled, else 0. Judges compare their documents like
    those of train queries where these need no label (mine.anchors), and training's best point, weights of fusions and
    the baseline are chosen by their ratings; else by direct answers (evaluate.judged)."""
    unlabelled_test: Size | None = None
    """How many queries without a grade become test, as for unlabelled_dev, and before it: judges measure on them
    (evaluate.judged)."""
    topic_fields: Annotated[tuple[Topic, ...], Distinct] = Field(default=("title",), min_length=1)
    """trec: what of a <top> is the query, joined in this order."""
    encoding: str = "utf-8"
    """beir, trec, table: of all its text files, by any name that Python knows, such as latin-1, cp1252, utf-16, gb18030
    or shift_jis."""
    columns: Columns = Columns()
    """table: which column is what."""
    datasets: Splits[Names] | None = None
    """ir_datasets: ids by split, all over the same documents; see https://ir-datasets.com."""
    packages: Annotated[tuple[str, ...], Distinct] = ()
    """pydocs: installed packages whose sources are added to the standard library's, e.g. [numpy]."""
    dev_fraction: float | None = Field(default=None, ge=0.0, lt=1.0)
    """Share of queries that become dev, by hash of their text; null is .06 for pydocs, for all others .1 of the train
    queries that have a grade (used only where no dev grades are read)."""
    test_fraction: float = Field(default=0.12, ge=0.0, lt=1.0)
    """pydocs: share of queries that become test."""
    split_seed: int = Field(default=0, ge=0)
    """Seed of the split of queries (all but pydocs: of dev alone)."""
    max_train_queries: int | None = Field(default=None, ge=0)
    """Largest number of train queries, chosen by hash of their text."""
    max_dev_queries: int | None = Field(default=None, ge=0)
    """Largest number of dev queries, chosen by hash of their text."""
    max_test_queries: int | None = Field(default=None, ge=0)
    """Largest number of test queries, chosen by hash of their text."""
    own_document: OwnDocument = "same-text"
    """All but pydocs: a document that has the id of a query is left out of what is ranked for that query. same-text: if
    it repeats the query's text; same-id: always, as BEIR does; keep: never."""
    max_reject_fraction: float = Field(default=0.01, ge=0.0, le=1.0)
    """Share of documents, of queries or of qrels that may be refused as malformed."""
    shard_documents: int = Field(default=50_000, ge=1)
    """Documents per shard, the unit of reading and indexing."""

    @field_validator("packages")
    @classmethod
    def _names(cls, packages: tuple[str, ...]) -> tuple[str, ...]:
        for name in packages:
            if not name.isidentifier():
                raise ValueError(f"{name!r} is not the import name of a top-level package (like numpy)")
        return tuple(sorted(packages))

    @field_validator("encoding")
    @classmethod
    def _text_encoding(cls, name: str) -> str:
        try:
            "".encode(name)
            codecs.getincrementaldecoder(name)
        except LookupError:
            raise ValueError(f"Python has no text encoding {name!r}; name one such as latin-1 or gb18030") from None
        return "utf-8" if codecs.lookup(name).name == "utf-8" else name

    @field_validator("labels")
    @classmethod
    def _in_order(cls, labels: tuple[SplitName, ...]) -> tuple[SplitName, ...]:
        return tuple(split for split in _SPLITS if split in labels)

    def _problems(self) -> Iterator[str]:
        for key, readers in _ONLY.items():
            value = getattr(self, key)
            if self.reader not in readers and key in self.model_fields_set and value and value != Columns():
                yield f"`{key}` belongs to reader: {' or '.join(readers)}; remove it or set the reader so"
        if self.reader == "pydocs" and self.dev_share + self.test_fraction >= 1:
            yield "dev_fraction + test_fraction must leave train queries (sum below 1)"

    @model_validator(mode="after")
    def _has_what_the_reader_needs(self, info: ValidationInfo) -> CorpusConfig:
        spared = _OF_QUERIES if info.context and info.context.get(DOCUMENTS_ALONE) else ()
        for key, what in _NEEDS[self.reader].items():
            if key not in spared and not getattr(self, key):
                raise ValueError(f"reader: {self.reader} needs `{key}`, {what}")
        return self

    @property
    def dev_share(self) -> float:
        """The dev fraction in force: the one given, else the reader's default."""
        default = _DEV_FRACTION.get(self.reader, _DEV_FRACTION_OF_JUDGED)
        return default if self.dev_fraction is None else self.dev_fraction

    @property
    def name(self) -> str:
        """Name of the collection in messages and reports: its path, its id, or its reader."""
        ids = [dataset for names in self.datasets.named.values() for dataset in names] if self.datasets else []
        return as_written(self.path or "") or ", ".join(map(as_written, self.documents or ids)) or self.reader

    @property
    def hidden(self) -> tuple[SplitName, ...]:
        """Splits whose grades are read but kept apart."""
        return ()

    def held_out(self, split: Literal["dev", "test"], queries: int) -> int:
        """Number of `queries` distinct queries without a grade that become `split`."""
        size: Size | None = getattr(self, f"unlabelled_{split}")
        if size == "auto":
            return min(_MOST_HELD_OUT, round(_HELD_OUT_FRACTION * queries))
        return max(1, round(size * queries)) if isinstance(size, float) and size else int(size or 0)

    def max_queries(self, split: str) -> int | None:
        """How many queries of `split` (train, dev, test) to keep; None is all."""
        limit: int | None = getattr(self, f"max_{split}_queries")
        return limit


class IngestConfig(CorpusConfig):
    """The corpus as ingest reads it.

    If the panel is simulated, grades that `labels` leaves out are kept apart for it, since such judges know the truth.
    An unset size of held-out queries is 0 here.
    """

    tells_panel: bool = False
    """Whether hidden grades are kept for a simulated panel."""

    @classmethod
    def of(cls, corpus: CorpusConfig, simulated: bool, judges_measure: bool = False) -> Self:
        """Settings for ingest.

        simulated: the panel is simulated.
        judges_measure: judges measure queries without a grade.
        """
        settings = {name: getattr(corpus, name) for name in type(corpus).model_fields}
        for name in ("unlabelled_dev", "unlabelled_test"):
            settings[name] = "auto" if settings[name] is None and judges_measure else settings[name] or None
        return cls.model_construct(**settings, tells_panel=simulated and corpus.labels != _SPLITS)

    @property
    def hidden(self) -> tuple[SplitName, ...]:
        return tuple(split for split in _SPLITS if split not in self.labels) if self.tells_panel else ()
