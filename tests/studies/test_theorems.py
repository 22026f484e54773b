"""The machinery of the study of theorems: what is known of gradients, graphs and ascents comes out of it."""

from __future__ import annotations

import math

import numpy as np
import pytest

from anmi_ray.core.identity import rng
from anmi_ray.rating.spectrum import lambda2
from jobs.studies.theorem_losses import Similarities, decomposition, false_negatives, hard_negatives, pushes, variations
from jobs.studies.theorem_ratings import Ascent, Level, fitted, world
from jobs.studies.theorems import Sizes, trained


def similar() -> Similarities:
    """Forty queries of two relevant documents and 200 others."""
    cosine = rng("theorems").normal(0.1, 0.1, (40, 202))
    cosine[:, :2] += 0.5
    return Similarities.of(cosine, [[0, 1]] * 40)


def test_similarities_stand_by_rank_behind_the_positive() -> None:
    found = Similarities.of(np.array([[0.1, 0.9, 0.4, 0.7]]), [[2, 3]])
    np.testing.assert_array_equal(found.lists, [[0.4, 0.9, 0.1]])
    assert found.second[0] == 0.7


def test_a_sentence_is_judged_by_the_whole_interval() -> None:
    level = Level.of([1.0, 1.1, 1.2])
    assert [level.within(low=low) for low in (0.5, 1.1, 2.0)] == ["holds", "cannot tell", "fails"]


def test_gradients_vary_as_the_temperature_only_while_it_is_high() -> None:
    score = rng("theorems").normal(0.0, 0.1, (50, 17))
    score[:, 0] = -1.0  # else nothing is left of the negatives where it leads
    spread = score[:, 1:].std(axis=1)
    np.testing.assert_allclose(variations(score, 10.0), spread / 10.0, rtol=0.05)
    np.testing.assert_allclose(variations(score, 1e-4), math.sqrt(15), rtol=0.01)
    assert pushes(score, 0.1).sum(axis=1) == pytest.approx(0.0, abs=1e-12)


def test_what_is_known_of_the_loss_gets_its_verdict() -> None:
    real = similar()
    verdicts = {claim.name: claim.verdict for part in (hard_negatives, false_negatives) for claim in part(real)[0]}
    assert verdicts["1, identity"] == verdicts["1, example"] == verdicts["3, far below the positive (−.4)"] == "holds"
    assert verdicts["3, level with the positive"] == "fails"
    claims, _ = decomposition(real)
    assert [claim.verdict for claim in claims[:4]] == ["fails", "fails", "fails", "holds"]


def test_a_ring_falls_apart_as_its_square_and_ascent_keeps_its_bound() -> None:
    games, _ = world("ring", 40, 4, 0)
    angle = 2.0 * math.pi / 40
    assert lambda2(games)[0] == pytest.approx(
        6.0 - 2.0 * math.cos(angle) - 2.0 * (2.0 * math.cos(angle) ** 2 - 1.0) - 2.0
    )
    games, _ = world("random", 40, 8, 0)
    ascent = Ascent(games)
    wanted, _ = fitted(games)
    assert np.abs(ascent.gradient(wanted)).max() < 1e-6
    curvature = ascent.curvatures(wanted)
    assert curvature[0] == pytest.approx(0.0, abs=1e-9)
    assert curvature[-1] < 16.0
    assert ascent.distances(1.0 / 16.0, wanted)[-1] <= 1e-6 * np.linalg.norm(wanted)
    steps, largest = ascent.algorithm1()
    assert steps is not None
    assert largest > 3.0 * np.abs(wanted).max()


def test_the_gap_of_a_small_model_closes_with_more_queries() -> None:
    few, many = (trained(Sizes(n=n, d=8), 0) for n in (50, 800))
    assert few.test - few.train > 2.0 * abs(many.test - many.train)
    assert many.clean < many.test
