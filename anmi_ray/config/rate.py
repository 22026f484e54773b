"""Settings of the rate stage: how pairwise judgments become ratings with standard errors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from anmi_ray.config.base import Settings

LatentSd = Annotated[float, Field(gt=0.0, le=100.0)]


class RateConfig(Settings):
    """How judgments become ratings (Thurstone or Bradley-Terry, posterior means or modes)."""

    model: Literal["thurstone", "bradley-terry"] = "thurstone"
    """Link of the win probability: thurstone (probit) or bradley-terry (logit)."""
    prior: Literal["empirical-bayes"] | LatentSd | None = "empirical-bayes"
    """Sd of the ratings' Gaussian prior in latent units; empirical-bayes estimates it from a sample of queries (with
    fewer than 200 degrees of freedom, ratings are averaged over several); null is plain maximum likelihood, which
    refuses queries without a finite maximum."""
    positive_prior: Literal["fitted", "maximum", "same"] = "fitted"
    """Prior of a known positive: maximum of n draws, the same with mean and spread fitted from the sample where it
    holds enough positives, or the same as every document's."""
    estimate: Literal["mean", "mode"] = "mean"
    """Which point of the posterior is the rating: its mean, with the errors that belong to it, or its mode, which is
    faster and understates wide gaps; without a prior always the mode (maximum likelihood)."""
    dispersion: Literal["pooled"] | Annotated[float, Field(gt=0.0, le=100.0)] = "pooled"
    """Variance of an answer over a fair coin's: pooled estimates it from leave-one-out predictions, from at least 60
    degrees of freedom (else it is 1; below 200 it is at least 1); 1.0 trusts every answer."""
    judge_weights: dict[str, Annotated[float, Field(ge=0.0, le=1000.0)]] = {}
    """By judge, how many answers one of its answers counts for; 1 where it is not named."""
    ties: Literal["half", "davidson"] = "half"
    """Meaning of a preference of one half: half a win, or a tie, an outcome whose probability is fitted (davidson, with
    model: bradley-terry)."""
    judge_offsets: Literal["both-orders"] | bool = "both-orders"
    """Fit how far every judge leans towards the document it is shown first; answers are then games of their own, not
    averaged over the two orders: both-orders learns it from pairs that a judge answered in both, true from all answers,
    false not at all."""
    hide_positives: float = Field(default=0.0, ge=0.0, le=1.0)
    """Share of a query's known positives withheld from rating and mining (one stays known, except at 1): how many of
    them are then mined checks the estimated rate of false negatives, and at 1 which of them are confirmed
    (mine.anchors)."""

    def _problems(self) -> Iterator[str]:
        if self.ties == "davidson" and self.model != "bradley-terry":
            yield f"ties: davidson needs model: bradley-terry, got {self.model}"
