"""Curricula: which rated negatives enter the ranking term at each step, and the weight of that term.

A curriculum is a function of its state and the step. Its state changes with training results (the gain of a step, dev)
and is in the checkpoint, so a resumed run uses the same lists as an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.train import CurriculumConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng

_LEAST_GAPS = (250.0, 150.0)  # Elo points, at the start and the end, as in the report's window
_LARGEST_GAPS = (500.0, 350.0)
_MOVES = 4  # steps from start to end
_GAINS = 1000  # last gains whose percentiles scale the next reward
DEV_RISE = 1e-3  # improvement of dev for which the window stays


@dataclass(frozen=True)
class Phase:
    """The ranking term at a step.

    alpha: its weight α.
    minimum_gap_elo, maximum_gap_elo: half-open range of gaps of the rated negatives that enter it.
    highest_tier: hardest tier included (1 easy and medium, 2 goldilocks, 3 soft, 4 danger).
    nearest: a list without negatives in the range uses the one nearest to it.
    """

    alpha: float
    minimum_gap_elo: float = 0.0
    maximum_gap_elo: float = math.inf
    highest_tier: int = 4
    nearest: bool = False


class Stateful:
    """Something whose attributes `kept`, JSON values, are kept in checkpoints."""

    kept: ClassVar[tuple[str, ...]] = ()

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        return {name: getattr(self, name) for name in self.kept}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        for name in self.kept:
            setattr(self, name, state[name])


class Curriculum(Stateful):
    """Use all rated negatives above a gap at every step (rule `fixed`); base class of the other rules."""

    wants_gain = False  # whether `gained` must be called after every step

    def __init__(self, config: CurriculumConfig, alpha: float) -> None:
        self.config = config
        self.alpha = alpha

    def phase(self, step: int, steps: int) -> Phase:
        """Return the phase of step `step` of `steps`, counted from 0."""
        return Phase(self.alpha, self.config.minimum_gap_elo)

    def foreseen(self, step: int, steps: int) -> Phase | None:
        """Return the phase of a later step if no result is reported before it; None if it depends on results."""
        return self.phase(step, steps)

    def phases(self) -> list[Phase]:
        """Return the possible phases as far as known before training: one per eighth of the run, or the widest."""
        return list(dict.fromkeys(self.phase(eighth, 8) for eighth in range(8)))

    def gained(self, gain: float) -> None:
        """Record the decrease per token of the last step's loss on its own lists."""

    def evaluated(self, dev: float) -> None:
        """Record the measure of a dev point; larger is better."""

    def figures(self) -> dict[str, float]:
        """Return values for the training log."""
        return {}


