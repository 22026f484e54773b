"""Settings of distillation: which pairs an ensemble of judges is asked about, and the model that learns from them."""

from __future__ import annotations

from collections.abc import Iterator
from types import MappingProxyType
from typing import Literal

from pydantic import Field

from anmi_ray.config.base import Settings
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.config.learning import LearnConfig, Shares

Target = Literal["binary", "ternary", "two-head"]
# names of the logits by target, in order, as a model's config.json lists them
# shares of the queries whose pairs choose the checkpoint and calibrate, and of those that are in the report alone
DEV_SHARE = 0.15
TEST_SHARE = 0.2
LABELS: dict[Target, tuple[str, ...]] = {
    "binary": ("first", "second"),
    "ternary": ("first", "second", "tie"),
    "two-head": ("mean", "decided"),
}


class SampleConfig(Settings):
    """Pairs of candidates: queries alike, no document twice, so that pairs share nothing but their query."""

    pairs: int = Field(default=2000, ge=10, le=10_000_000)
    """Pairs of two candidates; queries get equally many, or one more by hash."""
    seed: int = Field(default=0, ge=0)
    """Seed of the pairs that are drawn, and of the split by query."""


class DistillConfig(LearnConfig):
    """A small judge learned from a few judgments of an expensive ensemble; `{kind: distilled}` in a panel asks it.

    It learns a pair's score, the mean vote of the ensemble: 0 where all prefer the first document, 1 where all prefer
    the second.
    """

    group = "distill"
    items = "pairs"
    former_default = MappingProxyType({"engine": "ddp"})

    judge: JudgeConfig = JudgeConfig()
    """The ensemble that is distilled, as judge."""
    sample: SampleConfig = SampleConfig()
    """The pairs that it is asked about."""
    votes: Literal["graded", "three"] = "graded"
    """An answer of a judge as it is, or as one of three: first, second, or a tie where it is a half."""

    form: Literal["pairwise", "pointwise", "bi-encoder"] = "bi-encoder"
    """bi-encoder: a difference of cosines, which a small model learns from few pairs; pointwise: of a cross-encoder's
    scores of each document; pairwise: reads the query and both documents, for larger models."""
    target: Target = "binary"
    """What is learned of a score c: binary, P(second) = c; pairwise alone: ternary, a tie with P = 1 - |2c - 1| and the
    rest on the preferred side; two-head, E[c] and E|2c - 1| by a logit each."""

    pairs_per_step: int = Field(default=16, ge=1)
    """Pairs of documents per optimiser step."""
    learning_rate: float = Field(default=2e-5, gt=0, le=1.0)
    """Peak learning rate of the transformer."""
    dev_points: Shares = Field(default=(0.0, 0.5, 1.0), min_length=1)
    """Shares of the run at which dev is evaluated, the start among them; the best point is exported."""

    @property
    def per_step(self) -> int:
        """Pairs of an optimiser step."""
        return self.pairs_per_step

    def _problems(self) -> Iterator[str]:
        yield from super()._problems()
        if self.form != "pairwise" and self.target != "binary":
            yield "a difference of two scores knows no ties: set target: binary, or form: pairwise"
        if self.judge.orders == "one":
            yield "judge.orders: one needs a fit of what judges prefer for its place: leave it at both"
        if any(judge.kind == "distilled" for judge in self.judge.judges):
            yield "judge is the ensemble that is distilled: it cannot ask the distilled judge"
