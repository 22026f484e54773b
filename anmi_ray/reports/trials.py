"""The rows of a campaign: parameters of its space, and trials at points of it."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Dimension:
    """A parameter of the space: the labels of a choice, else an interval, which may be logarithmic."""

    name: str
    labels: tuple[str, ...] = ()
    low: float = 0.0
    high: float = 1.0
    log: bool = False

    def place(self, value: Any) -> float:
        """Where a value stands on the axis, from 0 to 1."""
        if self.labels:
            return self.labels.index(value) / max(len(self.labels) - 1, 1)
        if self.log:
            return math.log(value / self.low) / math.log(self.high / self.low)
        return (value - self.low) / (self.high - self.low)

    def marks(self) -> list[tuple[float, str]]:
        """Places of the axis with what is written there."""
        if self.labels:
            return [(self.place(name), name) for name in self.labels]
        middle = (self.low * self.high) ** 0.5 if self.log else (self.low + self.high) / 2
        return [(self.place(value), f"{value:,.4g}") for value in (self.low, middle, self.high)]


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
