"""Settings of `anmi plan`: what it cannot see from here. None of them may change a result."""

from __future__ import annotations

from pydantic import Field, model_validator

from anmi_ray.config.base import ExecutionSettings


class PlanConfig(ExecutionSettings):
    """The collection, models and cluster of a run that is only planned; what can be looked at is counted instead."""

    documents: int | None = Field(
        default=None,
        ge=1,
        description="documents of a collection that is not here; it is not looked at then, and no model is",
    )
    train: int = Field(default=0, ge=0, description="its train queries")
    dev: int = Field(default=0, ge=0, description="its dev queries")
    test: int = Field(default=0, ge=0, description="its test queries")
    prompt_tokens: int | None = Field(
        default=None, ge=1, description="mean tokens of a prompt that shows two of its documents"
    )
    parameters: dict[str, float] = Field(
        default={}, description="billions of parameters of models that are not here, by their id"
    )
    gpu: str | None = Field(
        default=None, min_length=1, description="GPU that models run on where they name none, such as H100"
    )

    @model_validator(mode="after")
    def _queries_belong_to_documents(self) -> PlanConfig:
        if (self.documents is None) != (self.train == 0):
            raise ValueError("documents and train are given together, for a collection that is not here")
        return self
