"""The Newton solver against gradient ascent, scipy, published fits, and its own symmetries."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import optimize

from anmi_ray.core.errors import FitError
from anmi_ray.core.scale import Floats, Model, link
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games
from anmi_ray.rating.gaussian import laplace, propagate
from anmi_ray.rating.likelihood import Likelihood
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.solver import Posterior, Solution, solve
from anmi_ray.rating.uncertainty import anchors, errors
from tests.rating import reference
from tests.rating.published import (
    CITATION_ABILITIES,
    CITATION_ERRORS,
    CITATIONS,
    JOURNALS,
    pooled,
)
from tests.rating.single import planted, single, target
from tests.rating.tournaments import tournament

MODELS: list[Model] = ["thurstone", "bradley-terry"]
few = settings(deadline=None, derandomize=True, max_examples=25)


def fit(games: Games, model: Model, sd: float | None = 1.0, mean: Floats | float = 0.0) -> Solution:
    return solve(target(games, model, 0.0 if sd is None else sd**-2, mean), 1e-10, 100)


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("sd", [0.5, 3.0])
def test_agrees_with_gradient_ascent(model: Model, sd: float) -> None:
    games, _ = planted(15, 6, 3, model, seed=3)
    mean = np.linspace(-0.5, 1.0, 15)
    slow = reference.gradient_ascent(
        games.first, games.second, games.w, games.answers, mean, np.full(15, sd**-2), model, tolerance=1e-11
    )
    found = fit(games, model, sd, mean)
    assert found.converged.all()
    np.testing.assert_allclose(found.latent, slow, atol=1e-8)


@pytest.mark.parametrize("model", MODELS)
def test_agrees_with_scipy(model: Model) -> None:
    games, _ = planted(20, 6, 1, model, seed=4)
    args = (games.first, games.second, games.w, games.answers, model)

    def objective(e: Floats) -> float:
        return -reference.log_likelihood(e, *args) + 0.5 * float(e @ e) / 4.0

    found = optimize.minimize(
        objective, np.zeros(20), jac=lambda e: -reference.gradient(e, *args) + e / 4.0, options={"gtol": 1e-9}
    )
    np.testing.assert_allclose(fit(games, model, 2.0).latent, found.x, atol=1e-7)


def test_reference_says_when_it_did_not_converge() -> None:
    games, _ = planted(6, 4, 1, "thurstone", seed=5)
    with pytest.raises(FitError, match="did not converge"):
        reference.gradient_ascent(
            games.first, games.second, games.w, games.answers, np.zeros(6), np.ones(6), "thurstone", 1e-12, 3
        )


def test_too_few_iterations_are_flagged() -> None:
    games, _ = planted(30, 6, 3, "thurstone", seed=6)
    found = solve(target(games, "thurstone", 1.0), 1e-8, 1)
    assert not found.converged[0]
    assert found.iterations[0] == 1
    assert found.gradient_norm[0] > 1e-8


@pytest.mark.parametrize("model", MODELS)
@pytest.mark.parametrize("power", [2, 4, 6, 8])
def test_gradient_norm_is_what_it_says(model: Model, power: int) -> None:
    """The reported norm is never below the true one, also where the last step is not evaluated."""
    for seed in range(20):
        games, _ = planted(30, 6, 3, model, seed, sd=2.0)
        n = np.bincount(games.first, games.answers, 30) + np.bincount(games.second, games.answers, 30)
        found = solve(target(games, model, 1.0), 10.0**-power, 9)
        args = (games.first, games.second, games.w, games.answers, model)
        true = np.abs((reference.gradient(found.latent, *args) - found.latent) / n).max()
        assert true <= found.gradient_norm[0] + 1e-14 <= 10.0**-power + 1e-14


@pytest.mark.parametrize("model", MODELS)
@few
@given(seed=st.integers(0, 10_000), k=st.integers(2, 6))
def test_swapping_documents_of_a_game_changes_nothing(model: Model, seed: int, k: int) -> None:
    games, _ = planted(10, k, 2, model, seed)
    swapped = single(10, games.second, games.first, 1.0 - games.w, games.answers)
    np.testing.assert_allclose(fit(games, model).latent, fit(swapped, model).latent, atol=1e-8)


def test_swapping_documents_turns_offsets() -> None:
    games, _ = planted(10, 4, 2, "thurstone", seed=8)
    order = np.argsort(games.second, kind="stable")
    swapped = single(10, games.second, games.first, 1.0 - games.w, games.answers)
    offset, flat, like = np.linspace(-0.5, 0.7, len(order)), (np.zeros(10), np.ones(10)), Likelihood.of("thurstone")
    one = solve(Posterior(games, like, games.answers, *flat, offset), 1e-10, 100)
    other = solve(Posterior(swapped, like, swapped.answers, *flat, -offset[order]), 1e-10, 100)
    np.testing.assert_allclose(one.latent, other.latent, atol=1e-8)


@pytest.mark.parametrize("model", MODELS)
@few
@given(seed=st.integers(0, 10_000))
def test_all_outcomes_reversed_negates_ratings(model: Model, seed: int) -> None:
    games, _ = planted(10, 4, 2, model, seed)
    reversed_ = single(10, games.first, games.second, 1.0 - games.w, games.answers)
    np.testing.assert_allclose(fit(games, model).latent, -fit(reversed_, model).latent, atol=1e-8)


@few
@given(seed=st.integers(0, 10_000))
def test_permutation_equivariance(seed: int) -> None:
    games, _ = planted(12, 4, 2, "thurstone", seed)
    order = np.random.default_rng(seed).permutation(12)
    renamed = single(12, order[games.first], order[games.second], games.w, games.answers)
    np.testing.assert_allclose(fit(renamed, "thurstone").latent[order], fit(games, "thurstone").latent, atol=1e-8)


@few
@given(seed=st.integers(0, 10_000))
def test_duplicated_games_are_doubled_strength(seed: int) -> None:
    games, _ = planted(10, 4, 2, "bradley-terry", seed)
    twice = single(10, *(np.tile(column, 2) for column in (games.first, games.second, games.w, games.answers)))
    doubled = single(10, games.first, games.second, games.w, 2.0 * games.answers)
    np.testing.assert_allclose(fit(twice, "bradley-terry").latent, fit(doubled, "bradley-terry").latent, atol=1e-8)


@pytest.mark.parametrize("model", MODELS)
@few
@given(seed=st.integers(0, 10_000), sd=st.floats(0.1, 1.0))
def test_exact_probabilities_recover_planted_ratings(model: Model, seed: int, sd: float) -> None:
    """With w = F(e_i - e_j) and no prior the maximum is at e itself, whatever the strengths."""
    games, latent = planted(12, 6, 1, model, seed, sd)
    exact = single(12, games.first, games.second, link(latent[games.first] - latent[games.second], model), 7.0)
    found = fit(exact, model, None)
    assert found.converged.all()
    np.testing.assert_allclose(found.latent - found.latent.mean(), latent - latent.mean(), atol=1e-5)


@pytest.mark.parametrize("model", MODELS)
def test_threads_change_nothing(model: Model) -> None:
    games, _ = read_games(*tournament(23, 11, 4, 2, model=model, seed=7).tables)
    of = target(games, model, 1.0)
    one, three = (solve(of, 1e-9, 50, threads=threads) for threads in (1, 3))
    assert one.latent.tobytes() == three.latent.tobytes()
    assert one.iterations.tolist() == three.iterations.tolist()
    where = (components(games).component, anchors(games, one.latent))
    means = [propagate(of, one.latent, threads) for threads in (1, 3)]
    assert means[0].mean.tobytes() == means[1].mean.tobytes()
    assert means[0].weight.tobytes() == means[1].weight.tobytes()
    alone, together = (errors(laplace(of, one.latent), *where, threads=threads) for threads in (1, 3))
    assert alone.std_err.tobytes() == together.std_err.tobytes()
    assert alone.gap_se.tobytes() == together.gap_se.tobytes()


def test_extreme_games_stay_finite() -> None:
    """A chain of unanimous wins with an almost flat prior: ratings run far out, nothing overflows."""
    games = single(30, np.arange(29), np.arange(1, 30), np.ones(29), 1000.0)
    for model in MODELS:
        found = fit(games, model, 50.0)
        assert np.isfinite(found.latent).all()
        assert found.converged.all()
        assert (np.diff(found.latent) < 0).all()


def test_a_weak_game_between_strong_ones() -> None:
    """A step that overshoots on the weak game ends where the link is flat, unless it is shortened."""
    games = single(4, [0, 1, 3], [1, 2, 0], [0.9, 0.9, 0.9], [1.0, 100.0, 100.0])
    found = fit(games, "bradley-terry", None)
    assert found.converged.all()
    np.testing.assert_allclose(found.latent[games.first] - found.latent[games.second], np.log(9.0), rtol=1e-8)


def test_golden_citations() -> None:
    games = pooled(JOURNALS, CITATIONS)
    games.positive[0] = True  # gaps to Biometrika
    found = fit(games, "bradley-terry", None)
    np.testing.assert_allclose(found.latent - found.latent[0], [CITATION_ABILITIES[j] for j in JOURNALS], atol=6e-6)
    uncertain = errors(
        laplace(target(games, "bradley-terry"), found.latent), np.zeros(4, np.int32), anchors(games, found.latent)
    )
    np.testing.assert_allclose(uncertain.gap_se, [CITATION_ERRORS[j] for j in JOURNALS[1:]], atol=6e-6)
