"""Settings of a judge's pilot: how many pairs it is tried on before money is spent, and what it has to reach."""

from __future__ import annotations

from pydantic import Field

from anmi_ray.config.base import ExecutionSettings


class PilotConfig(ExecutionSettings):
    """A pilot asks a sample of the run's own questions, so it changes no judgment. A gate that is null is open."""

    pairs: int = Field(default=300, ge=1, description="pairs of documents that every judge is asked about, both orders")
    min_agreement: float | None = Field(
        default=0.6,
        ge=0,
        le=1,
        description="least share of pairs with one known positive in which it is preferred, of those that take a side",
    )
    max_position_bias: float | None = Field(
        default=0.15, ge=0, le=0.5, description="most that the preference for the document shown first is off one half"
    )
    max_inconsistent: float | None = Field(
        default=0.4, ge=0, le=1, description="largest share of pairs whose two orders get different verdicts"
    )
    max_failures: float | None = Field(
        default=0.05, ge=0, le=1, description="largest share of questions that stay without an answer"
    )
    max_dollars: float | None = Field(
        default=None, ge=0, description="most dollars that a judge may cost for the whole run, as its pilot projects"
    )