class Table3(Curriculum):
    """Table 3 of the report, whose epochs (1-2, 3-4, 5-6, 7 and later) are mapped to eighths of the run."""

    ROWS = ((0.5, 300.0), (0.6, 200.0), (0.7, 150.0), (0.8, 100.0))

    def phase(self, step: int, steps: int) -> Phase:
        return Phase(*self.ROWS[min(epoch(step, steps) - 1, 7) // 2])


class Algorithm3(Curriculum):
    """Algorithm 3 of the report: tier ≤ min(3, 1 + epoch/2), α = .5 + .3 min(1, epoch/5); an epoch is an eighth."""

    def phase(self, step: int, steps: int) -> Phase:
        number = epoch(step, steps)
        return Phase(0.5 + 0.3 * min(1.0, number / 5), highest_tier=int(min(3, 1 + number / 2)))


class GapWindow(Curriculum):
    """A window of gaps that moves from [250, 500] to [150, 350] Elo points (report, extended method 6).

    It moves one of `_MOVES` steps at each dev point without improvement; without dev points, evenly over the run.
    """

    kept = ("moved", "best")

    def __init__(self, config: CurriculumConfig, alpha: float, has_dev: bool) -> None:
        super().__init__(config, alpha)
        self._has_dev = has_dev
        self.moved = 0
        self.best: float | None = None

    def phases(self) -> list[Phase]:
        return [Phase(self.alpha, min(_LEAST_GAPS), max(_LARGEST_GAPS))]

    def phase(self, step: int, steps: int) -> Phase:
        moved = self.moved if self._has_dev else step * (_MOVES + 1) // steps
        share = min(moved / _MOVES, 1.0)
        low, high = (first + share * (last - first) for first, last in (_LEAST_GAPS, _LARGEST_GAPS))
        return Phase(self.alpha, low, high)

    def evaluated(self, dev: float) -> None:
        if self.best is not None and dev < self.best + DEV_RISE:
            self.moved += 1
        self.best = dev if self.best is None else max(self.best, dev)

    def figures(self) -> dict[str, float]:
        return {"window_moves": float(self.moved)} if self._has_dev else {}


class Exp3S:
    """The bandit EXP3.S, for a best arm that changes (Auer et al. 2002; as Graves et al. 2017 use it); K arms.

    Rewards are gains scaled to [−1, 1] by percentiles of the last ones. The rate η is √(ln K / (K T)) for `steps` = T
    plays (the paper's 1e-3 stays uniform over a short run); `exploration` is ε.
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
        """Record the gain of `arm`. Raises DataError on a gain that is not finite.

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
        """−1 at the 20th percentile of the last gains, 1 at the 80th, clipped; 0 while they are equal."""
        self._gains = [*self._gains[-(_GAINS - 1) :], gain]
        low, high = np.percentile(self._gains, [20, 80])
        return 0.0 if high <= low else float(np.clip(2 * (gain - low) / (high - low) - 1, -1, 1))

    def state(self) -> dict[str, Any]:
        return {"log_weight": self._log_weight.tolist(), "gains": self._gains, "plays": self._plays}

    def load(self, state: Mapping[str, Any]) -> None:
        self._log_weight = np.array(state["log_weight"])
        self._gains = list(state["gains"])
        self._plays = state["plays"]


class LearningProgress(Curriculum):
    """Bands of gaps as arms of an EXP3.S bandit, rewarded by learning progress (Graves et al. 2017).

    The bands split the gaps `gap_P` (Elo points) of rated negatives with positive weight into equal parts. The reward
    is the decrease per token of the loss on the step's own lists. Raises DataError without such gaps.
    """

    wants_gain = True

    def __init__(
        self, config: CurriculumConfig, alpha: float, gap_P: NDArray[np.float64], steps: int, seed: int
    ) -> None:
        super().__init__(config, alpha)
        if not len(gap_P):
            raise DataError(
                "no example has a rated negative, which learning progress needs",
                "train.curriculum.rule",
                "choose fixed, or loosen mine's rules",
            )
        inner = np.quantile(gap_P, np.linspace(0, 1, config.bands + 1)[1:-1])
        self.edges = (-math.inf, *inner.tolist(), math.inf)
        self._seed = seed
        self._arm = 0
        self.bandit = Exp3S(config.bands, steps, config.exploration)

    def foreseen(self, step: int, steps: int) -> None:
        """Return None: the band depends on the gain of the step before."""

    def phases(self) -> list[Phase]:
        return [Phase(self.alpha)]

    def phase(self, step: int, steps: int) -> Phase:
        self._arm = self.bandit.draw(float(rng("band", self._seed, step).random()))
        return Phase(self.alpha, self.edges[self._arm], self.edges[self._arm + 1], nearest=True)

    def gained(self, gain: float) -> None:
        self.bandit.update(self._arm, gain)

    def figures(self) -> dict[str, float]:
        return {f"band_{i + 1}": float(p) for i, p in enumerate(self.bandit.probabilities())}

    def state(self) -> dict[str, Any]:
        return self.bandit.state()

    def load(self, state: Mapping[str, Any]) -> None:
        self.bandit.load(state)


def epoch(step: int, steps: int) -> int:
    """The eighth of the run that a step lies in, from 1.

    >>> [epoch(step, 16) for step in (0, 1, 2, 15, 16)]
    [1, 1, 2, 8, 9]
    """
    return 1 + 8 * step // steps


def make_curriculum(
    config: CurriculumConfig, alpha: float, gap_P: NDArray[np.float64], steps: int, seed: int, has_dev: bool
) -> Curriculum:
    """Return the configured curriculum; arguments as in `LearningProgress` and `GapWindow`."""
    if config.rule == "progress":
        return LearningProgress(config, alpha, gap_P, steps, seed)
    if config.rule == "window":
        return GapWindow(config, alpha, has_dev)
    return {"fixed": Curriculum, "table3": Table3, "algorithm3": Algorithm3}[config.rule](config, alpha)
