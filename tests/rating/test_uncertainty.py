"""Standard errors and gaps against dense linear algebra, and their coverage in simulation."""

from __future__ import annotations

from typing import Literal

import numpy as np
import pytest

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.scale import Floats, Model, to_latent
from anmi_ray.rating import fit_globals, uncertainty
from anmi_ray.rating.bucket import rate
from anmi_ray.rating.conjugate_gradient import cholesky, inverse_lower
from anmi_ray.rating.diagnostics import components
from anmi_ray.rating.games import Games, bounded
from anmi_ray.rating.gaussian import laplace
from anmi_ray.rating.likelihood import Likelihood
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.solver import Posterior, one_query, solve, workspace
from anmi_ray.rating.uncertainty import GapAnchors, anchors, errors, game_variances
from tests.rating import reference
from tests.rating.single import planted, single
from tests.rating.tournaments import tournament, truth_of


def dense_covariance(games: Games, model: Model, latent: Floats, precision: Floats) -> Floats:
    information = reference.information(latent, games.first, games.second, games.w, games.answers, model)
    return np.linalg.pinv(information + np.diag(precision), rcond=1e-11).astype(np.float64)


@pytest.mark.parametrize("model", ["thurstone", "bradley-terry"])
@pytest.mark.parametrize("tau", [0.0, 1.7])
def test_against_dense_inverse(model: Model, tau: float) -> None:
    games, _ = planted(14, 6, 5, model, seed=11, sd=0.5)
    games.positive[[3, 9]] = True
    precision = np.full(14, tau)
    target = Posterior(games, Likelihood.of(model), games.answers, np.zeros(14), precision)
    latent = solve(target, 1e-10, 100).latent
    component = components(games).component
    to = anchors(games, latent)
    approximation = laplace(target, latent)
    found = errors(approximation, component, to)
    sigma = dense_covariance(games, model, latent, precision)
    centring = np.eye(14) - 1 / 14
    np.testing.assert_allclose(found.std_err, np.sqrt(np.diag(centring @ sigma @ centring)), rtol=1e-9)
    assert to.position.tolist() == [3, 9]
    for anchor, doc, gap, se in zip(found.gap_anchor, found.gap_doc, found.gap, found.gap_se, strict=True):
        assert gap == latent[anchor] - latent[doc]
        assert se**2 == pytest.approx(sigma[anchor, anchor] + sigma[doc, doc] - 2 * sigma[anchor, doc], rel=1e-9)
    assert len(found.gap) == 26
    i, j = games.first, games.second
    np.testing.assert_allclose(
        game_variances(target, approximation.weight, component), sigma[i, i] + sigma[j, j] - 2 * sigma[i, j], rtol=1e-9
    )


def test_two_components_are_centred_apart() -> None:
    games = single(5, [0, 1, 3], [1, 2, 4], [0.7, 0.6, 0.9], 3.0)
    precision = np.full(5, 2.0)
    target = Posterior(games, Likelihood.of("thurstone"), games.answers, np.zeros(5), precision)
    latent = solve(target, 1e-10, 100).latent
    component = components(games).component
    assert component.tolist() == [0, 0, 0, 1, 1]
    found = errors(
        laplace(target, latent), component, GapAnchors(np.array([0, 1]), np.array([0], np.int32), np.array([False]))
    )
    sigma = dense_covariance(games, "thurstone", latent, precision)
    centring = np.zeros((5, 5))
    centring[:3, :3], centring[3:, 3:] = np.eye(3) - 1 / 3, np.eye(2) - 1 / 2
    np.testing.assert_allclose(found.std_err, np.sqrt(np.diag(centring @ sigma @ centring)), rtol=1e-9)
    # across components only the prior speaks: the error holds the unknown level of both
    assert found.gap_se[-1] ** 2 == pytest.approx(sigma[0, 0] + sigma[4, 4], rel=1e-9)


@pytest.mark.parametrize("n", [1, 3, 4, 9, 33])
def test_factorisation(n: int) -> None:
    matrix = np.random.default_rng(0).normal(size=(n, n + 3))
    matrix = matrix @ matrix.T
    root, x = matrix.copy(), np.full((n, n), np.nan)
    assert cholesky(root) == pytest.approx(np.linalg.slogdet(matrix)[1])
    inverse_lower(root, x)
    np.testing.assert_allclose(x.T @ x, np.linalg.inv(matrix), rtol=1e-7)
    assert not np.triu(x, 1).any()


def test_anchor_of_a_query_without_positive_is_its_best_document() -> None:
    games = single(4, [0, 1, 2], [1, 2, 3], [0.5, 0.5, 0.5])
    assert anchors(games, np.array([0.1, 0.4, 0.4, -0.9])).position.tolist() == [1]  # ties: the smallest id
    also = anchors(games, np.array([0.1, 0.4, 0.4, -0.9]), confirmed=np.array([False, False, False, True]))
    assert also.position.tolist() == [1, 3]  # what is confirmed, whatever it is rated


