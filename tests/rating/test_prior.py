"""Empirical Bayes: exact gradient, planted spread found, maximum of normals, the positive's prior."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.errors import DataError, FitError
from anmi_ray.core.scale import Model
from anmi_ray.rating import fit_globals, shared_parameters
from anmi_ray.rating.games import Games
from anmi_ray.rating.likelihood import Likelihood
from anmi_ray.rating.pairs import read_games
from anmi_ray.rating.prior import (
    Free,
    PriorShape,
    empirical_bayes,
    log_marginal,
    prior_arrays,
    top_and_rest,
    top_of_normals,
)
from anmi_ray.rating.shared_parameters import MIN_POSITIVES, Globals, globals_of, sample_queries
from tests.rating.tournaments import Tournament, tournament


def games_of(t: Tournament) -> Games:
    return read_games(*t.tables)[0]


@pytest.mark.parametrize(
    ("n", "mean", "sd"),
    [(2, 1 / math.sqrt(math.pi), math.sqrt(1 - 1 / math.pi)), (100, 2.5076, 0.4294), (10, 1.5388, 0.5868)],
)
def test_maximum_of_normals(n: int, mean: float, sd: float) -> None:
    """n = 2 in closed form; n = 10 and 100 as tabulated (Harter 1961)."""
    assert top_of_normals(n) == pytest.approx((mean, sd), abs=6e-5)


@pytest.mark.parametrize(("n", "r"), [(5, 1), (20, 3), (4, 4)])
def test_top_and_rest_by_simulation(n: int, r: int) -> None:
    draws = np.sort(np.random.default_rng(0).normal(size=(200_000, n)), axis=1)
    top, rest = draws[:, n - r :], draws[:, : n - r]
    assert top_of_normals(n, r) == pytest.approx((top.mean(), top.std()), abs=0.01)
    if r < n:
        games = _one_query(n, r)
        moments = top_and_rest(games)
        assert moments.rest_mean[0] == pytest.approx(rest.mean(), abs=0.01)
        assert moments.rest_sd[0] == pytest.approx(rest.std(), abs=0.01)


def _one_query(n: int, r: int) -> Games:
    games = games_of(tournament(1, n, n - 1, judges=1))
    games.positive[:] = np.arange(n) < r
    return games


@pytest.mark.parametrize("shape", [PriorShape(0.8), PriorShape(1.5, 0.6, 1.7)])
def test_threads_of_the_linear_algebra_change_no_gradient(shape: PriorShape) -> None:
    """More than 10,000 documents: from there on OpenBLAS sums a product in as many parts as it has threads."""
    threadpoolctl = pytest.importorskip("threadpoolctl")
    games = games_of(tournament(350, 30, 2, judges=1, seed=3))
    found: list[bytes] = []
    for threads in (1, 2, 3):
        with threadpoolctl.threadpool_limits(threads, user_api="blas"):
            found.append(log_marginal(games, Likelihood.of("thurstone"), games.answers, shape).by_shape.tobytes())
    assert found[0] == found[1] == found[2]


@pytest.mark.parametrize("model", ["thurstone", "bradley-terry"])
@pytest.mark.parametrize("shape", [PriorShape(0.8), PriorShape(1.5, 0.6, 1.7), PriorShape(0.8, None, None)])
def test_gradient_of_the_marginal_likelihood(model: Model, shape: PriorShape) -> None:
    games = games_of(tournament(3, 12, 4, judges=2, seed=1))
    like = Likelihood.of(model)
    gradient = log_marginal(games, like, games.answers, shape).by_shape
    theta = np.array([math.log(shape.sigma0), shape.mean_factor or 0.0, math.log(shape.sd_factor or 1.0)])
    h = 1e-5
    for i in range(3 if shape.mean_factor else 1):
        values = []
        for sign in (1, -1):
            moved = theta.copy()
            moved[i] += sign * h
            factors = (float(moved[1]), math.exp(moved[2])) if shape.mean_factor else (None, None)
            moved_shape = PriorShape(math.exp(moved[0]), *factors)
            values.append(log_marginal(games, like, games.answers, moved_shape).value)
        assert gradient[i] == pytest.approx((values[0] - values[1]) / (2 * h), abs=2e-5)


def test_marginal_likelihood_against_quadrature() -> None:
    """Two documents with strong games: the integral over the gap is one-dimensional."""
    from tests.rating.single import single

    games = single(2, [0], [1], [0.6], [40.0])
    value = log_marginal(games, Likelihood.of("bradley-terry"), games.answers, PriorShape(0.7, None, None)).value
    gap = np.linspace(-8, 8, 20_001)
    log_density = -0.25 * (gap / 0.7) ** 2 - 0.5 * math.log(4 * math.pi * 0.7**2)
    log_likelihood = -40.0 * (0.6 * np.log1p(np.exp(-gap)) + 0.4 * np.log1p(np.exp(gap)))
    exact = math.log(float(np.trapezoid(np.exp(log_density + log_likelihood), gap)))
    assert value == pytest.approx(exact, abs=0.01)


@pytest.mark.parametrize(
    ("sd", "k", "judges", "model", "shape"),
    [
        (1.0, 8, 3, "thurstone", (40, 40)),
        (0.5, 6, 3, "thurstone", (40, 40)),
        (2.0, 8, 3, "thurstone", (40, 40)),
        (1.5, 8, 3, "bradley-terry", (40, 40)),
        (1.0, 4, 1, "thurstone", (150, 40)),
        (1.0, 6, 2, "thurstone", (130, 12)),
    ],
)
def test_planted_spread_is_found(sd: float, k: int, judges: int, model: Model, shape: tuple[int, int]) -> None:
    t = tournament(*shape, k, judges, sd, model, seed=2)
    found = fit_globals(*t.tables, RateConfig(model=model))
    assert found.sigma0 == pytest.approx(sd, rel=0.1)
    assert found.dispersion == pytest.approx(1.0, abs=0.12)
    assert found.sigma0_how == "empirical Bayes"


@pytest.mark.parametrize("start", [0.03, 0.5, 10.0])
def test_the_spread_of_few_games_is_found_from_wherever_the_search_begins(start: float) -> None:
    """Near 0 the gradient in log σ0 vanishes: a dispersion of its own once left it there, with 39 nats to gain."""
    games = games_of(tournament(40, 40, 2, 1, positives=False, seed=4))
    found = empirical_bayes(games, Likelihood.of("thurstone"), games.answers, PriorShape(start), Free())
    assert found.shape is not None
    assert found.shape.sigma0 == pytest.approx(0.607, abs=0.005)


def test_positives_prior_is_the_maximum_below_a_hundred() -> None:
    t = tournament(20, 15, 6, seed=3)
    found = fit_globals(*t.tables, RateConfig())
    assert found.positives == 20
    assert (found.positive_mean_factor, found.positive_sd_factor) == (1.0, 1.0)
    assert f"{MIN_POSITIVES} needed" in found.positive_how
    top = top_of_normals(15)
    assert found.sigma0 is not None
    assert found.positive_mean == pytest.approx(top[0] * found.sigma0)
    assert found.positive_sd == pytest.approx(top[1] * found.sigma0)


def test_positives_prior_is_fitted_from_a_hundred_on() -> None:
    games = games_of(tournament(150, 15, 6, seed=4))
    best = globals_of(games, RateConfig())
    assert best.positive_mean_factor == pytest.approx(1.0, abs=0.1)
    assert best.positive_sd_factor == 1.0
    assert "mean fitted to 150" in best.positive_how
    # positives drawn blindly: the fit must see that they are no maxima, in mean and in spread
    games.positive[:] = False
    games.positive[games.doc_start[:-1]] = True
    blind = globals_of(games, RateConfig())
    assert blind.positive_mean_factor == pytest.approx(0.0, abs=0.1)
    assert blind.positive_sd is not None
    assert blind.positive_sd == pytest.approx(1.0, abs=0.25)
    assert "mean and spread fitted" in blind.positive_how


def test_options() -> None:
    games = games_of(tournament(10, 10, 6, seed=5))
    fixed = globals_of(games, RateConfig(prior=0.7, dispersion=1.0, positive_prior="same"))
    assert (fixed.sigma0, fixed.sigma0_how, fixed.dispersion, fixed.dispersion_how) == (0.7, "fixed", 1.0, "fixed")
    assert fixed.positive_how == "same as all documents"
    assert fixed.positive_mean is None
    none = globals_of(games, RateConfig(prior=0.7, positive_prior="maximum"))
    assert none.positive_how == "maximum of n draws"
    mean, precision = prior_arrays(games, PriorShape(0.7, None, None))
    assert not mean.any()
    np.testing.assert_allclose(precision, 0.7**-2)


def test_prior_means_of_a_query_sum_to_zero() -> None:
    games = games_of(tournament(5, 9, 4, seed=6))
    mean, precision = prior_arrays(games, PriorShape(0.5, 0.8, 1.2))
    np.testing.assert_allclose(np.add.reduceat(mean, games.doc_start[:-1]), 0.0, atol=1e-12)
    assert (mean[games.positive] > 0).all()
    assert (precision > 0).all()


def test_sample_is_a_sample_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    t = tournament(12, 8, 4, seed=7)
    ids = sorted(set(t.comparisons["query_id"].to_pylist()))
    chosen = sample_queries(ids, 5)
    assert sample_queries(reversed(ids), 5) == chosen
    assert set(chosen) & set(ids[:6]) <= set(sample_queries(ids[:6], 5))
    monkeypatch.setattr(shared_parameters, "SAMPLE_QUERIES", 5)
    assert fit_globals(*t.tables, RateConfig()).queries == 5


def test_json_round_trip_and_refusal() -> None:
    games = games_of(tournament(5, 8, 4, seed=8))
    for config in (RateConfig(), RateConfig(prior=1.0, dispersion=1.0)):
        found = globals_of(games, config)
        assert Globals.from_json(found.to_json()) == found
    for bad in ("", "{}", "[1]", '{"sigma0": 1.0}'):
        with pytest.raises(DataError, match="shared numbers"):
            Globals.from_json(bad)


def test_no_answers_at_all() -> None:
    t = tournament(2, 5, 4, seed=9)
    with pytest.raises(FitError, match="no pair has an answer"):
        fit_globals(t.judgments.slice(0, 0), t.comparisons, t.candidates, RateConfig())
