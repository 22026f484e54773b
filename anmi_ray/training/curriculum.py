"""What is learned when: which rated negatives enter the ranking term, and the balance that a schedule asks for.

A curriculum is a function of its state and the step. The state moves by what training reports (the gain of a step, dev)
and is in the checkpoint, so a resumed run sees the lists of an uninterrupted one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from anmi_ray.config.objective import CurriculumConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.identity import rng
from anmi_ray.training.bandit import Exp3S

_LEAST_GAPS = (250.0, 150.0)  # points, at first and at last, as the report's window
_LARGEST_GAPS = (500.0, 350.0)
_MOVES = 4  # from first to last
DEV_RISE = 1e-3  # dev must rise by this much for a window of gaps to stay


@dataclass(frozen=True)
class Phase:
    """Weight α of the ranking term, and the rated negatives that enter it: gaps in [minimum, maximum), Elo points.

    `highest_tier`: the hardest tier let in (1 easy and medium, 2 goldilocks, 3 soft, 4 danger). `nearest`: a list with
    none in the range reads the one nearest to it.
    """

    alpha: float
    minimum_gap_elo: float = 0.0
    maximum_gap_elo: float = math.inf
    highest_tier: int = 4
    nearest: bool = False


class Curriculum:
    """All rated negatives from a gap on, at all times: the rule `fixed`, and what the others build upon."""

    wants_gain = False  # whether `gained` must be told of every step

    def __init__(self, config: CurriculumConfig, alpha: float) -> None:
        self.config = config
        self.alpha = alpha

    def phase(self, step: int, steps: int) -> Phase:
        """What step `step` of `steps`, counted from 0, reads."""
        del step, steps
        return Phase(self.alpha, self.config.minimum_gap_elo)

    def foreseen(self, step: int, steps: int) -> Phase | None:
        """What a later step will read unless something is reported before; None where the report decides."""
        return self.phase(step, steps)

    def phases(self) -> list[Phase]:
        """What it may let in, as far as it is known before training: those of the eighths of a run, or the widest."""
        return list(dict.fromkeys(self.phase(eighth, 8) for eighth in range(8)))

    def gained(self, gain: float) -> None:
        """By how much the last step lowered the loss of its own lists, per token."""

    def evaluated(self, dev: float) -> None:
        """The dev measure of a dev point, larger is better."""

    def figures(self) -> dict[str, float]:
        """What the training log shows of it."""
        return {}

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""


class Table3(Curriculum):
    """Report, Table 3, by epoch (1-2, 3-4, 5-6, 7 and later) read as eighths of the run: a short run sees all of it."""

    ROWS = ((0.5, 300.0), (0.6, 200.0), (0.7, 150.0), (0.8, 100.0))

    def phase(self, step: int, steps: int) -> Phase:
        """α and the least gap of the step's eighth."""
        return Phase(*self.ROWS[min(epoch(step, steps) - 1, 7) // 2])


class Algorithm3(Curriculum):
    """Report, Algorithm 3: tier ≤ min(3, 1 + epoch/2), α = .5 + .3 min(1, epoch/5); epochs as eighths of the run."""

    def phase(self, step: int, steps: int) -> Phase:
        """α and the hardest tier of the step's eighth."""
        number = epoch(step, steps)
        return Phase(0.5 + 0.3 * min(1.0, number / 5), highest_tier=int(min(3, 1 + number / 2)))


class GapWindow(Curriculum):
    """A window of gaps from [250, 500] points to [150, 350] (report, extended method 6).

    It moves by one of `_MOVES` whenever a dev point brings no rise of dev; without dev points, with the steps.
    """

    def __init__(self, config: CurriculumConfig, alpha: float, has_dev: bool) -> None:
        super().__init__(config, alpha)
        self._has_dev = has_dev
        self._moved = 0
        self._best = -math.inf

    def phases(self) -> list[Phase]:
        """From the last least gap to the first largest: what any of its windows lets in."""
        return [Phase(self.alpha, min(_LEAST_GAPS), max(_LARGEST_GAPS))]

    def phase(self, step: int, steps: int) -> Phase:
        """The window."""
        moved = self._moved if self._has_dev else step * (_MOVES + 1) // steps
        share = min(moved / _MOVES, 1.0)
        low, high = (first + share * (last - first) for first, last in (_LEAST_GAPS, _LARGEST_GAPS))
        return Phase(self.alpha, low, high)

    def evaluated(self, dev: float) -> None:
        """Stay where dev still rises, move where it does not."""
        if dev < self._best + DEV_RISE:
            self._moved += 1
        self._best = max(self._best, dev)

    def figures(self) -> dict[str, float]:
        """How often it has moved."""
        return {"window_moves": float(self._moved)} if self._has_dev else {}

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return {"moved": self._moved, "best": None if self._best == -math.inf else self._best}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._moved = state["moved"]
        self._best = -math.inf if state["best"] is None else state["best"]


class LearningProgress(Curriculum):
    """Bands of gaps as arms of EXP3.S, rewarded by learning progress (Graves et al. 2017).

    Bands hold equally many of the rated negatives with weight, `gap_P` (Elo points). The reward of a step is its gain:
    the loss before less the loss after, of the same lists, per token. Raises DataError if there are no such gaps.
    """

    wants_gain = True

    def __init__(
        self, config: CurriculumConfig, alpha: float, gap_P: NDArray[np.float64], steps: int, seed: int
    ) -> None:
        super().__init__(config, alpha)
        if not len(gap_P):
            raise DataError(
                "no example has a rated negative, and learning progress is of their gaps",
                "train.curriculum.rule",
                "choose fixed, or loosen mine's rules",
            )
        inner = np.quantile(gap_P, np.linspace(0, 1, config.bands + 1)[1:-1])
        self.edges = (-math.inf, *inner.tolist(), math.inf)
        self._seed = seed
        self._arm = 0
        self.bandit = Exp3S(config.bands, steps, config.exploration)

    def foreseen(self, step: int, steps: int) -> None:
        """A step's band is drawn by what the step before has gained."""

    def phases(self) -> list[Phase]:
        """All gaps."""
        return [Phase(self.alpha)]

    def phase(self, step: int, steps: int) -> Phase:
        """The band that is drawn for the step."""
        del steps
        self._arm = self.bandit.draw(float(rng("band", self._seed, step).random()))
        return Phase(self.alpha, self.edges[self._arm], self.edges[self._arm + 1], nearest=True)

    def gained(self, gain: float) -> None:
        """The reward of the band that was drawn last."""
        self.bandit.update(self._arm, gain)

    def figures(self) -> dict[str, float]:
        """Every band's probability, the smallest gaps first."""
        return {f"band_{i + 1}": float(p) for i, p in enumerate(self.bandit.probabilities())}

    def state(self) -> dict[str, Any]:
        """As JSON values."""
        return self.bandit.state()

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
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
    """The curriculum of the settings for a run of `steps`; arguments as in `LearningProgress` and `GapWindow`."""
    if config.rule == "progress":
        return LearningProgress(config, alpha, gap_P, steps, seed)
    if config.rule == "window":
        return GapWindow(config, alpha, has_dev)
    return {"fixed": Curriculum, "table3": Table3, "algorithm3": Algorithm3}[config.rule](config, alpha)
