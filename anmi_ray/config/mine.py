"""Settings of the mine stage: from gaps to weighted negatives. Gaps are in Elo points (anchor minus document)."""

from __future__ import annotations

from itertools import pairwise
from typing import Literal

from pydantic import Field, model_validator

from anmi_ray.config.base import Settings

Category = Literal["danger", "soft", "goldilocks", "medium", "easy"]


class Band(Settings):
    """One row of Table 2: documents whose gap is below `below` (and not below the row before)."""

    category: Category = Field(description="name of the band; it decides the curriculum tier")
    below: float | None = Field(description="upper edge of the band in points; null for the last band")
    weight: float = Field(ge=0, le=1, description="weight of a negative in this band")


TABLE_2 = (
    Band(category="danger", below=100.0, weight=0.0),
    Band(category="soft", below=200.0, weight=0.5),
    Band(category="goldilocks", below=400.0, weight=1.0),
    Band(category="medium", below=600.0, weight=0.7),
    Band(category="easy", below=None, weight=0.3),
)


class MineConfig(Settings):
    """Which negatives an example gets, and with what weight: allow, weigh, sample."""

    rule: Literal["posterior", "table2"] = Field(
        default="posterior",
        description="posterior: expected band weight given the gap's error, gated by the probability of a false "
        "negative; table2: the report's Table 2 on the gap itself",
    )
    bands: tuple[Band, ...] = Field(default=TABLE_2, min_length=2, description="bands of the gap with weights")
    false_negative_gap: float = Field(
        default=100.0,
        ge=-1000,
        le=1000,
        description="true gap below which a document is a false negative, points",
    )
    gate: float = Field(
        default=0.05,
        gt=0,
        le=1,
        description="posterior: largest allowed probability of a false negative; .02 where many documents are "
        "near-relevant, 1 for no gate",
    )
    gap: Literal["anchor", "minimum"] = Field(
        default="anchor",
        description="with several positives: the gap to the example's own anchor, or the least",
    )
    negatives: int = Field(default=7, ge=1, le=1000, description="rated negatives per example, at most")
    sampling: Literal["top", "weighted"] = Field(
        default="top", description="top: largest weight, then smallest gap; weighted: by weight, without replacement"
    )
    min_rated_negatives: int = Field(
        default=0,
        ge=0,
        le=1000,
        description="examples with fewer are refused; 0 allows random ones alone",
    )
    random_negatives: int = Field(default=2, ge=0, le=1000, description="random corpus negatives added to each example")
    random_weight: float = Field(default=1.0, gt=0, le=1, description="weight of a random negative")
    rated_extra: int = Field(
        default=4,
        ge=0,
        le=1000,
        description="further rated documents of weight 0, for the regression loss only",
    )
    rating_sd_floor: float = Field(default=10.0, gt=0, le=1000, description="least sd of a query's ratings, points")
    top_rated_anchors: bool = Field(
        default=False,
        description="the top-rated document anchors queries without a known positive, if their fit passes",
    )
    anchor_p: float = Field(
        default=0.01, gt=0, lt=1, description="such a fit must reject equal ratings with a p-value below this"
    )

    @model_validator(mode="after")
    def _bands_ascend(self) -> MineConfig:
        edges = [band.below for band in self.bands[:-1]]
        known = [edge for edge in edges if edge is not None]
        if len(known) < len(edges) or self.bands[-1].below is not None:
            raise ValueError("bands: every band but the last needs an upper edge (below), and the last has none")
        if any(low >= high for low, high in pairwise(known)):
            raise ValueError(f"bands: edges must ascend, not {known}")
        names = [band.category for band in self.bands]
        if len(set(names)) < len(names):
            raise ValueError(f"bands: a category stands twice in {names}")
        return self

    @model_validator(mode="after")
    def _rated_negatives_possible(self) -> MineConfig:
        if self.min_rated_negatives > self.negatives:
            raise ValueError(
                f"min_rated_negatives is {self.min_rated_negatives}, but an example has at most negatives = "
                f"{self.negatives}: lower the one or raise the other"
            )
        return self

    @property
    def edges(self) -> tuple[float, ...]:
        """Inner edges of the bands, ascending, points."""
        return tuple(band.below for band in self.bands if band.below is not None)