@pytest.mark.parametrize(
    ("k", "judges", "model", "estimate"),
    [
        (8, 3, "thurstone", "mode"),
        (4, 1, "thurstone", "mode"),
        (6, 3, "bradley-terry", "mode"),
        (8, 3, "thurstone", "mean"),
        (4, 1, "thurstone", "mean"),
        (6, 3, "bradley-terry", "mean"),
    ],
)
def test_intervals_cover(k: int, judges: int, model: Model, estimate: Literal["mode", "mean"]) -> None:
    """95 % intervals of ratings and of gaps to the best document, everything estimated from the same data.

    The best document's prior says that it is a maximum, the others' do not say that they are below it: that overstates
    its gaps, and the mode, which understates wide ones, hides it.
    """
    t = tournament(150, 30, k, judges, sd=1.0 if model == "thurstone" else 1.6, model=model, seed=12)
    config = RateConfig(model=model, estimate=estimate)
    result = rate(*t.tables, fit_globals(*t.tables, config), config)
    truth = truth_of(result.ratings, t.truth).reshape(150, 30)
    truth = (truth - truth.mean(axis=1, keepdims=True)).ravel()
    latent = result.ratings["latent"].to_numpy()
    std_err = to_latent(result.ratings["std_err_elo"].to_numpy(), model)
    assert 0.92 <= np.mean(np.abs(latent - truth) < 1.96 * std_err) <= 0.97
    query, anchor, doc = (result.gaps[name].to_pylist() for name in ("query_id", "anchor_id", "doc_id"))
    true_gap = np.array([t.truth[q, a] - t.truth[q, d] for q, a, d in zip(query, anchor, doc, strict=True)])
    gap, se = (to_latent(result.gaps[name].to_numpy(), model) for name in ("gap_elo", "gap_se_elo"))
    assert 0.92 <= np.mean(np.abs(gap - true_gap) < 1.96 * se) <= 0.97
    bias = 0.1 if estimate == "mode" else 0.15
    assert abs(np.mean(gap - true_gap)) < bias * (1.0 if model == "thurstone" else 1.6)


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_large_queries_have_the_same_errors_without_a_matrix(tau: float) -> None:
    upward, _ = planted(60, 6, 3, "thurstone", seed=13, sd=0.4)
    back = np.arange(len(upward.w)) % 3 == 0  # told from their higher document
    first, second = np.where(back, upward.second, upward.first), np.where(back, upward.first, upward.second)
    games = single(60, first, second, np.where(back, 1.0 - upward.w, upward.w), upward.answers)
    games.positive[7] = True
    target = Posterior(games, Likelihood.of("thurstone"), games.answers, np.zeros(60), np.full(60, tau))
    latent = solve(target, 1e-10, 100).latent
    component = components(games).component
    approximation = laplace(target, latent)
    dense = errors(approximation, component, anchors(games, latent))
    std_err, gap_se = np.empty(60), np.empty(59)
    weight = approximation.weight[target.upward_order]
    arguments = (one_query(target.upward, 0), weight, component, np.array([7], np.int32))
    uncertainty._solved_errors(*arguments, workspace(60, len(games.w)), std_err, gap_se)
    np.testing.assert_allclose(std_err, dense.std_err, rtol=1e-6)
    np.testing.assert_allclose(gap_se, dense.gap_se, rtol=1e-6)
    straight = Posterior(upward, target.likelihood, upward.answers, np.zeros(60), np.full(60, tau))
    upward.positive[7] = True
    same = errors(laplace(straight, latent), component, anchors(upward, latent))
    np.testing.assert_allclose(same.std_err, dense.std_err, rtol=1e-6)
    np.testing.assert_allclose(same.gap_se, dense.gap_se, rtol=1e-6)


def test_a_piece_of_a_large_query() -> None:
    small, _ = planted(20, 4, 1, "thurstone", seed=14)
    assert bounded(small, 20) is small
    t = tournament(3, 40, 8, 1, sd=1.0, positives=False, seed=15)
    games, _ = read_games(*t.tables)
    piece = bounded(games, 25)
    assert piece.queries == 3
    assert (piece.documents <= 25).all()
    assert (piece.documents >= 20).all()
    first, second = piece.global_ends()
    whole = {d.tobytes(): i for i, d in enumerate(games.doc_ids)}
    a, b = games.global_ends()
    weight = dict(zip(zip(a.tolist(), b.tolist(), strict=True), games.w.tolist(), strict=True))
    for i, j, w in zip(first.tolist(), second.tolist(), piece.w.tolist(), strict=True):
        assert weight[whole[piece.doc_ids[i].tobytes()], whole[piece.doc_ids[j].tobytes()]] == w
    # every game between documents that were kept is kept
    kept = {whole[d.tobytes()] for d in piece.doc_ids}
    assert len(piece.w) == sum(i in kept and j in kept for i, j in weight)
    parts = planted(10, 2, 1, "thurstone", seed=16)[0]
    apart = single(20, [*parts.first, *(parts.first + 10)], [*parts.second, *(parts.second + 10)], [*parts.w, *parts.w])
    assert bounded(apart, 15).documents[0] >= 12  # the walk goes on where a component ends
