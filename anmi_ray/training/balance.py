"""Weights of the ranking and the regression term, as functions of learned scalars.

A balance may add a term to the loss, and update its scalars from a step's measurements.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anmi_ray.config.train import BalanceConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.training.curriculum import Stateful

Weights = tuple[float | Tensor, float | Tensor]
# report, Theorem 8: middles of .7-.8 and .3-.5
LOW_RATE = (0.1, 0.75)
HIGH_RATE = (0.3, 0.4)
_ASYMMETRY = 1.5  # power on the relative training rate (GradNorm's alpha), which Chen et al. found best
_BETA1, _BETA2, _EPSILON = 0.9, 0.999, 1e-8  # Adam's


class Scalars:
    """Named numbers learned next to the model, with Adam's moments (Kingma and Ba 2015, without weight decay).

    They live outside the engine, which may partition its parameters. Every worker sums their gradients and takes the
    same step, so values do not depend on engine or number of workers.
    """

    def __init__(self, start: Mapping[str, float], learning_rate: float, device: torch.device) -> None:
        self.learning_rate = learning_rate
        self.values = {name: torch.tensor(value, device=device, requires_grad=True) for name, value in start.items()}
        self._first = dict.fromkeys(start, 0.0)
        self._second = dict.fromkeys(start, 0.0)
        self._steps = 0

    def __getitem__(self, name: str) -> Tensor:
        return self.values[name]

    def set(self, name: str, value: float) -> None:
        """Set a number."""
        with torch.no_grad():
            self.values[name].fill_(value)

    def gradients(self) -> list[float]:
        """Gradients of the backward passes since the last call, in the order of the names."""
        gradients = [0.0 if value.grad is None else float(value.grad) for value in self.values.values()]
        for value in self.values.values():
            value.grad = None
        return gradients

    def step(self, gradients: Sequence[float]) -> None:
        """Take one step of Adam; `gradients` in the order of the names."""
        self._steps += 1
        for (name, value), gradient in zip(self.values.items(), gradients, strict=True):
            self._first[name] = _BETA1 * self._first[name] + (1 - _BETA1) * gradient
            self._second[name] = _BETA2 * self._second[name] + (1 - _BETA2) * gradient**2
            mean = self._first[name] / (1 - _BETA1**self._steps)
            scale = math.sqrt(self._second[name] / (1 - _BETA2**self._steps)) + _EPSILON
            self.set(name, float(value.detach()) - self.learning_rate * mean / scale)

    def state(self) -> dict[str, Any]:
        """Return the state as JSON values."""
        values = {name: float(value.detach()) for name, value in self.values.items()}
        return {"values": values, "first": self._first, "second": self._second, "steps": self._steps}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore `state`."""
        for name, value in state["values"].items():
            self.set(name, value)
        self._first = dict(state["first"])
        self._second = dict(state["second"])
        self._steps = state["steps"]


def numbers(weights: Weights) -> tuple[float, float]:
    """Both weights as plain numbers."""
    first, second = (float(weight.detach()) if isinstance(weight, Tensor) else weight for weight in weights)
    return first, second


@dataclass(frozen=True)
class Measured:
    """Means over a step's lists: both unweighted terms, and the norms of their gradients on the last layer (or NaN)."""

    ranking: float
    regression: float
    ranking_gradient: float
    regression_gradient: float


class Balance(Stateful):
    """Weights of the two terms; its state is besides the scalars."""

    def start(self) -> dict[str, float]:
        """Names and first values of its scalars."""
        return {}

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        """(ranking, regression); `alpha` is the curriculum's."""
        raise NotImplementedError

    def more(self, scalars: Scalars) -> Tensor | None:
        """Return a term to add to the loss of a step."""
        return None

    def step(self, scalars: Scalars, gradients: Sequence[float], measured: Measured) -> None:
        """Update the scalars after a step, from their `gradients` or from `measured`."""
        if scalars.values:
            scalars.step(gradients)


class Fixed(Balance):
    """The curriculum's alpha, or one that was estimated before training (report, equation 37)."""

    def __init__(self, alpha: float | None = None) -> None:
        self._alpha = alpha

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        alpha = alpha if self._alpha is None else self._alpha
        return alpha, 1.0 - alpha


class Learned(Balance):
    """Learned α = σ(a) with the prior −(π log α + (1 − π) log(1 − α)), π its mode (logarithm of a Beta density).

    Without a prior α would go to 0 or 1, to the smaller term.
    """

    def __init__(self, config: BalanceConfig) -> None:
        if not 0.0 < config.alpha < 1.0:
            raise ConfigError(
                f"alpha is {config.alpha}, and a learned one starts between 0 and 1",
                "train.balance.alpha",
                "choose .7, or rule: fixed",
            )
        self._config = config

    def start(self) -> dict[str, float]:
        return {"alpha_logit": math.log(self._config.alpha / (1 - self._config.alpha))}

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        return torch.sigmoid(scalars["alpha_logit"]), torch.sigmoid(-scalars["alpha_logit"])

    def more(self, scalars: Scalars) -> Tensor | None:
        mode = self._config.alpha
        logit = scalars["alpha_logit"]
        ours = mode * torch.nn.functional.logsigmoid(logit) + (1 - mode) * torch.nn.functional.logsigmoid(-logit)
        return -ours


