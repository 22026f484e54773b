"""What all settings share: frozen, no unknown keys, a description on every field that a user may set."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class Settings(BaseModel):
    """Base of every group of settings. Non-default values enter the fingerprint of the stage that owns the group."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)


class ExecutionSettings(BaseModel):
    """Base of settings that cannot change a result (resources, paths, logging); they enter no fingerprint."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True)
