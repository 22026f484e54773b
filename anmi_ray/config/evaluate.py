"""Settings of the last two stages: reranking the held-out queries, and measuring what came of it."""

from __future__ import annotations

from typing import Literal

from pydantic import Field, field_validator, model_validator

from anmi_ray.config.base import Settings

Normalisation = Literal["minmax", "zscore"]
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
    fusion: bool = Field(default=True, description="also evaluate the reranked scores fused with the hybrid's")
    normalisation: Normalisation = Field(
        default="zscore", description="how both scores are brought to one scale, per query over the reranked documents"
    )
    weights: tuple[float, ...] = Field(
        default=tuple(i / 20 for i in range(21)),
        min_length=1,
        description="weights of the reranked score to try on the dev queries; 0 is the hybrid, 1 the reranker alone",
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

    @model_validator(mode="after")
    def _weights_are_shares(self) -> EvaluateConfig:
        if any(not 0.0 <= weight <= 1.0 for weight in self.weights):
            raise ValueError("weights must lie in [0, 1]: 0 is the hybrid alone, 1 the reranker alone")
        if list(self.weights) != sorted(set(self.weights)):
            raise ValueError("weights must rise and not repeat")
        return self
