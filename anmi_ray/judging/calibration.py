"""Answers of pairwise models, averaged over both orders, and calibration on held-out pairs.

A calibration must keep p(a, b) + p(b, a) = 1, so it has no bias term. Preferences are for the second document here, as
in the ensemble's score C. The logits of pair p are in rows 2p (a shown first) and 2p + 1 (b shown first); a temperature
is fitted to the averaged answer, not to each order. Letters: P pairs, R = 2P rows, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from anmi_ray.config.distill import LABELS, Target
from anmi_ray.core.errors import DataError

Reals = NDArray[np.float64]
Logits = NDArray[np.floating[Any]]
SHARPEST = 100.0  # largest factor on logits; with pairs that are all correct the optimum is unbounded
_GRID = 41
_TINY = np.finfo(np.float64).tiny  # for the logarithm of a probability of 0


def fit_temperature(logit_P: Reals, score_P: Reals, most: float) -> float:
    """Return the inverse temperature in [0, most] with the least mean cross-entropy (Guo et al. 2017, Eq. 9).

    logit_P: logits of the second document; score_P: their soft labels C. The loss is convex, so its slope has one root.
    """
    from scipy import optimize  # slow to import

    def slope(beta: float) -> float:
        return float(np.mean((special.expit(beta * logit_P) - score_P) * logit_P))

    if slope(0.0) >= 0.0:
        return 0.0
    if slope(most) <= 0.0:
        return most
    return float(optimize.root_scalar(slope, bracket=(0.0, most), xtol=1e-15, rtol=1e-13).root)


def log_probabilities(logits: Reals, target: Target) -> dict[str, Reals]:
    """Return log_first, log_second and, except for binary models, log_tie, float64[N] each, of logits float64[N, L].

    two-head: with m = E[C] and d = E|2C − 1|, at least |2m − 1|: first (d − (2m − 1))/2, second (d + (2m − 1))/2, tie
    1 − d. Probabilities of 0 are 2e-308; NaN stays NaN.
    """
    if target != "two-head":
        logs = special.log_softmax(logits, axis=1)
        return {f"log_{label}": logs[:, column] for column, label in enumerate(LABELS[target])}
    first, second = special.expit(-logits[:, 0]), special.expit(logits[:, 0])
    tie = np.minimum(special.expit(-logits[:, 1]), 2 * np.minimum(first, second))  # no distribution has d < |2m − 1|
    found = {"log_first": first - tie / 2, "log_second": second - tie / 2, "log_tie": tie}
    return {name: np.log(np.maximum(values, _TINY)) for name, values in found.items()}


@dataclass(frozen=True)
class Averaged:
    """Probabilities over both orders that the first document (a) is better, the second, or neither; float[P]."""

    first_P: Reals
    second_P: Reals
    tie_P: Reals

    @property
    def mean_P(self) -> Reals:
        """E[C], the preference for the second document."""
        return 0.5 + 0.5 * (self.second_P - self.first_P)


@dataclass(frozen=True)
class OrderCalibration:
    """A calibration of a pairwise model.

    beta: factor on the logits of `columns`.
    columns: the labels that beta applies to.
    loss: mean cross-entropy (nats) of the averaged answer against the scores.
    """

    beta: float
    columns: tuple[int, ...]
    loss: float

    def sharpened(self, logits_RL: Logits) -> Reals:
        """Return the logits scaled by beta."""
        scaled = np.array(logits_RL, dtype=np.float64)
        scaled[:, self.columns] *= self.beta
        return scaled


def averaged(logits_RL: Logits, target: Target) -> Averaged:
    """Average the answers over both orders; swapping a and b swaps first_P and second_P."""
    logs = log_probabilities(np.asarray(logits_RL, dtype=np.float64), target)
    first = np.exp(logs["log_first"])
    second = np.exp(logs["log_second"])
    first_P = (first[::2] + second[1::2]) / 2
    second_P = (second[::2] + first[1::2]) / 2
    return Averaged(first_P, second_P, np.maximum(1.0 - first_P - second_P, 0.0))


def cross_entropy(answers: Averaged, score_P: Reals, target: Target) -> float:
    """Return the mean cross-entropy (nats) of averaged answers against scores C.

    binary and two-head: −C log μ − (1 − C) log(1 − μ) (a two-head's E|2C − 1| has no temperature); ternary: over A, B
    and tie with P(tie) = 1 − |2C − 1|.
    """
    if target != "ternary":
        mean = np.clip(answers.mean_P, _TINY, 1.0)
        other = np.clip(1.0 - answers.mean_P, _TINY, 1.0)
        return float(-np.mean(score_P * np.log(mean) + (1.0 - score_P) * np.log(other)))
    lean = 2.0 * score_P - 1.0
    parts = (
        (np.maximum(-lean, 0.0), answers.first_P),
        (np.maximum(lean, 0.0), answers.second_P),
        (1.0 - np.abs(lean), answers.tie_P),
    )
    return float(-np.mean(sum(label * np.log(np.clip(p, _TINY, 1.0)) for label, p in parts)))


def fit(logits_RL: Logits, score_P: Reals, target: Target) -> OrderCalibration:
    """Fit a temperature to held-out pairs; beta is in [0, SHARPEST]. Raises DataError without pairs."""
    from scipy import optimize

    if not len(score_P):
        raise DataError("no pairs to calibrate on", "distill", "raise distill.sample.pairs")
    columns = (0,) if target == "two-head" else tuple(range(np.shape(logits_RL)[1]))

    def loss(beta: float) -> float:
        return cross_entropy(averaged(OrderCalibration(beta, columns, 0).sharpened(logits_RL), target), score_P, target)

    # not convex after averaging two orders, so search a grid first
    grid = np.concatenate([[0.0], np.geomspace(1e-2, SHARPEST, _GRID)])
    losses = [loss(beta) for beta in grid]
    best = int(np.argmin(losses))
    low = grid[max(best - 1, 0)]
    high = grid[min(best + 1, len(grid) - 1)]
    nearby: Any = optimize.minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    beta = float(nearby.x) if nearby.fun < losses[best] else float(grid[best])
    return OrderCalibration(beta, columns, min(float(nearby.fun), losses[best]))
