"""What is learned when: a pure function from progress to the balance of the loss and the negatives let in."""

from __future__ import annotations

from dataclasses import dataclass

from anmi_ray.config.train import TrainConfig


@dataclass(frozen=True)
class Phase:
    """Weight α of InfoNCE, and the smallest gap (Elo points) of rated negatives that enter it."""

    alpha: float
    minimum_gap_elo: float


# Report, Table 3, by epoch: 1-2, 3-4, 5-6, 7 and later, read as eighths of the run.
TABLE_3 = (
    (2 / 8, Phase(0.5, 300.0)),
    (4 / 8, Phase(0.6, 200.0)),
    (6 / 8, Phase(0.7, 150.0)),
    (1.0, Phase(0.8, 100.0)),
)


def phase(config: TrainConfig, progress: float) -> Phase:
    """The phase at `progress` in [0, 1], the share of steps done.

    >>> phase(TrainConfig(curriculum="table3"), 0.25)
    Phase(alpha=0.6, minimum_gap_elo=200.0)
    """
    if config.curriculum == "fixed":
        return Phase(config.alpha, config.minimum_gap_elo)
    return next((found for end, found in TABLE_3 if progress < end), TABLE_3[-1][1])
