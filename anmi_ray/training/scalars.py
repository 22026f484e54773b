"""Numbers that are learned beside the model: a temperature, the weights of the loss's terms.

They live outside the engine, which may partition what it holds. Every worker keeps them all, sums their gradients with
the rest of a step's sums and takes the same step of Adam, so any engine and number of workers gives the same values.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

BETA1 = 0.9
BETA2 = 0.999
EPSILON = 1e-8


class Scalars:
    """Named numbers with their gradients and Adam's moments (Kingma and Ba 2015, without weight decay)."""

    def __init__(self, start: Mapping[str, float], learning_rate: float, device: torch.device) -> None:
        self.learning_rate = learning_rate
        self.values = {name: torch.tensor(value, device=device, requires_grad=True) for name, value in start.items()}
        self._first = dict.fromkeys(start, 0.0)
        self._second = dict.fromkeys(start, 0.0)
        self._steps = 0

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    def set(self, name: str, value: float) -> None:
        """Give a number another value."""
        with torch.no_grad():
            self.values[name].fill_(value)

    def gradients(self) -> list[float]:
        """What backward passes have left since the last call, in the order of the names."""
        gradients = [0.0 if value.grad is None else float(value.grad) for value in self.values.values()]
        for value in self.values.values():
            value.grad = None
        return gradients

    def step(self, gradients: Sequence[float]) -> None:
        """One step of Adam against `gradients`, in the order of the names."""
        self._steps += 1
        for (name, value), gradient in zip(self.values.items(), gradients, strict=True):
            self._first[name] = BETA1 * self._first[name] + (1 - BETA1) * gradient
            self._second[name] = BETA2 * self._second[name] + (1 - BETA2) * gradient**2
            mean = self._first[name] / (1 - BETA1**self._steps)
            scale = math.sqrt(self._second[name] / (1 - BETA2**self._steps)) + EPSILON
            self.set(name, float(value.detach()) - self.learning_rate * mean / scale)

    def state(self) -> dict[str, Any]:
        """Everything, as JSON values."""
        values = {name: float(value.detach()) for name, value in self.values.items()}
        return {"values": values, "first": self._first, "second": self._second, "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        for name, value in state["values"].items():
            self.set(name, value)
        self._first = dict(state["first"])
        self._second = dict(state["second"])
        self._steps = state["steps"]
