"""Campaigns whose trainings are each one task (tests/training/one_task.py), in their trials' processes too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from anmi_ray.config.experiment import Experiment
from anmi_ray.tuning import driver
from anmi_ray.tuning import run as campaigns
from anmi_ray.tuning.campaign import Campaign
from tests.training.one_task import in_one_task


def trial(config: Mapping[str, Any], campaign: Campaign) -> None:
    """A campaign's trial, in its own process."""
    with in_one_task():
        driver.carry_out(config, campaign)


def repeated(experiment: Experiment, content: str) -> dict[str, Any]:
    """A campaign's training with a fresh seed, in its own process."""
    with in_one_task():
        return campaigns._run(experiment, content)


def replace_in_repeats(patch: pytest.MonkeyPatch) -> None:
    """As `replace_ray_train`, for what campaigns repeat with fresh seeds."""
    patch.setattr(campaigns, "_run", repeated)


def replace_in_campaigns(patch: pytest.MonkeyPatch) -> None:
    """As `replace_ray_train`, for all that campaigns train."""
    patch.setattr(driver, "carry_out", trial)
    replace_in_repeats(patch)
