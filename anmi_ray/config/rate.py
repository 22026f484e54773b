"""Settings of the rate stage: how pairwise judgments become ratings with standard errors."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from anmi_ray.config.base import Settings

LatentSd = Annotated[float, Field(gt=0.0, le=100.0)]


class RateConfig(Settings):
    """How judgments become ratings (Thurstone or Bradley-Terry, posterior means or modes)."""

    model: Literal["thurstone", "bradley-terry"] = Field(
        default="thurstone", description="link of the win probability: thurstone (probit) or bradley-terry (logit)"
    )
    prior: Literal["empirical-bayes"] | LatentSd | None = Field(
        default="empirical-bayes",
        description="sd of the ratings' Gaussian prior in latent units; empirical-bayes estimates it from a sample of "
        "queries (with fewer than 200 degrees of freedom, ratings are averaged over several); null is plain maximum "
        "likelihood, which refuses queries without a finite maximum",
    )
    positive_prior: Literal["fitted", "maximum", "same"] = Field(
        default="fitted",
        description="prior of a known positive: maximum of n draws, the same with mean and spread fitted from the "
        "sample where it holds enough positives, or the same as every document's",
    )
    estimate: Literal["mean", "mode"] = Field(
        default="mean",
        description="which point of the posterior is the rating: its mean, with the errors that belong to it, or its "
        "mode, which is faster and understates wide gaps; without a prior always the mode (maximum likelihood)",
    )
    dispersion: Literal["pooled", "pearson"] | Annotated[float, Field(gt=0.0, le=100.0)] = Field(
        default="pooled",
        description="variance of an answer over a fair coin's: pooled estimates it from leave-one-out predictions, "
        "pearson from fitted residuals (too small where games are few), both from at least 60 degrees of freedom (else "
        "it is 1; below 200 it is at least 1); 1.0 trusts every answer",
    )
    inconsistent_strength: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="strength of a judge's answer whose two orders prefer different documents, where orders are "
        "averaged (judge_offsets: false); below 1 gaps are overstated, for such pairs are the close ones",
    )
    judge_weights: dict[str, Annotated[float, Field(ge=0.0, le=1000.0)]] = Field(
        default={}, description="by judge, how many answers one of its answers counts for; 1 where it is not named"
    )
    strength: Literal["unit", "linear", "sqrt", "squared", "information", "learned"] = Field(
        default="unit",
        description="how many games an answer counts for: unit weighs all alike; linear, sqrt and squared by the "
        "consensus E|C| that the judge foretells, |2p - 1| of one that does not; information by p(1 - p) at the gap of "
        "a first fit; learned by p(1 - p)/v there, v fitted to how far answers lie from what the other pairs foretell",
    )
    ties: Literal["half", "davidson", "rao-kupper", "glenn-david"] = Field(
        default="half",
        description="what a preference of one half says: half a win, or a tie of its own probability: davidson and "
        "rao-kupper with bradley-terry, glenn-david with thurstone",
    )
    tie_width: Literal["fitted"] | LatentSd = Field(
        default="fitted", description="how wide ties reach: davidson's nu, else eta in latent units; needs ties"
    )
    lapse: Literal["fitted"] | Annotated[float, Field(ge=0.0, lt=1.0)] = Field(
        default=0.0, description="share of answers that are a coin's, whatever the documents; with ties: half only"
    )
    judge_offsets: Literal["both-orders"] | bool = Field(
        default="both-orders",
        description="fit how far every judge leans towards the document it is shown first; answers are then games of "
        "their own, not averaged over the two orders: both-orders learns it from pairs that a judge answered in both, "
        "true from all answers, false not at all",
    )
    hide_positives: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="share of a query's known positives that rating and mining are not told of (one stays known, but "
        "at 1): how many of them are then mined checks the estimated rate of false negatives, and at 1 which of them "
        "are confirmed (mine.anchors)",
    )

    @model_validator(mode="after")
    def _combination(self) -> RateConfig:
        wanted = {"davidson": "bradley-terry", "rao-kupper": "bradley-terry", "glenn-david": "thurstone"}
        if self.ties != "half" and wanted[self.ties] != self.model:
            raise ValueError(f"ties: {self.ties} is a model of {wanted[self.ties]}, and model is {self.model}")
        if self.ties != "half" and self.lapse:
            raise ValueError(f"ties: {self.ties} has no form with a lapse rate; set lapse to 0 or ties to half")
        if self.strength in ("information", "learned") and self.prior is None:
            raise ValueError(
                f"strength: {self.strength} asks a first fit how sure it is of every pair, and without a prior that is "
                "too sure; set prior to empirical-bayes or strength to unit"
            )
        return self
