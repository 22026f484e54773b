"""Average a pairwise model's answers over both orders, and calibrate the average on held-out pairs.

The logits of pair p are in rows 2p (a shown first) and 2p + 1 (b shown first). The temperature is fitted to the
averaged answer, not to each order. Letters: P pairs, R = 2P rows, L labels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from anmi_ray.config.distill import Target
from anmi_ray.core.errors import DataError
from anmi_ray.judging.calibration import Isotonic, fit_isotonic
from anmi_ray.judging.kinds.distilled import DistilledForm, log_probabilities

Reals = NDArray[np.float64]
Logits = NDArray[np.floating[Any]]
SHARPEST = 100.0  # largest factor on logits; with pairs that are all correct the optimum is unbounded
_GRID = 41


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
    loss, loss_before: mean cross-entropy (nats) of the averaged answer against the scores, with and without it.
    isotonic: curve applied to E[C], if any.
    """

    beta: float
    columns: tuple[int, ...]
    loss: float
    loss_before: float
    isotonic: Isotonic | None = None

    def sharpened(self, logits_RL: Logits) -> Reals:
        """Return the logits scaled by beta."""
        scaled = np.array(logits_RL, dtype=np.float64)
        scaled[:, self.columns] *= self.beta
        return scaled


def averaged(logits_RL: Logits, target: Target, isotonic: Isotonic | None = None) -> Averaged:
    """Average the answers over both orders; swapping a and b swaps first_P and second_P."""
    logs = log_probabilities(DistilledForm(target, calibration=isotonic), np.asarray(logits_RL, dtype=np.float64))
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
    tiny = np.finfo(np.float64).tiny
    if target != "ternary":
        mean = np.clip(answers.mean_P, tiny, 1.0)
        other = np.clip(1.0 - answers.mean_P, tiny, 1.0)
        return float(-np.mean(score_P * np.log(mean) + (1.0 - score_P) * np.log(other)))
    lean = 2.0 * score_P - 1.0
    parts = (
        (np.maximum(-lean, 0.0), answers.first_P),
        (np.maximum(lean, 0.0), answers.second_P),
        (1.0 - np.abs(lean), answers.tie_P),
    )
    return float(-np.mean(sum(label * np.log(np.clip(p, tiny, 1.0)) for label, p in parts)))


def fit(
    logits_RL: Logits, score_P: Reals, target: Target, kind: Literal["temperature", "isotonic", "none"]
) -> OrderCalibration:
    """Fit the calibration of `kind` to held-out pairs; beta is in [0, SHARPEST].

    isotonic: a monotone curve of each order's E[C], with beta 1. Raises DataError without pairs.
    """
    if not len(score_P):
        raise DataError("no pairs to calibrate on", "distill", "raise distill.sample.pairs")
    columns = (0,) if target == "two-head" else tuple(range(np.shape(logits_RL)[1]))

    def loss(beta: float) -> float:
        return cross_entropy(
            averaged(OrderCalibration(beta, columns, 0, 0).sharpened(logits_RL), target), score_P, target
        )

    before = loss(1.0)
    if kind == "none":
        return OrderCalibration(1.0, columns, before, before)
    if kind == "isotonic":
        rows = np.stack([score_P, 1.0 - score_P], axis=1).reshape(-1)
        logs = log_probabilities(DistilledForm(target), np.asarray(logits_RL, dtype=np.float64))
        mean_R = 0.5 + 0.5 * (np.exp(logs["log_second"]) - np.exp(logs["log_first"]))
        curve = fit_isotonic(np.clip(mean_R, 0.0, 1.0), rows)
        return OrderCalibration(
            1.0, columns, cross_entropy(averaged(logits_RL, target, curve), score_P, target), before, curve
        )
    # not convex after averaging two orders, so search a grid first
    grid = np.concatenate([[0.0], np.geomspace(1e-2, SHARPEST, _GRID)])
    losses = [loss(beta) for beta in grid]
    best = int(np.argmin(losses))
    low = grid[max(best - 1, 0)]
    high = grid[min(best + 1, len(grid) - 1)]
    nearby: Any = minimize_scalar(loss, bounds=(low, high), method="bounded", options={"xatol": 1e-6})
    beta = float(nearby.x) if nearby.fun < losses[best] else float(grid[best])
    return OrderCalibration(beta, columns, min(float(nearby.fun), losses[best]), before)
