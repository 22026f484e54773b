"""Components, separation, deviance, and the level and power of the test for no difference."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anmi_ray.core.errors import FitError
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import link
from anmi_ray.rating import diagnostics
from anmi_ray.rating.diagnostics import components, deviance, equal_ratings_p, refuse_without_maximum
from anmi_ray.rating.dispersion import pooled_dispersion
from anmi_ray.rating.likelihood import Likelihood, outcome_moments
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.solver import solve
from jobs.studies.simulated_games import Played, bucket
from tests.rating.single import planted, single, target
from tests.rating.tournaments import pair_graph, tournament


def test_components_are_numbered_inside_each_query() -> None:
    t = tournament(3, 6, 4, seed=1)
    games, _ = read_games(*t.tables)
    found = components(games)
    assert found.count.tolist() == [1, 1, 1]
    assert not found.component.any()
    split = components(single(5, [0, 2, 1], [3, 4, 2], [0.5] * 3))
    assert split.component.tolist() == [0, 1, 1, 0, 1]
    assert split.count.tolist() == [2]


def test_separation_names_the_document() -> None:
    games = single(3, [0, 1, 0], [1, 2, 2], [0.6, 0.0, 0.0])  # document 2 beat everybody
    with pytest.raises(FitError, match="separation") as caught:
        refuse_without_maximum(games)
    assert games.doc_ids[2].tobytes().hex() in str(caught.value)
    assert "rate.prior" in str(caught.value)


def test_disconnection_names_documents() -> None:
    games = single(5, [0, 1, 3], [1, 2, 4], [0.5] * 3)
    with pytest.raises(FitError, match="do not connect") as caught:
        refuse_without_maximum(games)
    for i in (3, 4):
        assert games.doc_ids[i].tobytes().hex() in str(caught.value)


def test_cycle_of_wins_has_a_maximum() -> None:
    refuse_without_maximum(single(3, [0, 1, 2], [1, 2, 0], [1.0, 1.0, 1.0]))


def test_deviance() -> None:
    games, latent = planted(10, 4, 3, "thurstone", seed=2)
    f = link(latent[games.first] - latent[games.second], "thurstone")
    w, tiny = games.w, 1e-300
    by_hand = 2 * np.sum(
        games.answers * (w * np.log(np.maximum(w, tiny) / f) + (1 - w) * np.log(np.maximum(1 - w, tiny) / (1 - f)))
    )
    assert deviance(target(games, "thurstone"), latent)[0] == pytest.approx(by_hand)
    exact = single(10, games.first, games.second, f, games.answers)
    assert deviance(target(exact, "thurstone"), latent)[0] == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(("k", "judges"), [(8, 3), (6, 1)])
def test_equal_ratings_test_keeps_its_level(k: int, judges: int) -> None:
    games, _ = read_games(*tournament(250, 12, k, judges, sd=1e-9, seed=3).tables)
    p = equal_ratings_p(target(games, "thurstone"), components(games).count)
    assert np.mean(p < 0.05) <= 0.08  # with single votes it is cautious: a vote's square carries no noise
    assert 0.4 <= p.mean() <= 0.6
    assert judges == 1 or np.mean(p < 0.05) >= 0.02


def test_equal_ratings_test_has_power_and_is_the_deviance_test_to_first_order() -> None:
    games, _ = read_games(*tournament(40, 12, 6, 3, sd=1.0, seed=4).tables)
    assert np.mean(equal_ratings_p(target(games, "thurstone"), components(games).count) < 0.05) == 1.0
    near, _ = planted(8, 6, 1, "bradley-terry", seed=5)
    w = 0.5 + 0.02 * (near.w - 0.5)
    many = single(8, near.first, near.second, w, 1000.0)
    of = target(many, "bradley-terry")
    drop = deviance(of, np.zeros(8)) - deviance(of, solve(of, 1e-10, 100).latent)
    from scipy import stats

    p = equal_ratings_p(of, np.array([1]))[0]
    assert p == pytest.approx(stats.chi2.sf(drop[0], 7), rel=0.02)


def test_dispersion_of_judges_that_repeat_each_other() -> None:
    """Judges that repeat each other are one judge: φ is their number."""
    t = tournament(60, 20, 8, judges=1, seed=6, positives=False)
    games, _ = read_games(*t.tables)
    once = target(games, "thurstone", 1.0)
    latent = solve(once).latent
    repeated = replace(once, games=replace(games, answers=games.answers * 4.0))
    assert pooled_dispersion(repeated, latent, components(games).component) == pytest.approx(4.0, rel=0.1)


@pytest.mark.parametrize("times", [1e-3, 1.0, 1e3])
def test_dispersion_follows_the_unit_of_strengths(times: float) -> None:
    """So that multiplying all of them changes no rating, as weights that sum to 1 do, or counts of many votes."""
    games, _ = planted(30, 6, 5, "thurstone", seed=7)
    once = target(games, "thurstone", 1.0)
    latent = solve(once).latent
    scaled = replace(once, games=replace(games, answers=games.answers * times))
    wanted = pooled_dispersion(once, latent, components(games).component)
    assert pooled_dispersion(scaled, latent, components(games).component) / times == pytest.approx(wanted)


def test_equal_ratings_test_keeps_its_level_where_ties_have_a_model() -> None:
    like = Likelihood.of("bradley-terry", "davidson", 1.0)
    win = outcome_moments(like, 0.0)[1] * 2.0  # of outcomes 0, 1/2, 1 alike at both ends: Var = P(win) / 2
    pairs = np.tile(pair_graph(12, 6, rng("equal", 0)), (3, 1))
    drawn = rng("ties", 0).choice([1.0, 0.0, 0.5], (400, len(pairs)), p=[win, win, 1.0 - 2.0 * win])
    games, _ = bucket([Played(pairs, w, np.ones(len(pairs)), np.zeros(12)) for w in drawn])
    p = equal_ratings_p(target(games, like), components(games).count)
    assert np.mean(p < 0.05) <= 0.08
    assert 0.4 <= p.mean() <= 0.6


def test_spread_is_the_standard_deviation() -> None:
    games = single(4, [0, 1, 2], [1, 2, 3], [0.5] * 3)
    latent = np.array([-1.0, 0.0, 0.0, 1.0])
    assert diagnostics.spread(games, latent)[0] == pytest.approx(latent.std())


def test_dispersion_is_of_pairs_however_their_games_are_written() -> None:
    """A row of counts, its wins and losses as two rows, one of them turned round: the same pair, the same φ."""
    games, _ = planted(30, 6, 5, "thurstone", seed=7)
    sides = games.first, games.second
    won, lost = games.w * 5.0, (1.0 - games.w) * 5.0
    apart = single(30, np.tile(sides[0], 2), np.tile(sides[1], 2), np.repeat([1.0, 0.0], len(won)), [*won, *lost])
    turned = single(30, [*sides[0], *sides[1]], [*sides[1], *sides[0]], np.ones(2 * len(won)), [*won, *lost])
    found = []
    for written in (games, apart, turned):
        of = target(written, "thurstone", 1.0)
        latent = solve(of, 1e-10, 100).latent
        found.append(pooled_dispersion(of, latent, components(written).component))
    assert found == pytest.approx([found[0]] * 3, rel=1e-6)
    assert found[0] == pytest.approx(1.0, abs=0.35)
