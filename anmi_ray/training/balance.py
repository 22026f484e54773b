"""How the ranking and the regression term are weighed against each other.

A balance gives both weights as functions of learned scalars, may add a term of its own to the loss, and may move its
scalars by what was measured of a step. Judge it by the terms' shares of the gradient on shared weights, not by alpha.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from anmi_ray.config.objective import BalanceConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.training.scalars import Scalars

Weights = tuple[float | Tensor, float | Tensor]
# report, Theorem 8: middles of .7-.8 and .3-.5
LOW_RATE = (0.1, 0.75)
HIGH_RATE = (0.3, 0.4)
_ASYMMETRY = 1.5  # power on the relative training rate (GradNorm's alpha), which Chen et al. found best


def numbers(weights: Weights) -> tuple[float, float]:
    """Both weights without their graph."""
    first, second = (float(weight.detach()) if isinstance(weight, Tensor) else weight for weight in weights)
    return first, second


@dataclass(frozen=True)
class Measured:
    """Means over a step's lists: both unweighted terms, and the norms of their gradients on the last layer's weights.

    The norms are NaN where the network shows no such layer.
    """

    ranking: float
    regression: float
    ranking_gradient: float
    regression_gradient: float


class Balance(ABC):
    """Weights of the two terms."""

    def start(self) -> dict[str, float]:
        """Its scalars' names and first values."""
        return {}

    @abstractmethod
    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        """(ranking, regression); `alpha` is the curriculum's."""

    def more(self, scalars: Scalars) -> Tensor | None:
        """What it adds to the loss of a step."""
        del scalars
        return None

    def step(self, scalars: Scalars, gradients: Sequence[float], measured: Measured) -> None:
        """Move the scalars after a step: by the loss's `gradients`, in the order of their names, or by `measured`."""
        del measured
        if scalars.values:
            scalars.step(gradients)

    def state(self) -> dict[str, Any]:
        """What a checkpoint needs besides the scalars."""
        return {}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        del state


class Fixed(Balance):
    """The curriculum's alpha, or one that was estimated before training (report, equation 37)."""

    def __init__(self, alpha: float | None = None) -> None:
        self._alpha = alpha

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        """(α, 1 − α)."""
        del scalars
        alpha = alpha if self._alpha is None else self._alpha
        return alpha, 1.0 - alpha


class Learned(Balance):
    """α = σ(a), learned, with a prior: the cross-entropy of α from its mode (a Beta prior's logarithm).

    Without it dL/dα = L₁ − L₂ would drive α to 0 or 1: to whichever term is smaller.
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
        """The logit of α."""
        return {"alpha_logit": math.log(self._config.alpha / (1 - self._config.alpha))}

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        """(σ(a), σ(−a))."""
        del alpha
        return torch.sigmoid(scalars["alpha_logit"]), torch.sigmoid(-scalars["alpha_logit"])

    def more(self, scalars: Scalars) -> Tensor | None:
        """−(π log α + (1 − π) log(1 − α)), π the prior's mode."""
        mode = self._config.alpha
        logit = scalars["alpha_logit"]
        ours = mode * torch.nn.functional.logsigmoid(logit) + (1 - mode) * torch.nn.functional.logsigmoid(-logit)
        return -ours


class Uncertainty(Balance):
    """Homoscedastic uncertainty (Kendall et al. 2018): ½e^{−s₁}L₁ + ½e^{−s₂}L₂ + ½(s₁ + s₂).

    For given losses the best s is log L, where each term weighs ½ whatever its scale. The first step's losses give the
    first s, so nothing has to travel there.
    """

    def __init__(self) -> None:
        self._begun = False

    def start(self) -> dict[str, float]:
        """s₁ and s₂."""
        return {"ranking_log_variance": 0.0, "regression_log_variance": 0.0}

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        """(½e^{−s₁}, ½e^{−s₂})."""
        del alpha
        first, second = (0.5 * torch.exp(-value) for value in scalars.values.values())
        return first, second

    def more(self, scalars: Scalars) -> Tensor | None:
        """½(s₁ + s₂)."""
        first, second = scalars.values.values()
        return 0.5 * (first + second)

    def step(self, scalars: Scalars, gradients: Sequence[float], measured: Measured) -> None:
        """Begin where the first step's losses are at rest, later follow the gradient."""
        if self._begun:
            scalars.step(gradients)
        else:
            losses = (measured.ranking, measured.regression)
            for name, loss in zip(scalars.values, losses, strict=True):
                scalars.set(name, math.log(max(loss, 1e-6)))
        self._begun = True

    def state(self) -> dict[str, Any]:
        """Whether the first step was seen."""
        return {"begun": self._begun}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._begun = state["begun"]


class GradNorm(Balance):
    """Equal training rates by gradient norms (Chen et al. 2018): |G_i − Ḡ r_i^a| falls, over the weights alone.

    G_i = w_i ‖∇L_i‖ on the last shared layer, r_i = (L_i / L_i(0)) over the mean of both. Weights are learned as
    logarithms and renormalised to a sum of 1; they begin where the first step's G are equal.
    """

    def __init__(self, config: BalanceConfig) -> None:
        self._config = config
        self._first: list[float] | None = None

    def start(self) -> dict[str, float]:
        """log w, of both."""
        return {"ranking_log_weight": math.log(0.5), "regression_log_weight": math.log(0.5)}

    def weights(self, scalars: Scalars, alpha: float) -> Weights:
        """Both as numbers: the loss itself must not move them."""
        del alpha
        first, second = (float(value.detach().exp()) for value in scalars.values.values())
        return first, second

    def step(self, scalars: Scalars, gradients: Sequence[float], measured: Measured) -> None:
        """Begin, or one step of Adam down |G_i − Ḡ r_i^a|, and the sum to 1 again."""
        del gradients
        losses = [max(loss, 1e-12) for loss in (measured.ranking, measured.regression)]
        norms = [max(norm, 1e-12) for norm in (measured.ranking_gradient, measured.regression_gradient)]
        if any(math.isnan(norm) for norm in norms):
            raise ConfigError(
                "the network has no last linear layer that both terms' gradients could be measured on",
                "train.balance.rule",
                "choose uncertainty or fixed for this architecture",
            )
        names = list(scalars.values)
        if self._first is None:
            self._first = losses
            logs = [-math.log(norm) for norm in norms]
        else:
            shares = [
                float(value.detach().exp()) * norm for value, norm in zip(scalars.values.values(), norms, strict=True)
            ]
            rates = [loss / first for loss, first in zip(losses, self._first, strict=True)]
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

    def state(self) -> dict[str, Any]:
        """The first step's losses."""
        return {"first": self._first}

    def load(self, state: Mapping[str, Any]) -> None:
        """The inverse of `state`."""
        self._first = state["first"]


def estimated_alpha(false_negative_rate: float) -> float:
    """α by the share of false negatives among those mined, in [0, 1] (report, Theorem 8, read as a straight line).

    >>> [round(estimated_alpha(share), 3) for share in (0.0, 0.1, 0.2, 0.3, 0.6)]
    [0.75, 0.75, 0.575, 0.4, 0.4]
    """
    (low, most), (high, least) = LOW_RATE, HIGH_RATE
    where = min(max((false_negative_rate - low) / (high - low), 0.0), 1.0)
    return most + where * (least - most)


def make_balance(config: BalanceConfig, false_negative_rate: float | None) -> Balance:
    """The balance of the settings. Raises ConfigError where it needs an estimate that there is none of."""
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
    return GradNorm(config) if config.rule == "gradnorm" else Fixed()
