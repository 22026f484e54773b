"""Curricula: the report's tables, a window that follows dev, and EXP3.S on arms whose best is known."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anmi_ray.config.train import CurriculumConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.training.curriculum import Curriculum, Exp3S, LearningProgress, Phase, make_curriculum

GAPS = rng("gaps").normal(350, 120, 400)


def make(has_dev: bool = False, steps: int = 80, **settings: object) -> Curriculum:
    config = CurriculumConfig.model_validate(settings)
    return make_curriculum(config, 0.7, GAPS, steps, seed=0, has_dev=has_dev)


def test_table_3_is_read_in_eighths_of_the_run() -> None:
    curriculum = make(rule="table3")
    phases = [curriculum.phase(10 * eighth, 80) for eighth in range(8)]
    assert [p.alpha for p in phases] == [0.5, 0.5, 0.6, 0.6, 0.7, 0.7, 0.8, 0.8]
    assert [p.minimum_gap_elo for p in phases] == [300, 300, 200, 200, 150, 150, 100, 100]
    assert make(rule="fixed", minimum_gap_elo=50).phase(79, 80) == Phase(0.7, 50)


def test_algorithm_3_lets_harder_tiers_in() -> None:
    curriculum = make(rule="algorithm3")
    phases = [curriculum.phase(10 * eighth, 80) for eighth in range(8)]
    assert [p.highest_tier for p in phases] == [1, 2, 2, 3, 3, 3, 3, 3]
    assert [p.alpha for p in phases] == pytest.approx([0.56, 0.62, 0.68, 0.74, 0.8, 0.8, 0.8, 0.8])


def test_a_window_stays_while_dev_rises_and_moves_where_it_stops() -> None:
    curriculum = make(rule="window", has_dev=True)
    seen = []
    for dev in (0.5, 0.55, 0.55, 0.6, 0.59, 0.58, 0.5, 0.5):
        curriculum.evaluated(dev)
        now = curriculum.phase(0, 80)
        seen.append((now.minimum_gap_elo, now.maximum_gap_elo))
    ends = [(250, 500), (225, 462.5), (200, 425), (175, 387.5), (150, 350)]
    assert seen == [ends[0], ends[0], ends[1], ends[1], ends[2], ends[3], ends[4], ends[4]]
    again = make(rule="window", has_dev=True)
    again.load(curriculum.state())
    assert again.phase(0, 80) == curriculum.phase(0, 80)


def test_without_dev_a_window_moves_with_the_steps() -> None:
    curriculum = make(rule="window")
    lows = [curriculum.phase(step, 10).minimum_gap_elo for step in range(10)]
    assert lows == [250, 250, 225, 225, 200, 200, 175, 175, 150, 150]


@pytest.mark.parametrize("rule", ["fixed", "table3", "algorithm3", "window"])
@pytest.mark.parametrize("has_dev", [False, True])
def test_what_is_foreseen_is_what_is_read_where_nothing_is_reported(rule: str, has_dev: bool) -> None:
    curriculum = make(rule=rule, has_dev=has_dev)
    for step in range(1, 80):
        foreseen = curriculum.foreseen(step, 80)
        curriculum.phase(step - 1, 80)
        assert curriculum.phase(step, 80) == foreseen


def test_foreseeing_draws_no_band() -> None:
    told, plain = (make(rule="progress", bands=3) for _ in range(2))
    for step in range(20):
        drawn = [curriculum.phase(step, 80) for curriculum in (told, plain)]
        assert drawn[0] == drawn[1]
        assert told.foreseen(step + 1, 80) is None
        for curriculum in (told, plain):
            curriculum.gained(0.1 * step)
    assert told.state() == plain.state()


def test_bands_hold_equally_many_gaps_and_cover_all() -> None:
    curriculum = make(rule="progress", bands=5)
    assert isinstance(curriculum, LearningProgress)
    assert curriculum.edges[0] == -math.inf
    assert curriculum.edges[-1] == math.inf
    assert np.histogram(GAPS, curriculum.edges[1:-1])[0].tolist() == [80] * 3
    drawn = [curriculum.phase(step, 80).minimum_gap_elo for step in range(80)]
    assert set(drawn) == set(curriculum.edges[:-1])  # uniform at first
    assert [curriculum.phase(step, 80).minimum_gap_elo for step in range(80)] == drawn
    with pytest.raises(DataError, match="no example has a rated negative"):
        make_curriculum(CurriculumConfig(rule="progress"), 0.7, np.zeros(0), 80, 0, False)


def play(bandit: Exp3S, means: list[float], plays: int, seed: int) -> np.ndarray:
    """Noisy gains of the arms that are drawn; the last half's mean probabilities."""
    generator, found = rng("arms", seed), []
    for _ in range(plays):
        found.append(bandit.probabilities())
        arm = bandit.draw(generator.random())
        bandit.update(arm, means[arm] + 0.1 * generator.normal())
    return np.mean(found[plays // 2 :], axis=0)


@pytest.mark.parametrize("seed", range(3))
def test_the_bandit_finds_the_best_arm_and_follows_a_change(seed: int) -> None:
    bandit = Exp3S(4, 2000, 0.05)
    first = play(bandit, [0.1, 0.2, 0.9, 0.3], 2000, seed)
    assert first[2] > 0.8
    second = play(bandit, [0.9, 0.2, 0.1, 0.3], 4000, seed + 100)
    assert second[0] > 0.8


def test_the_bandit_stays_near_uniform_where_arms_are_alike() -> None:
    mean = np.mean([play(Exp3S(4, 500, 0.05), [0.5] * 4, 500, seed) for seed in range(20)], axis=0)
    assert mean.min() > 0.15


def test_the_first_reward_goes_to_the_arm_that_earned_it() -> None:
    bandit = Exp3S(3, 100, 0.05)
    bandit.rate = 1.0
    bandit.update(0, 1.0)  # a single gain has no scale
    assert bandit.probabilities() == pytest.approx([1 / 3] * 3)
    bandit.update(1, 9.0)
    assert bandit.probabilities().argmax() == 1
    bandit.update(2, -9.0)
    assert bandit.probabilities().argmin() == 2


def test_a_bandits_state_goes_on_alike() -> None:
    one, other = Exp3S(4, 100, 0.05), Exp3S(4, 100, 0.05)
    play(one, [0.1, 0.5, 0.2, 0.3], 50, 0)
    other.load(one.state())
    for bandit in (one, other):
        bandit.update(1, 0.7)
    assert one.state() == other.state()
    with pytest.raises(DataError, match="nan"):
        one.update(0, math.nan)
