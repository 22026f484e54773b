"""Strength from confidence: the formulas by hand and by properties, and fits that use them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import ArrayLike
from pydantic import ValidationError

from anmi_ray.api import rate
from anmi_ray.cli.rate import config_of
from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.base import result_settings
from anmi_ray.config.rate import RateConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.identity import rng
from anmi_ray.core.scale import Floats, Model, link
from anmi_ray.rating import Games, Globals, rate_games, rate_preferences, shared_numbers
from anmi_ray.rating import strengths as s
from anmi_ray.rating.games import bounded
from anmi_ray.rating.outcomes import outcomes_of
from anmi_ray.rating.shared_parameters import globals_of
from anmi_ray.rating.weighting import weighed
from anmi_ray.tables.preferences import GAMES, check_preferences
from jobs.studies.simulated_games import Played, bucket

SHARE = st.floats(0.0, 1.0)
SD = st.floats(0.0, 3.0)
MODELS: tuple[Model, ...] = ("thurstone", "bradley-terry")
Strength = Literal["linear", "sqrt", "squared", "information", "learned"]
NOT_UNIT: tuple[Strength, ...] = ("linear", "sqrt", "squared", "information", "learned")


def error_variance(
    p_P: ArrayLike,
    decided_P: ArrayLike = 1.0,
    judges: ArrayLike = 1.0,
    latent_sd: ArrayLike = 0.0,
    preference_sd: ArrayLike = 0.0,
    model: Model = "thurstone",
) -> Floats:
    """Equation (2), float64[P]. decided: t of one judge; judges: J; latent_sd σ_x in latent units; preference_sd σ_p.

    A calibrated prediction with its E|C| is judges=1, decided=E|C| (equation 3).
    """
    shared = np.square(s.density(p_P, model) * np.asarray(latent_sd)) + np.square(np.asarray(preference_sd))
    return s.unsure(p_P, decided_P) / np.asarray(judges) + shared


def predicted(seed: str, queries: int = 12, noise: tuple[float, float] = (0.1, 0.1), tie: bool = True) -> Games:
    """Noisy predictions p, with errors of sd noise[0], and noise[1] at every other pair, whose E|C| is then 1."""
    played, told = [], []
    for q in range(queries):
        r = rng("strengths", seed, q)
        pairs = k_regular(20, 8, r)
        pairs = pairs[np.argsort(pairs[:, 0], kind="stable")]
        latent = r.normal(size=20)
        hard = np.arange(len(pairs)) % 2 == 1
        p = link(latent[pairs[:, 0]] - latent[pairs[:, 1]], "thurstone")
        p = np.clip(p + np.where(hard, noise[1], noise[0]) * r.normal(size=len(pairs)), 0.0, 1.0)
        played.append(Played(pairs, p, np.ones(len(pairs)), latent))
        told.append(np.where(hard, 0.0, 1.0 - np.abs(2.0 * p - 1.0)))
    games = bucket(played)[0]
    return replace(games, tie=np.concatenate(told)) if tie else games


def test_golden_numbers() -> None:
    assert s.unsure(0.6, 0.5) == pytest.approx((0.5 - 0.04) / 4)
    # probit: φ(0)² σ² = .04/2π; logit: (p(1-p) σ)² = (.24 · .5)²
    assert error_variance(0.5, 1.0, np.inf, 0.2) == pytest.approx(0.04 / (2.0 * np.pi))
    assert error_variance(0.6, 1.0, 3, 0.5, 0.1, "bradley-terry") == pytest.approx(0.24 / 3 + 0.12**2 + 0.01)
    # five independent yes/no votes are five games; a prediction sure that somebody wins is one, whatever p is
    assert s.games_worth(0.3, error_variance(0.3, 1.0, 5)) == pytest.approx(5.0)
    np.testing.assert_allclose(s.games_worth([0.01, 0.4, 0.9], error_variance([0.01, 0.4, 0.9], 1.0)), 1.0)
    # equation (3): d = .2, E|C| = .5: (1 - .04) / (.5 - .04)
    assert s.games_worth(0.6, error_variance(0.6, 0.5)) == pytest.approx(0.96 / 0.46)
    np.testing.assert_allclose(s.by_consensus(0.5, 0.25, 0.5), 0.5)
    np.testing.assert_allclose(s.by_consensus([0.5, 0.9], 0.25, 2.0), [0.0625, 0.64])  # E|C| is at least |2p - 1|
    np.testing.assert_allclose(s.information([0.5, 0.9, 1.0]), [1.0, 0.36, s.LEAST])


@given(SHARE, SHARE, st.integers(1, 9), SD, SD, st.sampled_from(MODELS))
def test_strengths_are_finite_capped_and_symmetric(
    p: float, decided: float, judges: int, latent_sd: float, preference_sd: float, model: Model
) -> None:
    rest = (decided, judges, latent_sd, preference_sd, model)
    v = error_variance(p, *rest)
    m = s.games_worth(p, v)
    assert np.isfinite(v)
    assert v >= 0.0
    assert s.LEAST <= m <= s.MOST
    q = 1.0 - p
    assert s.games_worth(q, error_variance(q, *rest)) == pytest.approx(m, rel=1e-6)
    for power in s.POWERS.values():
        assert s.LEAST <= s.by_consensus(p, decided, power) <= 1.0
        assert s.by_consensus(q, decided, power) == pytest.approx(s.by_consensus(p, decided, power))
    assert s.LEAST <= s.information(p) <= 1.0
    assert s.information(q) == pytest.approx(s.information(p))


@given(SHARE, SHARE, SHARE, st.integers(1, 8), SD)
def test_strengths_are_monotone(p: float, low: float, high: float, judges: int, sd: float) -> None:
    low, high = sorted((low, high))

    def worth(decided: float, judges: int, sd: float) -> Floats:
        return s.games_worth(p, error_variance(p, decided, judges, sd))

    assert worth(high, judges, sd) <= worth(low, judges, sd) + 1e-12  # what must have a winner and shows none is worse
    assert worth(low, judges + 1, sd) >= worth(low, judges, sd) - 1e-12
    assert worth(low, judges, sd + 0.1) <= worth(low, judges, sd) + 1e-12
    for power in s.POWERS.values():
        assert s.by_consensus(p, low, power) <= s.by_consensus(p, high, power)


@pytest.mark.parametrize("p", [0.0, 1.0])
@pytest.mark.parametrize("decided", [0.0, 1.0])
def test_ends(p: float, decided: float) -> None:
    """Plugged in, a unanimous win is 0/0 and a unanimous tie infinite: both are capped."""
    assert s.games_worth(p, error_variance(p, decided)) == s.MOST
    assert s.games_worth(0.5, error_variance(0.5, 0.0)) == s.MOST


def test_noise_is_recovered() -> None:
    r, n = rng("noise"), 40_000
    p, own, answers = r.uniform(0.02, 0.98, n), 0.25 * r.random(n), r.integers(1, 4, n).astype(float)
    chance, known = p * (1.0 - p), 0.01 * r.random(n)
    truth = s.Noise(0.3, 0.1, 0.0, 0.5)
    v = truth.variance(p, chance, answers, own, "thurstone")
    square = (known + v) * r.normal(size=n) ** 2
    found = s.fit_noise(square, known, p, chance, answers, own, "thurstone")
    again = found.variance(p, chance, answers, own, "thurstone")
    assert np.median(np.abs(np.log(again / v))) < 0.05
    assert min(found) >= 0.0
    blind = s.fit_noise(square, known, p, chance, answers, np.zeros(n), "thurstone")
    assert blind.own == 0.0


def test_unit_is_the_fit_of_before() -> None:
    games, config = predicted("unit"), RateConfig()
    shared = shared_numbers(games, config)
    assert shared == globals_of(games, config)
    assert weighed(games, shared, config) is games
    assert "first" not in shared.to_json()
    assert "noise" not in shared.to_json()
    assert result_settings(config) == {}


@pytest.mark.parametrize("strength", NOT_UNIT)
def test_settings_round_trip_and_do_not_depend_on_the_bucket(strength: Strength) -> None:
    games, config = predicted("trip", noise=(0.05, 0.3)), RateConfig(strength=strength)
    shared = shared_numbers(games, config)
    assert Globals.from_json(shared.to_json()) == shared
    m = weighed(games, shared, config).answers
    assert np.isfinite(m).all()
    assert m.min() >= s.LEAST * 0.999
    assert m.max() <= s.MOST * 1.001
    alone = predicted("trip", 3, (0.05, 0.3))  # the first three of the same queries
    np.testing.assert_allclose(weighed(alone, shared, config).answers, m[: len(alone.w)], rtol=1e-6)
    result = rate_games(games, shared, config)
    assert all(result.fits["converged"].to_pylist())


@pytest.mark.parametrize("strength", ["linear", "information", "learned"])
def test_a_factor_of_all_games_changes_nothing(strength: Strength) -> None:
    games, config = predicted("scale", noise=(0.1, 0.3)), RateConfig(strength=strength)
    more = replace(games, answers=4.0 * games.answers)
    ratings = [
        rate_games(one, shared_numbers(one, config), config).ratings["latent"].to_numpy() for one in (games, more)
    ]
    np.testing.assert_allclose(ratings[0], ratings[1], atol=0.01)


def test_swapping_documents_changes_nothing() -> None:
    table = {"query_id": ["q"] * 4, "doc_a": list("aabc"), "doc_b": list("bccd"), "preference": [0.9, 0.6, 0.3, 0.5]}
    told = table | {"tie": [0.1, 0.2, 0.6, None]}
    turned = told | {"doc_a": told["doc_b"], "doc_b": told["doc_a"], "preference": [1 - p for p in told["preference"]]}
    for strength in NOT_UNIT:
        config = RateConfig(strength=strength, prior=1.0, dispersion=1.0)
        one, other = (rate_preferences(pa.table(t), config).ratings for t in (told, turned))
        np.testing.assert_allclose(one["latent"].to_numpy(), other["latent"].to_numpy(), atol=1e-9)
    linear = RateConfig(strength="linear", prior=1.0, dispersion=1.0)
    weighty = table | {"games": [0.9, 0.8, 0.4, s.LEAST]}  # 1 - tie; without one |2p - 1|, and that at least LEAST
    same = rate_preferences(pa.table(weighty), RateConfig(prior=1.0, dispersion=1.0)).ratings
    np.testing.assert_allclose(
        rate_preferences(pa.table(told), linear).ratings["latent"].to_numpy(), same["latent"].to_numpy(), atol=1e-9
    )


def test_learned_tells_what_is_hard_from_what_the_model_says() -> None:
    games, config = predicted("hard", 20, (0.05, 0.35)), RateConfig(strength="learned")
    shared = shared_numbers(games, config)
    assert shared.noise is not None
    assert shared.noise.own > 0.03
    m = weighed(games, shared, config).answers
    hard = games.tie == 0.0
    even = np.abs(games.w - 0.5) < 0.25
    assert np.median(m[~hard & even]) > 1.2 * np.median(m[hard & even])


def test_ties_travel_with_their_games() -> None:
    games = predicted("ties", 1)
    piece = bounded(games, 10)
    assert games.tie is not None
    assert piece.tie is not None
    told = dict(zip(_pairs(games), games.tie, strict=True))
    np.testing.assert_array_equal(piece.tie, [told[pair] for pair in _pairs(piece)])


def _pairs(games: Games) -> list[tuple[bytes, bytes]]:
    first, second = (games.doc_ids[end] for end in games.global_ends())
    return [(one.tobytes(), other.tobytes()) for one, other in zip(first, second, strict=True)]


def test_columns_of_ties_are_checked() -> None:
    rows = {"query_id": ["q"] * 3, "doc_a": list("abc"), "doc_b": list("bcd"), "preference": [0.5] * 3}
    read = outcomes_of(check_preferences(pa.table(rows | {"tie": [0.5, 1.5, None]}), GAMES))
    assert read.rejects["reason"].to_pylist() == ["tie outside [0, 1]"]
    np.testing.assert_array_equal(read.games().tie, [0.5, np.nan])
    assert outcomes_of(check_preferences(pa.table(rows), GAMES)).games().tie is None


@pytest.mark.parametrize("strength", ["information", "learned"])
def test_two_steps_need_a_prior(strength: Strength) -> None:
    with pytest.raises(ValidationError, match="set prior to empirical-bayes or strength to unit"):
        RateConfig(strength=strength, prior=None)


@settings(max_examples=10)
@given(st.sampled_from(NOT_UNIT), st.sampled_from(MODELS))
def test_votes_without_ties_told(strength: Strength, model: Model) -> None:
    games = predicted("votes", 4, (0.2, 0.2), tie=False)
    games = replace(games, w=np.round(games.w * 3.0) / 3.0, answers=np.full(len(games.w), 3.0))
    config = RateConfig(strength=strength, model=model)
    shared = shared_numbers(games, config)
    m = weighed(games, shared, config).answers
    assert (m >= 3.0 * s.LEAST * 0.999).all()
    assert shared.noise is None or shared.noise.own == 0.0


def test_the_command_line_knows_strengths(tmp_path: Path) -> None:
    """Through the file's reader, with ties told for one row of two; a word that is no strength is named."""
    file = tmp_path / "p.csv"
    file.write_text("query_id,doc_a,doc_b,preference,tie\nq,a,b,.9,.1\nq,b,c,.6,\nq,c,a,.2,.2\n")
    rated = rate(file, prior=1.0, dispersion=1.0, strength="linear", threads=1)
    assert rated.ratings["games"].to_numpy().sum() == pytest.approx(2.0 * (0.9 + 0.2 + 0.8))
    with pytest.raises(ConfigError, match="--strength cubed"):
        config_of({"strength": "cubed"})
