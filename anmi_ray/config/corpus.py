"""Settings of the corpus: which collection is read, and how its queries are split."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from anmi_ray.config.base import Settings

# Keys that mean something to one reader only; giving one to another reader is an error, not a silent no-op.
_ONLY = {"path": "beir", "packages": "pydocs", "test_fraction": "pydocs"}
_DEV_FRACTION = {"pydocs": 0.06, "beir": 0.1}


class CorpusConfig(Settings):
    """Which documents, queries and relevance grades a run starts from."""

    reader: Literal["pydocs", "beir"] = Field(
        default="pydocs",
        description="pydocs: this Python's own docstrings (embedded, no network); beir: a folder in BEIR layout",
    )
    path: str | None = Field(default=None, description="beir: folder with corpus.jsonl, queries.jsonl and qrels/*.tsv")
    packages: tuple[str, ...] = Field(
        default=(),
        description="pydocs: installed packages whose sources are added to the standard library's, e.g. [numpy]",
    )
    dev_fraction: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="share of queries that become dev, by hash of their text; null is .06 for pydocs, "
        "and for beir .1 of the train queries (used only where the collection has no dev qrels)",
    )
    test_fraction: float = Field(default=0.12, ge=0.0, lt=1.0, description="pydocs: share of queries that become test")
    split_seed: int = Field(
        default=0, ge=0, description="another number splits the queries another way (beir: carves another dev)"
    )
    max_train_queries: int | None = Field(
        default=None, ge=0, description="keep so many train queries, by hash of their text"
    )
    max_dev_queries: int | None = Field(
        default=None, ge=0, description="keep so many dev queries, by hash of their text"
    )
    max_test_queries: int | None = Field(
        default=None, ge=0, description="keep so many test queries, by hash of their text"
    )
    max_reject_fraction: float = Field(
        default=0.01,
        ge=0.0,
        le=1.0,
        description="share of documents, of queries or of qrels that may be refused as malformed",
    )
    shard_documents: int = Field(
        default=50_000, ge=1, description="documents per shard: BM25 statistics are a shard's own"
    )

    @field_validator("packages")
    @classmethod
    def _names(cls, packages: tuple[str, ...]) -> tuple[str, ...]:
        for name in packages:
            if not name.isidentifier():
                raise ValueError(f"{name!r} is not the import name of a top-level package (like numpy)")
        if len(set(packages)) < len(packages):
            raise ValueError("a package is named twice")
        return tuple(sorted(packages))

    @model_validator(mode="after")
    def _keys_of_this_reader(self) -> CorpusConfig:
        for key, reader in _ONLY.items():
            if reader != self.reader and key in self.model_fields_set and getattr(self, key):
                raise ValueError(f"`{key}` belongs to reader: {reader}; remove it or set reader: {reader}")
        if self.reader == "beir" and not self.path:
            raise ValueError("reader: beir needs `path`, the folder that holds corpus.jsonl")
        if self.reader == "pydocs" and self.dev_share + self.test_fraction >= 1:
            raise ValueError("dev_fraction + test_fraction must leave train queries (sum below 1)")
        return self

    @property
    def dev_share(self) -> float:
        """The dev fraction in force: the one given, else the reader's default."""
        return _DEV_FRACTION[self.reader] if self.dev_fraction is None else self.dev_fraction

    def max_queries(self, split: str) -> int | None:
        """How many queries of `split` (train, dev, test) to keep; None is all."""
        limit: int | None = getattr(self, f"max_{split}_queries")
        return limit
