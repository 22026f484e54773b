"""Settings of retrieval: the retrievers, their fusion, and how many candidates a query gets."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, ClassVar, Literal, Self, get_args

from pydantic import Field, field_validator

from anmi_ray.config.base import Distinct, Kind, Settings, StartModel
from anmi_ray.config.paths import PathOrUri

Retriever = Literal["engine", "bm25", "lucene", "dense", "late"]
RETRIEVERS: tuple[Retriever, ...] = get_args(Retriever)
USUAL: tuple[Retriever, ...] = ("bm25", "dense")


class TermWeights(Settings):
    """BM25's two parameters."""

    k1: float = Field(default=0.9, ge=0.0, le=10.0)
    """Saturation of term frequency."""
    b: float = Field(default=0.4, ge=0.0, le=1.0)
    """Normalisation by document length."""


class Bm25Config(TermWeights):
    """BM25 as Lucene scores it."""

    stemmer: str | None = "english"
    """Snowball stemmer of this language; null does not stem."""
    stopwords: str | None = "en"
    """List of stop words left out (en, de, fr, …); null keeps all words."""


class LuceneConfig(TermWeights):
    """BM25 by Lucene itself, through pyserini."""

    language: str = Field(default="en", min_length=2)
    """Whose analyzer takes texts apart, by its two letters (en, de, fr, …)."""
    stemmer: Literal["porter", "krovetz"] | None = "porter"
    """English only: how words are stemmed; null does not stem."""
    stopwords: bool = True
    """English only: leave stop words out."""


class FlatIndex(Kind[Literal["flat"]]):
    """Every vector is compared: exact."""


class IvfPqIndex(Kind[Literal["ivfpq"]]):
    """Inverted lists of product-quantised vectors (Jégou, Douze and Schmid 2011): little memory, fast, inexact.

    It proposes documents, whose similarity is then computed exactly.
    """

    probes: int = Field(default=16, ge=1)
    """Lists that a query is compared with."""


class HnswIndex(Kind[Literal["hnsw"]]):
    """A navigable small-world graph (Malkov and Yashunin 2020) over whole vectors: fast, almost exact, larger."""


AnyIndex = Annotated[FlatIndex | IvfPqIndex | HnswIndex, Field(discriminator="kind")]


class EncoderConfig(StartModel):
    """How texts are encoded."""

    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    """Arithmetic of the encoder; auto: bfloat16 where the processor computes it natively."""
    query_prompt: str | None = None
    """Put before every query, such as 'query: '; not for ColBERT."""
    document_prompt: str | None = None
    """Put before every document, such as 'passage: '; not for ColBERT."""


class DenseConfig(EncoderConfig):
    """Bi-encoder retrieval by inner product."""

    max_tokens: int = Field(default=128, ge=8, le=32768)
    """Tokens of a text that are encoded; the rest is cut off."""
    stored: Literal["float32", "float16"] = "float32"
    """How vectors are kept: float16 halves what they take."""
    index: AnyIndex = FlatIndex(kind="flat")
    """How a shard's vectors are searched."""


class LateConfig(EncoderConfig):
    """Late interaction (Khattab and Zaharia 2020) over the documents that the other retrievers found.

    The model is a ColBERT checkpoint, or any encoder, whose token vectors then are compared.
    """

    max_tokens: int | None = Field(default=None, ge=8, le=32768)
    """Tokens of a document that are encoded; null: as the ColBERT checkpoint says, else 128."""
    query_tokens: int | None = Field(default=None, ge=4, le=32768)
    """Tokens of a query that are encoded; null: as the ColBERT checkpoint says, else 32."""


class FusionConfig(Settings):
    """How the retrievers' rankings become one, the hybrid's."""

    rule: Literal["rrf", "scores"] = "rrf"
    """rrf: reciprocal ranks, 1 / (60 + rank); scores: the scores, from 0 to 1 over the documents of the query."""
    weights: dict[Retriever, Annotated[float, Field(gt=0)]] = {}
    """Weight of each retriever that is not to count as 1, such as {dense: 2.0}."""


class RetrieveConfig(Settings):
    """Which documents a query is ranked over, and which of them are compared."""

    by_content = frozenset({"engine"})
    rates_dev: ClassVar[bool] = False  # whether dev queries without a label get candidates too

    retrievers: Annotated[tuple[Retriever, ...], Distinct] = Field(default=USUAL, min_length=1)
    """The retrievers whose rankings are fused to the hybrid; late ranks what the others found."""
    bm25: Bm25Config = Bm25Config()
    lucene: LuceneConfig = LuceneConfig()
    dense: DenseConfig = DenseConfig()
    late: LateConfig = LateConfig()
    engine: PathOrUri | None = Field(default=None, min_length=1)
    """The retriever engine: what another search finds, such as the one in use. A run of one system: TREC's format, MS
    MARCO's, or a table (.csv, .jsonl, .parquet) with query_id (or the query's text), doc_id, and score or rank."""
    fusion: FusionConfig = FusionConfig()
    depth: int = Field(default=100, ge=1, le=10_000)
    """Documents of a query in every run."""
    candidates: int = Field(default=50, ge=2)
    """Documents from the top of the hybrid run that are compared."""
    random_negatives: int = Field(default=8, ge=0)
    """Random documents per train query, trained on, never compared."""

    @field_validator("retrievers")
    @classmethod
    def _once(cls, retrievers: tuple[Retriever, ...]) -> tuple[Retriever, ...]:
        """In the order that they are always told in: which comes first says nothing."""
        if retrievers == ("late",):
            raise ValueError("late ranks what other retrievers found: add one, such as bm25")
        return tuple(name for name in RETRIEVERS if name in retrievers)

    @property
    def searchers(self) -> tuple[Retriever, ...]:
        """The retrievers that search the whole collection: all but late."""
        return tuple(name for name in self.retrievers if name != "late")

    def _problems(self) -> Iterator[str]:
        if ("engine" in self.retrievers) != (self.engine is not None):
            yield "the retriever engine reads the file `engine`: give both, or neither"
        if strangers := sorted(set(self.fusion.weights) - set(self.retrievers)):
            yield (
                f"fusion.weights names {', '.join(strangers)}, but retrievers is {', '.join(self.retrievers)}: name "
                "those alone, or add it to retrievers"
            )
        if self.candidates > self.depth:
            yield (
                f"candidates is {self.candidates}, but a run holds depth = {self.depth} documents: "
                "raise depth or lower candidates"
            )


class RatedDevConfig(RetrieveConfig):
    """Retrieval where judges compare documents of dev queries without a label, too."""

    rates_dev = True

    @classmethod
    def of(cls, retrieve: RetrieveConfig) -> Self:
        """The same settings."""
        return cls.model_construct(**{name: getattr(retrieve, name) for name in type(retrieve).model_fields})
