"""The Elo rule against the fit that it approaches, and refits against fits from nothing."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from anmi_ray.errors import DataError
from anmi_ray.identity import rng
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import Likelihood
from anmi_ray.rating.online import Elo, refit, stationary_spread
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.solver import Posterior, solve
from anmi_ray.scale import Floats, Model, elo_per_latent, to_elo
from tests.rating.single import planted, single
from tests.rating.tournaments import tournament

MODELS: list[Model] = ["thurstone", "bradley-terry"]


# --- Elo -----------------------------------------------------------------------------------------------------------


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
    assert gap.std() == pytest.approx(math.sqrt(2.0) * math.sqrt(2.0) * stationary_spread(2.0, 2), rel=0.15)
    assert stationary_spread(2.0, 2) == pytest.approx(0.5 * math.sqrt(173.718 * 2.0))


def bradley_terry(games: Games) -> Floats:
    """Ratings of plain maximum likelihood, points, mean zero."""
    n = len(games.doc_ids)
    found = solve(
        Posterior(games, Likelihood.of("bradley-terry"), np.ones(len(games.w)), np.zeros(n), np.zeros(n)), 1e-10, 100
    )
    assert found.converged.all()
    return to_elo(found.latent - found.latent.mean(), "bradley-terry")


def league() -> Games:
    """20 documents with about 8 opponents and finite ratings."""
    return planted(20, 8, 9, "bradley-terry", seed=1, sd=0.7)[0]


def test_a_constant_k_hovers_around_the_fit() -> None:
    games = league()
    ratings = hovering(games, k=16.0, count=300_000, every=100)
    away = np.sqrt(np.mean(np.square(ratings - bradley_terry(games))))
    assert away == pytest.approx(stationary_spread(16.0, 20), rel=0.15)


def test_a_falling_k_converges_to_the_fit() -> None:
    games = league()
    assert np.ptp(np.bincount(np.concatenate([games.first, games.second]))) > 0  # not regular, and yet no bias
    fitted, elo, away = bradley_terry(games), Elo.start(20, 32.0, 80.0), []
    for part, count in enumerate((10_000, 90_000, 900_000)):
        elo = elo.update(*coins(games, count, "falling", part))
        away.append(np.sqrt(np.mean(np.square(elo.ratings_elo - fitted))))
    assert away[2] < 4.0
    assert away[2] < 0.5 * away[1] < 0.5 * away[0]


# --- refit ---------------------------------------------------------------------------------------------------------


def without(games: Games, dropped: NDArray[np.bool_]) -> Games:
    """The same documents with some games not played yet."""
    played = np.bincount(games.query_of_game[~dropped], minlength=games.queries)
    columns = {name: getattr(games, name)[~dropped] for name in ("first", "second", "w", "answers", "inconsistent")}
    return replace(games, game_start=np.concatenate([[0], np.cumsum(played)]), **columns)


def target(games: Games, model: Model) -> Posterior:
    n = len(games.doc_ids)
    return Posterior(games, Likelihood.of(model), games.answers, np.zeros(n), np.ones(n))


@pytest.mark.parametrize("model", MODELS)
def test_refit_after_a_twentieth_of_the_games_arrived(model: Model) -> None:
    games, _ = read_games(*tournament(12, 50, 8, seed=21).tables, 0.5)
    old = without(games, rng("late games").random(len(games.w)) < 0.05)
    before = solve(target(old, model), 1e-10, 100)
    cold = solve(target(games, model), 1e-10, 100)
    warm = refit(target(games, model), old, before, steps=100, tolerance=1e-10)
    assert warm.converged.all()
    np.testing.assert_allclose(warm.latent, cold.latent, atol=1e-8)
    assert warm.iterations.sum() < cold.iterations.sum()

    def away(latent: Floats) -> float:
        """Root mean square distance to the refit, points."""
        return float(np.sqrt(np.mean(np.square(latent - cold.latent)))) * elo_per_latent(model)

    one = refit(target(games, model), old, before)
    assert not one.converged.any()
    assert (one.iterations == 1).all()
    assert away(before.latent) > 10.0
    assert away(one.latent) < 5.0  # a rating's standard error is about 100
    assert away(refit(target(games, model), old, before, steps=2).latent) < 1.0


@pytest.mark.parametrize("model", MODELS)
def test_one_step_is_exact_where_the_problem_is_quadratic(model: Model) -> None:
    """A faint game against a firm prior: the log posterior is a parabola along the only direction that moves."""
    games = single(2, [0, 0], [1, 1], [1.0, 0.9])
    faint = Posterior(games, Likelihood.of(model), np.array([1e-4, 1e-4]), np.zeros(2), np.ones(2))
    old = replace(faint, games=without(games, np.array([False, True])), m=np.array([1e-4]))
    before = solve(old, 1e-12, 100)
    cold = solve(faint, 1e-12, 100)
    one = refit(faint, old.games, before)
    assert np.abs(before.latent - cold.latent).max() > 1e-5
    np.testing.assert_allclose(one.latent, cold.latent, rtol=0, atol=1e-12)


def test_documents_and_queries_that_join() -> None:
    t = tournament(4, 20, 6, seed=22)
    games, _ = read_games(*t.tables, 0.5)
    keep = games.query_of_game > 0  # a query that nobody asked about before
    keep &= ~((games.first == 3) | (games.second == 3))  # and a document that had not played
    queries = np.arange(1, 4)
    docs = (games.query_of_doc > 0) & (np.arange(len(games.doc_ids)) - games.doc_start[games.query_of_doc] != 3)
    moved = {name: getattr(games, name)[keep] - (getattr(games, name)[keep] > 3) for name in ("first", "second")}
    old = replace(
        games,
        query_ids=games.query_ids[queries],
        doc_ids=games.doc_ids[docs],
        positive=games.positive[docs],
        doc_start=np.arange(4) * 19,
        game_start=np.concatenate([[0], np.cumsum(np.bincount(games.query_of_game[keep], minlength=4)[1:])]),
        **{name: getattr(games, name)[keep] for name in ("w", "answers", "inconsistent")},
        **{name: values.astype(np.int32) for name, values in moved.items()},
    )
    before = solve(target(old, "thurstone"), 1e-10, 100)
    now = replace(target(games, "thurstone"), prior_mean=np.full(len(games.doc_ids), 0.3))
    start = refit(now, old, before, steps=0).latent
    np.testing.assert_array_equal(start[docs], before.latent)
    np.testing.assert_array_equal(start[~docs], 0.3)
    full = refit(now, old, before, steps=100, tolerance=1e-10)
    np.testing.assert_allclose(full.latent, solve(now, 1e-10, 100).latent, atol=1e-8)
