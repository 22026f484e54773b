"""Settings of the pairs that a distilled judge is learned from."""

from __future__ import annotations

from pydantic import Field

from anmi_ray.config.base import Settings


class SampleConfig(Settings):
    """Pairs of candidates: queries alike, no document twice, so that pairs share nothing but their query."""

    pairs: int = Field(
        default=2000,
        ge=10,
        le=10_000_000,
        description="pairs of two candidates; queries get equally many, or one more by hash",
    )
    seed: int = Field(default=0, ge=0, description="seed of the pairs that are drawn, and of the split by query")
