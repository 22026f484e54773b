from __future__ import annotations

import pytest
from pydantic import ValidationError

from anmi_ray.config.judge import JudgeConfig, SimulatedJudgeConfig

API = {"kind": "api", "name": "llm", "endpoint": {"base_url": "http://127.0.0.1:1/v1", "model": "m"}}
PRESETS = ["realistic", "thurstone", "correlated", "heavy-tailed", "misspecified", "similarity", "panel", "one-judge"]


@pytest.mark.parametrize("preset", PRESETS)
def test_presets_expand_to_explicit_judges_and_read_back(preset: str) -> None:
    config = JudgeConfig.model_validate({"preset": preset})
    assert len(config.judges) == (1 if preset in ("similarity", "one-judge") else 3)
    assert JudgeConfig.model_validate(config.model_dump()) == config
    assert JudgeConfig.model_validate_json(config.model_dump_json()) == config
    # only what differs from the defaults is needed to get it back
    assert JudgeConfig.model_validate(config.model_dump(exclude_defaults=True)) == config


def test_no_settings_are_the_realistic_preset() -> None:
    assert JudgeConfig() == JudgeConfig(preset="realistic")
    assert JudgeConfig().model_dump(exclude_defaults=True) == {}


def test_realistic_is_not_thurstone() -> None:
    judges = JudgeConfig().simulated
    assert len({judge.noise_sd for judge in judges}) == 3
    assert all(
        judge.tie_width > 0 and judge.position_bias != 0 and 0.01 <= judge.failure_rate <= 0.02 for judge in judges
    )
    assert JudgeConfig().shared_noise.pair_sd > 0


def test_fields_override_the_preset() -> None:
    config = JudgeConfig.model_validate(
        {"preset": "correlated", "truth": {"relevance_sd": 1.0}, "shared_noise": {"document_sd": 0.2}}
    )
    assert config.truth.relevance_sd == 1.0
    assert config.truth.similarity_slope == JudgeConfig().truth.similarity_slope
    assert config.shared_noise.document_sd == 0.2
    assert config.shared_noise.pair_sd == pytest.approx(0.5**0.5)
    mixed = JudgeConfig.model_validate({"judges": [{"kind": "similarity"}, {"kind": "simulated", "name": "x"}]})
    assert [judge.name for judge in mixed.judges] == ["similarity", "x"]
    assert mixed.simulated == (SimulatedJudgeConfig(kind="simulated", name="x"),)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"preset": "perfect"}, "preset"),
        ({"accuracy": 0.8}, "accuracy says how good the judges of the presets panel and one-judge are"),
        ({"preset": "panel", "accuracy": 0.5}, "accuracy"),
        ({"preset": "panel", "accuracy": 1}, "accuracy"),
        ({"preset": "panel", "accuracy": "good"}, "accuracy"),
        ({"preset": ["realistic"]}, "preset"),
        ({"judges": []}, "at least 1"),
        ({"judges": [{"kind": "oracle", "name": "x"}]}, "kind"),
        ({"judges": [{"kind": "simulated", "name": "x"}, {"kind": "simulated", "name": "x"}]}, "share a name"),
        ({"judges": [{"kind": "simulated", "name": "x", "failure_rate": 1.5}]}, "failure_rate"),
        ({"truth": {"bonus": 1}}, "bonus"),
        ({"shared_noise": 3}, "shared_noise"),
        ({"budget": {"calls": 0}}, "greater than 0"),
        ({"judges": [API], "budget": {"dollars": 5}}, "needs the prices of llm: give endpoint.input_price"),
    ],
)
def test_mistakes_are_named(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        JudgeConfig.model_validate(settings)
