"""Scores whose P(relevant) is known, and what evaluate would say of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from anmi_ray.core.identity import rng
from anmi_ray.evaluation import relevance as fitting
from anmi_ray.evaluation.relevance import Relevance, ScoredPairs

WORLDS = {
    "logistic": lambda score: expit(2.5 * score - 5.0),
    "half of what is relevant has a label": lambda score: 0.5 * expit(3.0 * score - 4.0),
}


def truth(world: str, score: NDArray[np.float64]) -> NDArray[np.float64]:
    """P(relevant) of scores."""
    return WORLDS[world](score)


def drawn(world: str, number: int, queries: int = 120, depth: int = 100) -> ScoredPairs:
    """Candidates of queries whose scores lie at different heights."""
    random = rng("scored pairs", world, number)
    query = np.repeat(np.arange(queries), depth)
    score = random.normal(0.0, 1.0, len(query)) + random.normal(0.0, 0.5, queries)[query]
    return ScoredPairs(query, score, (random.random(len(query)) < truth(world, score)).astype(np.float64))


def relevance(world: str = "logistic") -> Relevance:
    """A curve with both checks."""
    dev, test = drawn(world, 0), drawn(world, 1)
    found = fitting.fit(dev)
    assert found.curve is not None
    at = fitting.thresholds(dev, found.out_of_fold)
    checks = (
        fitting.check(dev, found.out_of_fold, at, "labels"),
        fitting.check(test, found.curve.of(test.score), at, "labels"),
    )
    return Relevance(found.curve, 100, *checks)
