"""Settings of the mine stage: from gaps to weighted negatives. Gaps are in Elo points (anchor minus document)."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, Literal

from pydantic import Field, model_validator

from anmi_ray.config.base import Settings
from anmi_ray.config.rules import (
    NAMED,
    AllowRule,
    GateRule,
    PosteriorRule,
    RocketQA,
    SampleRule,
    Top,
    Validate,
    WeighRule,
    nearest,
)

Category = Literal["danger", "soft", "goldilocks", "medium", "easy"]


class Band(Settings):
    """One row of Table 2: documents whose gap is below `below` (and not below the row before)."""

    category: Category
    """Name of the band; it decides the curriculum tier."""
    below: float | None
    """Upper edge of the band in points; null for the last band."""
    weight: float = Field(ge=0, le=1)
    """Weight of a negative in this band."""


TABLE_2 = (
    Band(category="danger", below=100.0, weight=0.0),
    Band(category="soft", below=200.0, weight=0.5),
    Band(category="goldilocks", below=400.0, weight=1.0),
    Band(category="medium", below=600.0, weight=0.7),
    Band(category="easy", below=None, weight=0.3),
)


class MineConfig(Settings):
    """Which negatives an example gets, and with what weight: allow, weigh, sample."""

    how_only = frozenset({"rule"})  # its meaning is in the fields that it fills

    rule: str | None = None
    """A composition by name (posterior, table2, simans, ...): fills allow, weigh and sample if not given."""
    allow: tuple[AllowRule, ...] = (GateRule(rule="gate"),)
    """Who may be a negative, rule after rule: gate, denoise, rocketqa, rank-window, score-margin, positive-relative,
    validate; known positives never may."""
    weigh: WeighRule = PosteriorRule(rule="posterior")
    """What it weighs, 0 to 1: table2, posterior, percentile, relative, beta-mixture, gaussian-mixture, reliability,
    optimum, equal."""
    sample: SampleRule = Top(rule="top")
    """Which of those with weight an example takes: top, weighted, uniform, ranked, simans, closed."""
    bands: tuple[Band, ...] = Field(default=TABLE_2, min_length=2)
    """Bands of the gap with weights."""
    false_negative_gap: float = Field(default=100.0, ge=-1000, le=1000)
    """True gap below which a document is a false negative, points."""
    negatives: int = Field(default=7, ge=1, le=1000)
    """Rated negatives per example, at most."""
    random_negatives: int = Field(default=2, ge=0, le=1000)
    """Random corpus negatives added to each example."""
    rated_extra: int = Field(default=4, ge=0, le=1000)
    """Further rated documents of weight 0, for the regression loss only."""
    anchors: Literal["known", "confirmed", "rated", "retrieved"] = "known"
    """What anchors a query. known: its known positives; queries without one are refused. confirmed: also, without one,
    those of its four likeliest documents with P(relevant) > .5, or else the likeliest, given rank, similarity, rating,
    and answers of judges who are asked about them directly. rated: without asking, if judges can only compare.
    retrieved: no judge at all, rank and similarity alone (pseudo-labels)."""

    @model_validator(mode="before")
    @classmethod
    def _composed(cls, data: Any) -> Any:
        name = data.get("rule") if isinstance(data, dict) else None
        if not isinstance(name, str):
            return data
        if name not in NAMED:
            raise ValueError(f"rule: no composition is called {name!r}; {nearest(name, NAMED)}")
        return {**NAMED[name], **data}

    def _problems(self) -> Iterator[str]:
        names = [rule.rule for rule in self.allow]
        if twice := {name for name in names if names.count(name) > 1}:
            yield f"allow: {', '.join(sorted(twice))} is listed twice in {names}"
        if "validate" in names[1:]:
            yield (
                f"allow: validate comes after {names[0]}, which would refuse what validate is to judge; its verdicts "
                f"are final, so write it first: [validate, {', '.join(n for n in names if n != 'validate')}]"
            )
        edges = [band.below for band in self.bands[:-1]]
        ascending = [edge for edge in edges if edge is not None]
        if len(ascending) < len(edges) or self.bands[-1].below is not None:
            yield "bands: every band but the last needs an upper edge (below), and the last has none"
        if any(low >= high for low, high in pairwise(ascending)):
            yield f"bands: edges must ascend, not {ascending}"
        names = [band.category for band in self.bands]
        if len(set(names)) < len(names):
            yield f"bands: a category is listed twice in {names}"

    @property
    def composition(self) -> str:
        """The rules by name, in order, such as gate -> posterior -> top."""
        return " -> ".join([*(rule.rule for rule in self.allow), self.weigh.rule, self.sample.rule])

    @property
    def validation(self) -> Validate | None:
        """The rule that asks for direct judgments of borderline documents, and alone reads any, if there is one."""
        return next((rule for rule in self.allow if isinstance(rule, Validate)), None)

    @property
    def asking(self) -> MineConfig:
        """These settings with the defaults of all that does not decide which documents are borderline.

        Raises AssertionError where no rule validates.
        """
        if self.validation is None:
            raise AssertionError(f"{self.composition} validates nothing")
        band = {"rule": "validate", "low": self.validation.low, "high": self.validation.high}
        return MineConfig.model_validate({"allow": [band], "anchors": self.anchors})

    @property
    def pointwise(self) -> str | None:
        """The cross-encoder that some rule asks how relevant documents are, if there is one."""
        return next((rule.model for rule in self.allow if isinstance(rule, RocketQA)), None)

    @property
    def edges(self) -> tuple[float, ...]:
        """Inner edges of the bands, ascending, points."""
        return tuple(band.below for band in self.bands if band.below is not None)
