"""EXP3.S: which arm to play when the best one changes (Auer et al. 2002; as Graves et al. 2017 use it)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anmi_ray.core.errors import DataError

REMEMBERED = 1000  # gains whose 20th and 80th percentile scale the next reward: the scale follows the run
LOW = 20.0
HIGH = 80.0


class Exp3S:
    """K arms; rewards in any unit, scaled to [−1, 1] by percentiles of the last ones.

    The rate η is √(ln K / (K T)) for `steps` = T plays (the paper's 1e-3 stays uniform over a short run);
    `exploration` is ε, the chance of an arm taken at random.
    """

    def __init__(self, arms: int, steps: int, exploration: float) -> None:
        self.arms = arms
        self.exploration = exploration
        self.rate = math.sqrt(math.log(arms) / (arms * max(steps, 1)))
        self._log_weight: NDArray[np.float64] = np.zeros(arms)
        self._gains: list[float] = []
        self._plays = 0

    def probabilities(self) -> NDArray[np.float64]:
        """π = (1 − ε) softmax(w) + ε/K, float64[K]."""
        weight = np.exp(self._log_weight - self._log_weight.max())
        return (1 - self.exploration) * weight / weight.sum() + self.exploration / self.arms

    def draw(self, uniform: float) -> int:
        """The arm that a uniform number in [0, 1) falls on."""
        ends = np.cumsum(self.probabilities())
        return min(int(np.searchsorted(ends, uniform, side="right")), self.arms - 1)

    def update(self, arm: int, gain: float) -> None:
        """Take in what `arm` gained. Raises DataError on a gain that is not finite.

        w_i ← log[(1 − a) exp(w_i + η r̃_i) + a/(K − 1) Σ_{j≠i} exp(w_j + η r̃_j)], r̃ = reward/π for the chosen arm, else
        0; a = 1/t, t from 2 on: at t = 1 the chosen arm's reward would go to the others.
        """
        if not math.isfinite(gain):
            raise DataError(f"a gain is {gain}", "curriculum", "lower train.learning_rate")
        reward = self._scaled(gain)
        self._plays += 1
        share = 1.0 / (self._plays + 1)
        moved = self._log_weight.copy()
        moved[arm] += self.rate * reward / self.probabilities()[arm]
        peak = moved.max()
        weight = np.exp(moved - peak)
        mixed = (1 - share) * weight + share / (self.arms - 1) * (weight.sum() - weight)
        self._log_weight = np.log(mixed)
        self._log_weight -= self._log_weight.max()

    def _scaled(self, gain: float) -> float:
        """−1 at the 20th percentile of the last gains, 1 at the 80th, cut off there; 0 while they are all alike."""
        self._gains = [*self._gains[-(REMEMBERED - 1) :], gain]
        low, high = np.percentile(self._gains, [LOW, HIGH])
        return 0.0 if high <= low else float(np.clip(2 * (gain - low) / (high - low) - 1, -1, 1))

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        return {"log_weight": self._log_weight.tolist(), "gains": self._gains, "plays": self._plays}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._log_weight = np.array(state["log_weight"])
        self._gains = list(state["gains"])
        self._plays = state["plays"]
