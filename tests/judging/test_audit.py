from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import JUDGMENT
from anmi_ray.judging import audit, judge, truth
from anmi_ray.judging.audit.intervals import correlation, krippendorff

World = Callable[..., tuple[pa.Table, pa.Table]]


def audited(world: tuple[pa.Table, pa.Table], config: JudgeConfig, seed: int = 0, known: bool = True) -> dict[str, Any]:
    candidates, comparisons = world
    judgments = judge(comparisons, candidates, config, seed)
    report = audit(judgments, comparisons, truth(candidates, config, seed) if known else None)
    json.dumps(report, allow_nan=False)
    return report


def test_krippendorff_on_the_published_example() -> None:
    """Krippendorff (2011), Computing Krippendorff's alpha-reliability, section C: four observers, interval α = .849."""
    nan = np.nan
    observers = np.array(
        [
            [1, 2, 3, 3, 2, 1, 4, 1, 2, nan, nan, nan],
            [1, 2, 3, 3, 2, 2, 4, 1, 2, 5, nan, 3],
            [nan, 3, 3, 3, 2, 3, 4, 2, 2, 5, 1, nan],
            [1, 2, 3, 3, 2, 4, 4, 1, 2, 5, 1, nan],
        ]
    )
    assert krippendorff(observers.T) == pytest.approx(0.849, abs=5e-4)


def test_agreement_of_nothing_is_none() -> None:
    assert krippendorff(np.full((4, 2), np.nan)) is None
    assert krippendorff(np.full((4, 2), 0.5)) is None
    assert correlation(np.zeros(5), np.arange(5, dtype=np.float64)) is None


def test_bias_without_truth_has_the_right_sign_and_interval(make_world: World) -> None:
    config = JudgeConfig.model_validate(
        {
            "preset": "thurstone",
            "judges": [
                {"kind": "simulated", "name": "first", "position_bias": 0.5},
                {"kind": "simulated", "name": "none"},
                {"kind": "simulated", "name": "second", "position_bias": -0.5},
            ],
        }
    )
    report = audited(make_world(30, 15), config, known=False)
    first, none, second = (report["judges"][name]["position_bias"] for name in ("first", "none", "second"))
    assert first["interval"][0] > 0
    assert second["interval"][1] < 0
    assert none["interval"][0] < 0 < none["interval"][1]
    assert 0 < first["probit"] < 0.5  # shrunk by the spread of gaps
    assert first["probit_interval"][0] < first["probit"] < first["probit_interval"][1]
    assert "error_correlation" not in report["panel"]


def test_shared_noise_shows_as_correlated_errors(make_world: World) -> None:
    world = make_world(30, 15)
    independent = audited(world, JudgeConfig(preset="thurstone"))["panel"]
    correlated = audited(world, JudgeConfig(preset="correlated"))["panel"]
    assert all(abs(value) < 0.1 for value in independent["error_correlation"].values())
    assert all(value > 0.2 for value in correlated["error_correlation"].values())
    assert correlated["alpha"] > independent["alpha"]
    assert set(correlated["alpha_pairs"]) == {"sim-1 ~ sim-2", "sim-1 ~ sim-3", "sim-2 ~ sim-3"}


def test_failures_are_counted_by_reason_and_never_vote(make_world: World) -> None:
    world = make_world(20, 12)
    config = JudgeConfig.model_validate(
        {"preset": "thurstone", "judges": [{"kind": "simulated", "name": "j", "failure_rate": 0.3}]}
    )
    report = audited(world, config)["judges"]["j"]
    assert report["n"] == world[1].num_rows * 2
    assert report["answered"] + sum(report["failures"].values()) == report["n"]
    assert set(report["failures"]) == {"simulated failure: timeout", "simulated failure: unreadable answer"}
    assert report["position_bias"]["pairs"] == pytest.approx(0.49 * world[1].num_rows, rel=0.1)
    # the same judge without failures is as accurate: missing answers pull nothing towards a side
    sound = JudgeConfig.model_validate({"preset": "thurstone", "judges": [{"kind": "simulated", "name": "j"}]})
    assert report["accuracy"] == pytest.approx(audited(world, sound)["judges"]["j"]["accuracy"], abs=0.02)


def test_figures_by_hand(make_world: World) -> None:
    _, comparisons = make_world(1, 3)
    ids = comparisons["comparison_id"].to_pylist()
    rows = [
        (ids[0], "ab", 1.0, None),
        (ids[0], "ba", 0.0, None),  # flipped: the first shown won twice
        (ids[1], "ab", 1.0, None),
        (ids[1], "ba", 0.5, None),  # inconsistent, not flipped
        (ids[2], "ab", None, "timeout"),
        (ids[2], "ba", 1.0, None),
    ]
    judgments = JUDGMENT.table(
        {
            "comparison_id": [row[0] for row in rows],
            "query_id": [comparisons["query_id"][0].as_py()] * 6,
            "judge": ["j"] * 6,
            "order": [row[1] for row in rows],
            "p_a": [row[2] for row in rows],
            "error": [row[3] for row in rows],
        }
    )
    report: Any = audit(judgments, comparisons)["judges"]["j"]  # type: ignore[index]
    assert report["failures"] == {"timeout": 1}
    assert report["tie_rate"] == pytest.approx(1 / 5)
    assert report["flip_rate"] == pytest.approx(1 / 2)
    assert report["order_inconsistent_rate"] == 1.0
    assert report["position_bias"]["probability"] == pytest.approx((1.0 + 0.75) / 2 - 0.5)


@pytest.mark.parametrize("preset", ["realistic", "misspecified", "heavy-tailed", "similarity"])
def test_hostile_sizes_give_a_report(make_world: World, preset: str) -> None:
    for world in (make_world(1, 1), make_world(1, 2), make_world(2, 5, similarity=0.1)):
        audited(world, JudgeConfig(preset=preset))  # type: ignore[arg-type]


def test_a_judge_that_always_fails_and_one_without_noise(make_world: World) -> None:
    config = JudgeConfig.model_validate(
        {
            "preset": "thurstone",
            "judges": [
                {"kind": "simulated", "name": "dead", "failure_rate": 1.0},
                {"kind": "simulated", "name": "sure", "noise_sd": 1e-9},
                {"kind": "simulated", "name": "first", "position_bias": 5.0, "noise_sd": 1e-6},
            ],
        }
    )
    report = audited(make_world(10, 10), config)
    assert report["judges"]["dead"]["accuracy"] is None
    assert report["judges"]["dead"]["failure_rate"] == 1.0
    assert report["judges"]["sure"]["accuracy"] == 1.0


def test_judgments_without_their_comparison_or_truth_are_refused(make_world: World) -> None:
    candidates, comparisons = make_world(2, 4)
    judgments = judge(comparisons, candidates, JudgeConfig(), 0)
    with pytest.raises(DataError, match="unknown comparisons"):
        audit(judgments, comparisons.slice(1))
    with pytest.raises(DataError, match="without a truth"):
        audit(judgments, comparisons, truth(candidates, JudgeConfig(), 0).slice(1))
    assert pc.sum(pc.is_null(judgments["error"])).as_py() > 0
