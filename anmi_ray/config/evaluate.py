"""Settings of the last two stages: reranking the held-out queries, and measuring what came of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator

from anmi_ray.config.base import Settings

Normalisation = Literal["minmax", "zscore"]
Partner = Literal["bm25", "dense", "hybrid"]
MEASURES = ("nDCG@10", "MRR@10", "Recall@100")


class RerankConfig(Settings):
    """How the trained model scores the first stage's documents of the dev and test queries."""

    depth: int = Field(default=100, ge=1, le=10_000, description="documents per query, from the top of the hybrid run")
    max_tokens: int | None = Field(
        default=None,
        ge=16,
        le=32_768,
        description="tokens of a query and document, longer documents are cut; null: as trained",
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        default="auto",
        description="arithmetic of the forward pass; auto: bfloat16 where the processor computes it natively",
    )


class EvaluateConfig(Settings):
    """What is measured on the test queries, against what, and how the reranked scores are fused with the hybrid's."""

    measures: tuple[str, ...] = Field(
        default=MEASURES,
        min_length=1,
        max_length=8,
        description="names that ir_measures reads; the first is the headline",
    )
    baseline: str = Field(default="hybrid", min_length=1, description="system that the others are compared with")
    rounds: int = Field(
        default=10_000,
        ge=100,
        le=10_000_000,
        description="sign flips of the randomisation test, resamples of the bootstrap",
    )
    level: float = Field(default=0.95, gt=0.5, lt=1.0, description="confidence level of the intervals")
    fusion: bool = Field(default=True, description="also evaluate the reranked scores fused with the first stage's")
    normalisation: Normalisation = Field(
        default="zscore", description="how both scores are brought to one scale, per query over the reranked documents"
    )
    partners: tuple[Partner, ...] = Field(
        default=("bm25", "dense"),
        min_length=1,
        max_length=3,
        description="systems whose scores are fused with the reranked ones; hybrid: the fused ranks as one score",
    )
    weight_steps: int = Field(
        default=10, ge=1, le=50, description="weights tried on the dev queries are multiples of 1/weight_steps"
    )

    @field_validator("measures")
    @classmethod
    def _known_measures(cls, measures: tuple[str, ...]) -> tuple[str, ...]:
        if measures == MEASURES:
            return measures
        if len(set(measures)) != len(measures):
            raise ValueError("a measure is named twice")
        import ir_measures

        for name in measures:
            try:
                ir_measures.parse_measure(name)
            except (NameError, ValueError) as error:
                raise ValueError(
                    f"{name!r} is no measure of ir_measures ({error}); for example nDCG@10, MRR@10, Recall@100, AP"
                ) from error
        return measures

    @field_validator("partners")
    @classmethod
    def _once(cls, partners: tuple[Partner, ...]) -> tuple[Partner, ...]:
        if len(set(partners)) != len(partners):
            raise ValueError("a system is named twice")
        return partners