class Uncertainty(Balance):
    """Homoscedastic uncertainty (Kendall et al. 2018): ½e^{−s₁}L₁ + ½e^{−s₂}L₂ + ½(s₁ + s₂).

    For given losses the best s is log L; s starts there, from the first step's losses.
    """

    kept = ("begun",)

    def __init__(self) -> None:
        self.begun = False

    def start(self) -> dict[str, float]:
        return {"ranking_log_variance": 0.0, "regression_log_variance": 0.0}

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        first, second = (0.5 * torch.exp(-value) for value in scalars.values.values())
        return first, second

    def more(self, scalars: Scalars) -> Tensor | None:
        first, second = scalars.values.values()
        return 0.5 * (first + second)

    def step(self, scalars: Scalars, gradients: Sequence[float], measured: Measured) -> None:
        if self.begun:
            scalars.step(gradients)
        else:
            losses = (measured.ranking, measured.regression)
            for name, loss in zip(scalars.values, losses, strict=True):
                scalars.set(name, math.log(max(loss, 1e-6)))
        self.begun = True


class GradNorm(Balance):
    """Equal training rates by gradient norms (Chen et al. 2018): |G_i − Ḡ r_i^a| falls, over the weights alone.

    G_i = w_i ‖∇L_i‖ on the last shared layer, r_i = (L_i / L_i(0)) over the mean of both. Weights are learned as
    logarithms and renormalised to a sum of 1; they start where the first step's G are equal.
    """

    kept = ("first",)

    def __init__(self) -> None:
        self.first: list[float] | None = None

    def start(self) -> dict[str, float]:
        return {"ranking_log_weight": math.log(0.5), "regression_log_weight": math.log(0.5)}

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        # as numbers: the loss itself must not move them
        first, second = (float(value.detach().exp()) for value in scalars.values.values())
        return first, second

    def step(self, scalars: Scalars, gradients: Sequence[float], measured: Measured) -> None:
        losses = [max(loss, 1e-12) for loss in (measured.ranking, measured.regression)]
        norms = [max(norm, 1e-12) for norm in (measured.ranking_gradient, measured.regression_gradient)]
        if any(math.isnan(norm) for norm in norms):
            raise ConfigError(
                "the network has no last linear layer that both terms' gradients could be measured on",
                "train.balance.rule",
                "choose uncertainty or fixed for this architecture",
            )
        names = list(scalars.values)
        if self.first is None:
            self.first = losses
            logs = [-math.log(norm) for norm in norms]
        else:
            shares = [weight * norm for weight, norm in zip(self.weights(scalars, 0.0), norms, strict=True)]
            rates = [loss / first for loss, first in zip(losses, self.first, strict=True)]
            mean_share = sum(shares) / 2
            mean_rate = sum(rates) / 2
            wanted = [mean_share * (rate / mean_rate) ** _ASYMMETRY for rate in rates]
            # dG/d log w = G; in units of the mean norm, so that losses of any scale move alike
            downhill = [
                math.copysign(share / mean_share, share - goal) for share, goal in zip(shares, wanted, strict=True)
            ]
            scalars.step(downhill)
            logs = [float(value.detach()) for value in scalars.values.values()]
        total = math.log(sum(math.exp(log - max(logs)) for log in logs)) + max(logs)
        for name, log in zip(names, logs, strict=True):
            scalars.set(name, log - total)


def estimated_alpha(false_negative_rate: float) -> float:
    """α by the share of false negatives among those mined, in [0, 1] (report, Theorem 8, read as a straight line).

    >>> [round(estimated_alpha(share), 3) for share in (0.0, 0.1, 0.2, 0.3, 0.6)]
    [0.75, 0.75, 0.575, 0.4, 0.4]
    """
    (low, most), (high, least) = LOW_RATE, HIGH_RATE
    where = min(max((false_negative_rate - low) / (high - low), 0.0), 1.0)
    return most + where * (least - most)


def make_balance(config: BalanceConfig, false_negative_rate: float | None) -> Balance:
    """Return the configured balance. Raises ConfigError if it needs an estimate that is missing."""
    if config.rule == "estimated":
        if false_negative_rate is None:
            raise ConfigError(
                "the share of false negatives is not known", "train.balance.rule", "choose fixed and give alpha"
            )
        return Fixed(estimated_alpha(false_negative_rate))
    if config.rule == "learned":
        return Learned(config)
    if config.rule == "uncertainty":
        return Uncertainty()
    return GradNorm() if config.rule == "gradnorm" else Fixed()
