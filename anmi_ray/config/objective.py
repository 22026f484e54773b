"""Settings of what is learned: the loss's two terms, how they are balanced, and in which order negatives are seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pydantic import Field

from anmi_ray.config.base import Settings


class LossConfig(Settings):
    """The ranking term and the regression term. Scores are logits; `bound` squashes them for the ranking term alone."""

    ranking: Literal["infonce", "debiased", "ranknet", "listnet"] = "infonce"
    """infonce: weighted InfoNCE (38); debiased: less the expected false negatives (needs bound); ranknet: every rated
    pair against the preference that its ratings imply; listnet: the whole list against the softmax of its ratings."""
    temperature: float | None = Field(default=None, gt=0, le=100)
    """Temperature of the ranking term; null: 1 for logits, .07 for bounded scores and cosines."""
    learn_temperature: bool = False
    """Learn the temperature (needs bound or a bi-encoder: a logit's last layer absorbs any)."""
    bound: float | None = Field(default=None, gt=0, le=100)
    """C of tanh(score / c) in the ranking term; null: logits as they are."""
    positive_share: float | None = Field(default=None, ge=0, lt=1)
    """debiased: share of negatives that are false; null: the run's own estimate from its ratings."""
    hardness: float = Field(default=0.0, ge=0, le=10)
    """debiased: beta of the importance exp(beta s / temperature) of negatives."""
    regression: Literal["ratings", "margins"] = "ratings"
    """ratings: squared error of the mapped score; margins: of its distance to the anchor's (MarginMSE)."""
    target: Literal["normalised", "centred"] = "normalised"
    """Regression target: ratings less the query's mean by its spread (40), or less its mean alone, in logits (31)."""
    in_batch: bool = False
    """bi-encoder: the documents of the other lists of a group are negatives too, but for those in any list of the same
    query."""
    in_batch_lists: int | None = Field(default=None, ge=2)
    """Lists of a group, which share their documents; null: all of a step. A group is one worker's."""

    def _problems(self) -> Iterator[str]:
        if self.hardness and self.ranking != "debiased":
            yield f"hardness belongs to ranking: debiased, not to {self.ranking}"
        if self.in_batch and self.ranking not in ("infonce", "debiased"):
            yield f"in_batch adds negatives, and {self.ranking} reads ratings alone: choose infonce"
        if not self.in_batch and self.in_batch_lists is not None:
            yield "in_batch_lists belongs to in_batch: set in_batch: true"


class BalanceConfig(Settings):
    """Weights of the two terms. alpha is the ranking term's share, 1 - alpha the regression's."""

    rule: Literal["fixed", "estimated", "uncertainty", "learned", "gradnorm"] = "fixed"
    """fixed: alpha, or the curriculum's; estimated: from the share of false negatives among those mined (.75 below a
    tenth, .4 above three); uncertainty: Kendall et al.; learned: alpha with a prior; gradnorm: Chen et al., equal
    training rates by gradient norms."""
    alpha: float = Field(default=0.7, ge=0, le=1)
    """fixed: the share; learned: the prior's mode and the start."""


class CurriculumConfig(Settings):
    """Which rated negatives enter the ranking term when. Random negatives always do."""

    rule: Literal["fixed", "table3", "algorithm3", "window", "progress"] = "fixed"
    """fixed: all from minimum_gap_elo on; table3, algorithm3: the report's schedules of gap and alpha, in eighths of
    the run; window: gaps of 250 to 500, which in four moves, one whenever dev stops rising, become 150 to 350;
    progress: bands of gaps chosen by learning progress (Graves et al.)."""
    minimum_gap_elo: float = Field(default=0.0, ge=0.0)
    """fixed: rated negatives closer to the anchor than this stay out."""
    bands: int = Field(default=4, ge=2, le=64)
    """progress: bands, of equally many negatives each."""
    exploration: float = Field(default=0.05, gt=0, le=1)
    """progress: share of steps given to any band."""

    def _problems(self) -> Iterator[str]:
        if self.rule != "fixed" and self.minimum_gap_elo:
            yield f"{self.rule} sets the gaps itself: leave minimum_gap_elo at 0"
