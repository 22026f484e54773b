"""Circular triads: what wins alone say of them, what a fit foretells, and what two judges' circles have in common."""

from __future__ import annotations

import numpy as np
import pytest

from anmi_ray.core.identity import rng
from anmi_ray.evaluation.replicates import contrast
from anmi_ray.rating import Games
from jobs.studies.cycles import (
    Circling,
    Habit,
    circles,
    circling,
    correlation,
    fit,
    people,
    played,
    same_direction,
    verdict,
)
from jobs.studies.simulated_games import Played, bucket


def complete(documents: int, seed: int) -> Games:
    """Preferences by coins between all documents of a query."""
    pairs = np.stack(np.triu_indices(documents, 1), axis=1).astype(np.int64)
    w = (rng("test", "cycles", seed).random(len(pairs)) < 0.5).astype(float)
    return bucket([Played(pairs, w, np.ones(len(pairs)), np.zeros(documents))])[0]


def test_of_all_pairs_the_wins_say_how_many_are_circular() -> None:
    """Kendall and Babington Smith's sentence, which the study's question turns on."""
    for seed, n in enumerate((5, 8, 13)):
        games = complete(n, seed)
        wins = np.bincount(games.first, games.w, n) + np.bincount(games.second, 1.0 - games.w, n)
        triads, circular = circles(games, games.w)
        assert triads[0] == n * (n - 1) * (n - 2) // 6
        assert circular[0] == n * (n - 1) * (2 * n - 1) / 12 - (wins**2).sum() / 2


def test_a_fit_foretells_the_circles_of_whoever_follows_ratings_or_does_not() -> None:
    shares = {}
    for habit in (
        Habit("sd 1"),
        Habit("coins", 0.0),
        Habit("circles", circle=2.0),
        Habit("list", leaning=4.0, listed=True),
    ):
        one, _ = played(habit, 20, 60)
        games, found, _, _ = fit(one)
        shares[habit.name] = circling(games, found)
    for one in shares.values():
        assert abs(float((one.observed - one.foretold).mean())) < 0.03
    level = {name: float(one.observed.mean()) for name, one in shares.items()}
    assert level["coins"] == pytest.approx(0.25, abs=0.04)
    assert level["list"] < 0.03 < level["sd 1"] < level["circles"] < level["coins"]


def test_two_judges_go_round_alike_where_preferences_do() -> None:
    found = {}
    for habit in (Habit("sd 1"), Habit("circles", circle=2.0)):
        one, every = played(habit, 40, 60)
        games, _ = bucket(one)
        np.testing.assert_array_equal(games.w, np.concatenate(every, axis=1)[0])
        found[habit.name] = same_direction(games, np.concatenate(every, axis=1))
    assert found["sd 1"].low < 0.05
    assert found["sd 1"].high > 0.0
    assert found["circles"].low > 0.3
    one = np.array([1.0, 0.0, 1.0])  # 0 beats 1, 2 beats 0, 1 beats 2: round
    pairs = np.array([[0, 1], [0, 2], [1, 2]])
    games, _ = bucket([Played(pairs, one, np.ones(3), np.zeros(3))] * 2)
    for other, share in ((one, 0.5), (1.0 - one, -0.5)):
        said = np.stack([np.tile(one, 2), np.tile(other, 2)])
        assert same_direction(games, said).difference == pytest.approx(share)


def test_verdicts_and_correlations() -> None:
    def of(mean: float) -> str:
        excess = contrast("a", "b", [mean + np.linspace(-0.001, 0.001, 40)[None, :]])
        return " ".join(verdict(excess, claim) for claim in (0, 1, 2, 3)).strip()

    assert [of(mean) for mean in (0.0, 0.03, -0.03, 0.01)] == [
        "holds fails fails",
        "fails holds holds",
        "fails fails fails",
        "cannot tell cannot tell cannot tell",
    ]
    tau = np.linspace(0.0, 1.0, 30)
    assert correlation(-tau, tau).value == pytest.approx(-1.0)
    shares = Circling(np.ones(30), 1.0 - tau, np.tile(0.5 * (1.0 - tau), (2, 1)))
    table, _ = people(shares, np.where(tau > 0.9, np.nan, tau))
    assert [row[2] for row in table.rows] == ["4 holds"] * 3
