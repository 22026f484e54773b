"""The study of curricula: rewards read back from a bandit's probabilities, and how far chance takes it."""

from __future__ import annotations

import numpy as np
import pytest

from anmi_ray.training.bandit import Exp3S
from jobs.studies.curricula import dealt, played, rewards, variation, with_advantage

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


def test_a_better_arm_is_told_from_chance_and_no_arm_is_not() -> None:
    random = np.random.default_rng(1)
    chance = dealt(random.normal(size=200), 4, EPSILON, 60, 0)
    variation_of_none, _ = with_advantage(0.0, 200, 4, EPSILON, 60)
    assert variation_of_none == pytest.approx(chance.mean(), abs=0.04)
    variation_of_best, last = with_advantage(2.0, 200, 4, EPSILON, 60)
    assert variation_of_best > np.quantile(chance, 0.95)
    assert last > 0.6


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
