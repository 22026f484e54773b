"""A leaning towards length is absorbed by ratings; who knows that relevance has nothing to do with it takes it out."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from anmi_ray.config.rate import RateConfig
from anmi_ray.core.identity import rng
from anmi_ray.rating.shared_parameters import globals_of
from anmi_ray.rating.solver import solve
from jobs.studies.length_bias import LengthRated, by_people, error, removed, simulated, slope, unlike
from jobs.studies.simulated_games import bucket, play


def queries(beta: float, noise: float = 0.0) -> list[LengthRated]:
    found = []
    for q in range(100):
        random = rng("test", "length", q)
        length, people, own = random.normal(size=(3, 40))
        rating = people + beta * length + noise * own
        found.append(LengthRated(rating, length - length.mean(), people))
    return found


def test_a_coefficient_of_length_is_absorbed_by_free_ratings() -> None:
    """With hardly a prior the fit is as good for every coefficient: ratings move by it times length."""
    random = rng("test", "absorbed")
    length, truth = random.normal(size=(2, 12))
    pairs = np.stack(np.triu_indices(12, 1), axis=1)
    played = play(pairs, 0.5 * truth, 20, "thurstone", random)
    games, _ = bucket([played])
    target = globals_of(games, RateConfig(prior=100.0), 1).posterior(games)
    gap = length[games.first] - length[games.second]
    plain = solve(target).latent
    for beta in (-0.5, 0.5):
        leaned = solve(replace(target, offset=beta * gap)).latent
        moved = leaned + beta * length - plain
        np.testing.assert_allclose(moved - moved.mean(), 0.0, atol=1e-3)


@pytest.mark.parametrize("beta", [-0.4, 0.0, 0.7])
def test_both_rules_find_beta_where_they_may(beta: float) -> None:
    of = queries(beta, noise=0.3)
    assert slope(of) == pytest.approx(beta, abs=0.1)
    assert by_people(*unlike(of)) == pytest.approx(beta, abs=0.08)
    assert by_people(-unlike(of)[0], unlike(of)[1]) == 0.0
    cleaned = [one.without(beta) for one in of]
    assert abs(np.mean([error(one) for one in cleaned])) < 0.08
    if beta:
        assert np.sign(np.mean([error(one) for one in of])) == np.sign(beta)


def test_removal_helps_a_judge_that_leans_and_harms_where_relevant_documents_are_longer() -> None:
    leaning, honest = simulated(0.6, 0.0, 10, 40), simulated(0.0, 0.5, 10, 40)
    for rule in ("independence", "people, all"):
        assert leaning[rule][0][0].mean() > leaning["as given"][0][0].mean() + 0.03
    assert honest["independence"][0][0].mean() < honest["as given"][0][0].mean() - 0.01
    assert honest["people, all"][0][0].mean() > honest["independence"][0][0].mean()


def test_the_panel_takes_away_what_a_judge_has_beyond_the_others() -> None:
    of = queries(0.5)
    found = removed("test", of, False, others=slope(of))
    np.testing.assert_allclose(found["panel"][0].mean(axis=1), found["as given"][0].mean(axis=1), atol=0.01)
