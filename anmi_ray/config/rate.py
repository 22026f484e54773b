"""Settings of the rate stage: how pairwise judgments become ratings with standard errors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from anmi_ray.config.base import Settings

LatentSd = Annotated[float, Field(gt=0.0, le=100.0)]


class RateConfig(Settings):
    """How judgments become ratings (Thurstone or Bradley-Terry, maximum a posteriori)."""

    model: Literal["thurstone", "bradley-terry"] = Field(
        default="thurstone", description="link of the win probability: thurstone (probit) or bradley-terry (logit)"
    )
    prior: Literal["empirical-bayes"] | LatentSd | None = Field(
        default="empirical-bayes",
        description="sd of the ratings' Gaussian prior in latent units; empirical-bayes estimates it from a sample of "
        "queries; null is plain maximum likelihood, which refuses queries without a finite maximum",
    )
    positive_prior: Literal["fitted", "maximum", "same"] = Field(
        default="fitted",
        description="prior of a known positive: maximum of n draws, the same with mean and spread fitted from the "
        "sample where it holds enough positives, or the same as every document's",
    )
    sample_queries: int = Field(default=5000, ge=1, description="queries from which prior and dispersion are estimated")
    dispersion: Literal["pooled", "pearson"] | Annotated[float, Field(gt=0.0, le=100.0)] = Field(
        default="pooled",
        description="variance of an answer over a fair coin's: pooled estimates it from leave-one-out predictions, "
        "pearson from fitted residuals (too small where games are few), 1.0 trusts every answer",
    )
    inconsistent_strength: float = Field(
        default=0.5,
        gt=0.0,
        le=1.0,
        description="strength of a judge's answer whose two orders prefer different documents",
    )
    max_iterations: int = Field(default=100, ge=1, le=10_000, description="Newton steps per query before giving up")
    tolerance: float = Field(
        default=1e-8,
        gt=0.0,
        le=1e-2,
        description="largest gradient per game of a document at which a fit has converged",
    )
