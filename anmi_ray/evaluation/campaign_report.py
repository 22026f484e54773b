"""What a tuning campaign's page says: the space as axes, its trials with their curves, and the repeats on test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from anmi_ray.evaluation.replicates import Contrast
from anmi_ray.evaluation.report import a_key_a_line, plain

FORMAT = 1  # version of campaign.json


@dataclass(frozen=True)
class Axis:
    """A parameter of the space: the labels of a choice, else an interval, which may be logarithmic."""

    name: str
    labels: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    log: bool = False


@dataclass(frozen=True)
class TrialRow:
    """A trial: its point, dev after shares of its steps, and its end (complete, stopped, failed, running).

    dev: of the model that is kept, of a complete one.
    """

    number: int
    status: str
    params: Mapping[str, Any]
    curve: tuple[tuple[float, float], ...]
    dev: float | None
    seconds: float
    message: str | None
    run: str

    @property
    def last(self) -> float | None:
        """The dev measure that it is known by: of the model that is kept, else the last measured."""
        return self.dev if self.dev is not None else self.curve[-1][1] if self.curve else None


@dataclass(frozen=True)
class Importance:
    """How much each parameter tells good trials from others, shares of 1; by dev at `share` of their steps."""

    shares: Mapping[str, float]
    share: float
    trials: int


@dataclass(frozen=True)
class RepeatRow:
    """A system on test: the mean of every seed's training, of the first stage one value."""

    system: str
    values: tuple[float, ...]

    @property
    def mean(self) -> float:
        """Over the seeds."""
        return sum(self.values) / len(self.values)


@dataclass(frozen=True)
class RepeatData:
    """The best and the default, trained again: seeds, test queries, means, and differences corrected by Holm."""

    seeds: tuple[int, ...]
    queries: int
    rows: tuple[RepeatRow, ...]
    contrasts: tuple[Contrast, ...]


@dataclass(frozen=True)
class CampaignData:
    """Everything that the page says. wanted: trials that the campaign is to have; rungs: shares of early stopping."""

    name: str
    collection: str
    measure: str
    fingerprint: str
    wanted: int
    axes: tuple[Axis, ...]
    trials: tuple[TrialRow, ...]
    best: int
    best_settings: Mapping[str, Any]
    default_settings: Mapping[str, Any]
    rungs: tuple[float, ...]
    importance: Importance | None
    repeats: RepeatData | None
    simulated: bool = False
    environment: Mapping[str, str] = field(default_factory=dict)

    def count(self, status: str) -> int:
        """How many trials ended so."""
        return sum(one.status == status for one in self.trials)

    @property
    def main(self) -> Contrast | None:
        """The best against the default on test."""
        return self.repeats.contrasts[0] if self.repeats is not None else None


def to_json(data: CampaignData) -> str:
    """campaign.json: every number of the page, one key of the top a line."""
    return a_key_a_line({"format": FORMAT, **plain(data)})
