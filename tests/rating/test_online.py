"""The Elo rule against the fit that it approaches."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import ELO_PER_LOGIT, Floats, to_elo
from anmi_ray.rating.games import Games
from anmi_ray.rating.online import Elo
from anmi_ray.rating.solver import solve
from tests.rating.single import planted, single, target


def spread(k: float, documents: int) -> float:
    """Standard deviation, points, of a rating around the fit at a constant K, first order in K; errors sum to zero."""
    return math.sqrt(0.5 * ELO_PER_LOGIT * k * (1.0 - 1.0 / documents))


def test_one_game_by_hand() -> None:
    """The report's (26) and (27): at 400 points apart the favourite is expected to score 10/11."""
    elo = replace(Elo.start(3, k=32.0), ratings_elo=np.array([200.0, -200.0, 0.0]))
    assert elo.update([0], [1], [1.0]).ratings_elo == pytest.approx([200 + 32 / 11, -200 - 32 / 11, 0])
    assert elo.update([1], [0], [1.0]).ratings_elo == pytest.approx([200 - 320 / 11, -200 + 320 / 11, 0])
    draw = elo.update([0], [1], [0.5], 2.0)
    assert draw.ratings_elo == pytest.approx([200 + 64 * (0.5 - 10 / 11), -200 - 64 * (0.5 - 10 / 11), 0])
    assert draw.games.tolist() == [2.0, 2.0, 0.0]
    assert elo.ratings_elo.tolist() == [200.0, -200.0, 0.0]  # the state before stays as it was


@pytest.mark.parametrize("halved_after", [None, 10.0])
def test_in_parts_or_at_once(halved_after: float | None) -> None:
    games, _ = planted(12, 4, 1, "bradley-terry", seed=1)
    start = Elo.start(12, 24.0, halved_after)
    whole = start.update(games.first, games.second, games.w)
    parts = start
    for p in range(len(games.w)):
        parts = parts.update(games.first[p : p + 1], games.second[p : p + 1], games.w[p : p + 1])
    np.testing.assert_allclose(parts.ratings_elo, whole.ratings_elo, atol=1e-9)
    np.testing.assert_array_equal(parts.games, whole.games)
    swapped = start.update(games.second, games.first, 1.0 - games.w)
    np.testing.assert_allclose(swapped.ratings_elo, whole.ratings_elo, atol=1e-9)
    assert whole.ratings_elo.mean() == pytest.approx(0.0, abs=1e-9)


def test_newcomers_start_at_the_mean() -> None:
    elo = Elo.start(2, 20.0, 5.0).update([0, 0], [1, 1], [1.0, 1.0]).join(1)
    assert elo.ratings_elo[2] == elo.games[2] == 0.0
    assert elo.ratings_elo.mean() == pytest.approx(0.0, abs=1e-12)
    later = elo.update([2], [0], [1.0])
    assert later.ratings_elo.mean() == pytest.approx(0.0, abs=1e-12)
    moved = later.ratings_elo - elo.ratings_elo
    assert moved[2] - moved[1] > 1.3 * (moved[1] - moved[0])  # their K has not fallen yet
    assert Elo.start(0).update([], [], []).join(1).ratings_elo.tolist() == [0.0]


@pytest.mark.parametrize(
    ("game", "rule"),
    [
        (([0], [2], [1.0], 1.0), "numbered 0 to 1"),
        (([-1], [0], [1.0], 1.0), "numbered 0 to 1"),
        (([1], [1], [1.0], 1.0), "meet itself"),
        (([0], [1], [1.1], 1.0), "between 0 and 1"),
        (([0], [1], [math.nan], 1.0), "between 0 and 1"),
        (([0], [1], [1.0], -1.0), "not negative"),
        (([0], [1], [1.0], math.inf), "finite"),
    ],
)
def test_games_that_cannot_be(game: tuple[list[int], list[int], list[float], float], rule: str) -> None:
    with pytest.raises(DataError, match=rule):
        Elo.start(2).update(*game)


@pytest.mark.parametrize("bad", [{"k": 0.0}, {"k": math.inf}, {"halved_after": 0.0}])
def test_settings_out_of_range(bad: dict[str, float]) -> None:
    with pytest.raises(DataError, match="must be"):
        Elo.start(2, **bad)


def coins(games: Games, count: int, *seed: object) -> tuple[NDArray[np.int32], NDArray[np.int32], Floats]:
    """A stream of `count` won or lost games: pairs drawn with return, each won as often as its w says."""
    generator = rng("stream", *map(str, seed))
    pick = generator.integers(0, len(games.w), count)
    return games.first[pick], games.second[pick], (generator.random(count) < games.w[pick]).astype(np.float64)


def hovering(games: Games, k: float, count: int, every: int) -> Floats:
    """Ratings [T, D] met along a stream with constant K, after it has settled."""
    first, second, w = coins(games, count, "hovering")
    elo, met = Elo.start(len(games.doc_ids), k), []
    for p in range(0, count, every):
        elo = elo.update(first[p : p + every], second[p : p + every], w[p : p + every])
        met.append(elo.ratings_elo)
    return np.array(met[len(met) // 10 :])


@pytest.mark.parametrize("p", [0.5, 0.75, 0.9])
def test_two_documents_hover_around_their_odds(p: float) -> None:
    """The mean gap is 400 log10(p / (1 - p)), to first order in K, and its spread √(173.7 K)."""
    ratings = hovering(single(2, [0], [1], [p]), k=2.0, count=200_000, every=50)
    gap = ratings[:, 0] - ratings[:, 1]
    assert gap.mean() == pytest.approx(400 * math.log10(p / (1 - p)), abs=5.0)
    assert gap.std() == pytest.approx(math.sqrt(2.0) * math.sqrt(2.0) * spread(2.0, 2), rel=0.15)
    assert spread(2.0, 2) == pytest.approx(0.5 * math.sqrt(173.718 * 2.0))


def bradley_terry(games: Games) -> Floats:
    """Ratings of plain maximum likelihood, points, mean zero."""
    found = solve(target(replace(games, answers=np.ones(len(games.w))), "bradley-terry"), 1e-10, 100)
    assert found.converged.all()
    return to_elo(found.latent - found.latent.mean(), "bradley-terry")


def league() -> Games:
    """20 documents with about 8 opponents and finite ratings."""
    return planted(20, 8, 9, "bradley-terry", seed=1, sd=0.7)[0]


def test_a_constant_k_hovers_around_the_fit() -> None:
    games = league()
    ratings = hovering(games, k=16.0, count=300_000, every=100)
    away = np.sqrt(np.mean(np.square(ratings - bradley_terry(games))))
    assert away == pytest.approx(spread(16.0, 20), rel=0.15)


def test_a_falling_k_converges_to_the_fit() -> None:
    games = league()
    assert np.ptp(np.bincount(np.concatenate([games.first, games.second]))) > 0  # not regular, and yet no bias
    fitted, elo, away = bradley_terry(games), Elo.start(20, 32.0, 80.0), []
    for part, count in enumerate((10_000, 90_000, 900_000)):
        elo = elo.update(*coins(games, count, "falling", part))
        away.append(np.sqrt(np.mean(np.square(elo.ratings_elo - fitted))))
    assert away[2] < 4.0
    assert away[2] < 0.5 * away[1] < 0.5 * away[0]
