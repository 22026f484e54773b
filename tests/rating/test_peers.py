"""The same fits by other people's libraries: probit regression, Bradley-Terry, Newman's iteration, I-LSR."""

from __future__ import annotations

import choix
import evalica
import numpy as np
import pytest
import statsmodels.api as sm

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Floats, Model
from anmi_ray.rating.diagnostics import components, refuse_without_maximum
from anmi_ray.rating.games import Games
from anmi_ray.rating.gaussian import laplace
from anmi_ray.rating.likelihood import Likelihood
from anmi_ray.rating.shared_parameters import globals_of
from anmi_ray.rating.solver import Posterior, solve
from anmi_ray.rating.uncertainty import anchors, errors
from tests.rating.single import planted, single, target


def maximum_likelihood(games: Games, model: Model) -> tuple[Posterior, Floats]:
    of = target(games, model)
    return of, solve(of, 1e-12, 100).latent


def test_thurstone_is_a_probit_regression() -> None:
    """Ratings, and errors of gaps to document 0, of `Probit` on one row per vote with document 0 as the reference."""
    games, latent = planted(12, 8, 5, "thurstone", seed=1, sd=0.6)
    won = np.rint(games.w * games.answers).astype(int)
    design, votes = [], []
    for i, j, wins, played in zip(games.first, games.second, won, games.answers.astype(int), strict=True):
        row = np.zeros(12)
        row[i], row[j] = 1.0, -1.0
        design += [row] * played
        votes += [1.0] * wins + [0.0] * (played - wins)
    peer = sm.Probit(np.array(votes), np.array(design)[:, 1:]).fit(disp=0, tol=1e-12, method="newton")
    games.positive[0] = True
    of, found = maximum_likelihood(games, "thurstone")
    np.testing.assert_allclose(found[1:] - found[0], peer.params, atol=1e-6)
    uncertain = errors(laplace(of, found), components(games).component, anchors(games, latent))
    np.testing.assert_allclose(uncertain.gap_se, peer.bse, atol=1e-6)


def games_with_ties() -> tuple[Games, list[evalica.Winner]]:
    """Wins, losses and ties of nine documents, several games of a pair, ours and as evalica takes them."""
    generator = rng("evalica", 1)
    first, second = generator.integers(0, 9, (2, 400))
    order = np.argsort(first, kind="stable")
    first, second = first[order][first[order] != second[order]], second[order][first[order] != second[order]]
    w = generator.choice([0.0, 0.5, 1.0], len(first), p=[0.3, 0.2, 0.5])
    games = single(9, first, second, w)
    refuse_without_maximum(games)
    return games, [evalica.Winner.X if v == 1.0 else evalica.Winner.Y if v == 0.0 else evalica.Winner.Draw for v in w]


def test_bradley_terry_of_evalica() -> None:
    games, winners = games_with_ties()
    sides = games.first.tolist(), games.second.tolist()
    scores = evalica.bradley_terry(*sides, winners, tolerance=1e-13, limit=100_000).scores
    theirs = np.log(scores.loc[range(9)].to_numpy())
    _, ours = maximum_likelihood(games, "bradley-terry")
    np.testing.assert_allclose(ours - ours.mean(), theirs - theirs.mean(), atol=1e-6)


def test_davidson_is_newmans_model_of_ties() -> None:
    """Newman (2023), section 5: P(tie) ∝ 2v √(π_i π_j), v fitted with the ratings; Davidson's ν is 2v."""
    games, winners = games_with_ties()
    sides = games.first.tolist(), games.second.tolist()
    peer = evalica.newman(*sides, winners, tolerance=1e-13, limit=100_000)
    theirs = np.log(peer.scores.loc[range(9)].to_numpy())
    like = Likelihood.of("bradley-terry", "davidson", 2.0 * peer.v)
    ours = solve(target(games, like), 1e-12, 100).latent
    np.testing.assert_allclose(ours - ours.mean(), theirs - theirs.mean(), atol=1e-6)
    config = RateConfig(model="bradley-terry", ties="davidson", prior=None, dispersion=1.0)
    assert globals_of(games, config).tie_width == pytest.approx(2.0 * peer.v, rel=3e-4)


def test_iterative_luce_of_choix() -> None:
    games, _ = planted(15, 10, 1, "bradley-terry", seed=3, sd=0.3)
    refuse_without_maximum(games)
    data = [
        (int(i), int(j)) if w == 1.0 else (int(j), int(i))
        for i, j, w in zip(games.first, games.second, games.w, strict=True)
    ]
    _, ours = maximum_likelihood(games, "bradley-terry")
    theirs = choix.ilsr_pairwise(15, data, tol=1e-12, max_iter=10_000)
    np.testing.assert_allclose(ours - ours.mean(), theirs - theirs.mean(), atol=1e-6)
