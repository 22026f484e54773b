"""`engine: auto` follows what is installed and can be partitioned; what it becomes enters no fingerprint."""

from __future__ import annotations

from typing import Any

import pytest

from anmi_ray.config.base import result_settings
from anmi_ray.config.distill import DistillConfig
from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainConfig, TrainExecution, with_engine
from anmi_ray.core import environment

MANY: dict[str, Any] = {"num_workers": 2}


@pytest.mark.parametrize(
    ("settings", "execution", "installed", "engine"),
    [
        ({}, {}, True, "ddp"),
        ({}, MANY, True, "deepspeed"),
        ({}, MANY, False, "ddp"),
        ({"zero_stage": 0}, MANY, True, "ddp"),
        ({}, {"offload": "optimizer"}, False, "deepspeed"),  # what is asked for is not dropped, and its package named
        ({"engine": "deepspeed"}, {}, False, "deepspeed"),
        ({"engine": "ddp"}, MANY, True, "ddp"),
    ],
)
def test_auto(settings: dict[str, Any], execution: dict[str, Any], installed: bool, engine: str) -> None:
    pytest.importorskip("deepspeed")
    config = TrainConfig(**settings)
    if installed:
        found = with_engine(config, TrainExecution(**execution))
    else:
        with environment.without("deepspeed"):
            found = with_engine(config, TrainExecution(**execution))
    assert found.engine == engine
    assert with_engine(found, TrainExecution()) is found
    assert found.model_copy(update={"engine": config.engine}) == config


@pytest.mark.parametrize(
    ("group", "before", "other"), [(TrainConfig, "deepspeed", "ddp"), (DistillConfig, "ddp", "deepspeed")]
)
def test_what_was_the_default_before_stays_valid(group: type[LearnConfig], before: Any, other: Any) -> None:
    assert group().engine == "auto"
    assert result_settings(group()) == result_settings(group(engine=before)) == {}
    assert result_settings(group(engine=other)) == {"engine": other}
