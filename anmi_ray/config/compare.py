"""Settings of the compare stage: which pairs of a query's candidates are judged."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from anmi_ray.config.base import Settings


class CompareConfig(Settings):
    """The design of the comparison graph. A query costs about n * degree / 2 comparisons."""

    design: Literal["k-regular"] = Field(
        default="k-regular", description="Graph per query: a union of random Hamiltonian cycles, repaired to be simple."
    )
    degree: int = Field(
        default=8,
        ge=2,
        le=1000,
        description="Distinct documents that each document is compared with; queries of at most degree + 1 documents "
        "get every pair. Even degrees are exact; odd degrees leave one of an odd number of documents with degree - 1.",
    )
