"""The study of curricula: rewards read back from a bandit's probabilities, and how far chance takes it."""

from __future__ import annotations

import numpy as np
import pytest

from anmi_ray.training.bandit import Exp3S
from jobs.studies.curricula import bandit_results, dealt, played, rewards, temperature_table, variation

EPSILON = 0.05


def run(gain_T: np.ndarray, arms: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Probabilities after every play, the arms played, and what `update` made of the gains."""
    bandit, random, probability, arm, scaled = Exp3S(arms, len(gain_T), EPSILON), np.random.default_rng(3), [], [], []
    for gain in gain_T:
        arm.append(bandit.draw(random.random()))
        gains = np.array([*bandit.state()["gains"], gain])
        low, high = np.percentile(gains, [20, 80])
        scaled.append(0.0 if high <= low else np.clip(2 * (gain - low) / (high - low) - 1, -1, 1))
        bandit.update(arm[-1], float(gain))
        probability.append(bandit.probabilities())
    return np.array(probability), np.array(arm), np.array(scaled)


@pytest.mark.parametrize("arms", [2, 4, 7])
def test_rewards_are_read_back_exactly(arms: int) -> None:
    probability_TK, arm_T, scaled_T = run(np.random.default_rng(arms).normal(size=80), arms)
    np.testing.assert_allclose(rewards(probability_TK, arm_T, EPSILON), scaled_T, atol=1e-6)


def test_variation_stays_below_what_exploration_leaves() -> None:
    probability_TK = run(np.random.default_rng(0).normal(size=400), 4)[0]
    assert variation(probability_TK).max() <= (1 - EPSILON) * 0.75
    assert variation(np.full((1, 4), 0.25)).item() == 0.0


def test_a_better_arm_goes_further_than_chance() -> None:
    bandit = Exp3S(4, 200, EPSILON)
    random = np.random.default_rng(1)
    seen = []
    for uniform, noise in zip(random.random(200), random.normal(size=200), strict=True):
        arm = bandit.draw(float(uniform))
        bandit.update(arm, float(noise + 2.0 * (arm == 0)))
        seen.append(bandit.probabilities())
    chance = dealt(np.random.default_rng(2).normal(size=200), 4, EPSILON, 60, 0)
    assert variation(np.array(seen)).mean() > np.quantile(chance, 0.95)
    assert seen[-1][0] > 0.6


def test_bands_are_told_by_their_least_gaps() -> None:
    rows = [
        {"band_1": 0.4, "band_2": 0.6, "minimum_gap_elo": None},
        {"band_1": 0.3, "band_2": 0.7, "minimum_gap_elo": 250.0},
    ]
    probability_TK, arm_T = played(rows)
    assert probability_TK.tolist() == [[0.4, 0.6], [0.3, 0.7]]
    assert arm_T.tolist() == [0, 1]
    with pytest.raises(AssertionError, match="never played"):
        played(rows[:1])


def test_tables_are_read_from_a_log() -> None:
    probability_TK, arm_T, _ = run(np.random.default_rng(5).normal(size=60), 3)
    log = [
        {**{f"band_{k + 1}": row[k] for k in range(3)}, "minimum_gap_elo": [None, 100.0, 250.0][arm], "temperature": t}
        for row, arm, t in zip(probability_TK, arm_T, np.linspace(0.1, 0.2, 60), strict=True)
    ]
    table, note = bandit_results([log, log], EPSILON)
    assert [row[0] for row in table.rows] == ["0", "1"]
    assert float(table.rows[0][2]) == pytest.approx(variation(probability_TK).mean(), abs=1e-3)
    assert "by chance" in note
    assert temperature_table([log], 0.07).rows[0][1] == "0.0700"
    assert temperature_table([log], 0.07).rows[0][4] == "0.2000"
