"""Strengths of simulated judges, of whom each has noise of its own, or one stands there thrice."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.special import expit

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.core.identity import rng
from jobs.studies.judge_strengths import DEGREE, Graded, Panel, Reals, agreement, joint, others, ratings

TRUE = np.array([0.5, 1.0, 1.0, 2.0])
TEAMS = ("a", "b", "c", "d")


def judged(queries: int = 12, documents: int = 40, first: int = 0) -> Panel:
    """Judges of discriminations TRUE on documents of quality N(0, 1); people's grades are the quality itself.

    first: number of the first query, by which all is drawn.
    """
    found = []
    for number in range(first, first + queries):
        random = rng("strengths", number)
        quality = random.standard_normal(documents)
        pairs = k_regular(documents, DEGREE, random).astype(np.int64)
        chance = expit((quality[pairs[:, 0]] - quality[pairs[:, 1]])[:, None] * 2.0 * TRUE)
        found.append(Graded(quality, pairs, (random.random(chance.shape) < chance).astype(float)))
    return Panel(found, TEAMS)


def test_ratings_are_where_the_posterior_is_flat() -> None:
    one, scale, weight = judged(1).queries[0], TRUE, np.array([1.0, 2.0, 0.5, 1.0])

    def posterior(theta: Reals) -> float:
        gap = (theta[one.pairs[:, 0]] - theta[one.pairs[:, 1]])[:, None] * scale
        loss = np.logaddexp(0.0, -gap) * one.votes + np.logaddexp(0.0, gap) * (1.0 - one.votes)
        return float((weight * loss).sum() + 0.5 * (theta**2).sum())

    mode = ratings(one, scale, weight)
    for d in range(len(mode)):
        step = np.zeros(len(mode))
        step[d] = 1e-4
        assert (posterior(mode + step) - posterior(mode - step)) / 2e-4 == pytest.approx(0.0, abs=1e-5)


def test_of_independent_judges_the_joint_fit_exaggerates_and_others_understate() -> None:
    """Ratings lean to the strongest judge's errors; from others' answers they are noisier than it."""
    panels = [judged(first=12 * number) for number in range(6)]
    wanted = TRUE / np.exp(np.log(TRUE).mean())
    for rule, low, high in ((joint, 1.1, 1.4), (others, 0.7, 0.95)):
        found = [rule(panel) for panel in panels]
        scale = np.mean([one for one, _ in found], axis=0)  # of one panel the leaning is no larger than chance
        np.testing.assert_allclose(scale, wanted, rtol=0.4)
        assert low < scale[3] / wanted[3] < high
        np.testing.assert_array_equal([weight for _, weight in found], 1.0)
    weight = agreement(panels[0])[1]
    assert weight[0] < weight[1:3].min() < weight[1:3].max() < weight[3]


def test_a_judge_that_stands_thrice_looks_strong_to_the_joint_fit_alone() -> None:
    """Its copies move the ratings its way. Judges of one team say nothing of each other's strength."""
    panel = judged()
    thrice = Panel(
        [Graded(one.people, one.pairs, one.votes[:, [1, 1, 1, 0, 2, 3]]) for one in panel.queries], (*"bbb", *"acd")
    )
    as_strong = joint(thrice)[0]
    assert as_strong[0] > 1.4 * as_strong[4]
    scale = others(thrice)[0]
    np.testing.assert_allclose(scale[:3], scale[0])
    assert scale[3] < scale[0] < 1.3 * scale[4] < 1.3 * scale[5]
