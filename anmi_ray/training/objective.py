"""The loss of a training step, its measurements, and the learned loss parameters (temperature, balance).

The gradients of both loss terms on the last layer's weights need no backward pass: they are products of the layer's
inputs with the gradients of the scores, which are cheap.
Legend: B lists, K documents of a list, N pairs, H inputs of the last layer.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from anmi_ray.config.train import TrainConfig
from anmi_ray.core.errors import ConfigError, TrainingError
from anmi_ray.training.balance import Measured, Scalars, make_balance, numbers
from anmi_ray.training.batching import MicroBatch
from anmi_ray.training.curriculum import Phase, Stateful
from anmi_ray.training.losses import (
    debiased,
    listnet,
    margin_regression,
    ranknet,
    rating_target,
    regression,
    weighted_infonce,
)
from anmi_ray.training.module import Trainable

LOSS_RATE = 0.02  # learning rate of the loss parameters, a few scalars: temperature, balance
SHARPEST = 100.0  # largest 1/τ of a learned temperature (CLIP)
CONSTANT_SPREAD = 1e-6  # scores of a list within this range count as constant
CLAMPED_STEPS = 50  # consecutive steps with half of the corrections clamped after which training fails
_NAMES = ("loss", "ranking", "regression", "pairs", "tokens", "varied", "clamped", "rated_weight", "negative_weight")
_GRID = ("slot_N", "mask_BK", "positive_BK", "weight_BK", "rating_BK", "precision_BK", "mean_B", "spread_B")
Figures = dict[str, float | int | None]


class Losses(Stateful, ABC):
    """The loss of a run. Per step: `loss` of each micro-batch, then `sums`, added over workers, then `finish`."""

    @abstractmethod
    def loss(self, batch: Any, phase: Phase, *outputs: Tensor, record: bool = True) -> Tensor:
        """Return a micro-batch's part of the step's loss from the module's outputs; `record`: add to `sums`."""

    @abstractmethod
    def sums(self) -> list[float]:
        """Return the sums over the step's micro-batches on this worker, and reset them."""

    @abstractmethod
    def finish(self, totals: Sequence[float], phase: Phase, step: int) -> Figures:
        """Return the step's figures from the sums of all workers: at least loss, pairs, tokens, and varied.

        varied: 0 if all outputs were constant.
        """


class Objective(Losses):
    """The loss of a reranker.

    Raises ConfigError if the settings need the share of false negatives (`false_negative_rate`) and it is None.
    """

    def __init__(self, module: Trainable, config: TrainConfig, world: int, false_negative_rate: float | None) -> None:
        self.module = module
        self.config = config
        self.world = world
        self.device = module.device
        self.positive_share = _positive_share(config, false_negative_rate)
        self.balance = make_balance(config.balance, false_negative_rate)
        self.weights = Scalars(self.balance.start(), LOSS_RATE, self.device)
        sharpness = {"log_sharpness": -math.log(config.start_temperature)} if config.loss.learn_temperature else {}
        self.sharpness = Scalars(sharpness, LOSS_RATE, self.device)
        self._sums = torch.zeros(len(_NAMES), dtype=torch.float64, device=self.device)
        self._gradients_2H: Tensor | None = None
        self._clamped_steps = 0

    @property
    def temperature(self) -> float | Tensor:
        """Temperature τ of the ranking term."""
        if not self.sharpness.values:
            return self.config.start_temperature
        return torch.exp(-self.sharpness["log_sharpness"])

    def loss(self, batch: MicroBatch, phase: Phase, *outputs: Tensor, record: bool = True) -> Tensor:
        """Return a micro-batch's part of the step's mean loss over lists.

        outputs: score[N], predicted[N], and further scores [N]. All scores get a ranking term each, and these terms
            are averaged.
        """
        grid = self._grid(batch)
        score_BK, parts = self._parts(grid, *outputs)
        loss, ranking, error, clamped = self._weigh(parts, phase, len(batch.mean_B))
        if record:
            mask = grid["mask_BK"]
            highest = torch.where(mask, score_BK, -torch.inf).amax(1)
            lowest = torch.where(mask, score_BK, torch.inf).amin(1)
            varied = (highest - lowest > CONSTANT_SPREAD).sum()
            counts = torch.tensor([len(outputs[0]), batch.tokens], dtype=torch.float64).to(self.device)
            losses = torch.stack([part.detach().double() for part in (loss, ranking, error)])
            weight = torch.where(grid["mask_BK"] & ~grid["positive_BK"], grid["weight_BK"], 0.0)[:, 1:]
            rated = weight[grid["rating_BK"][:, 1:].isfinite()].sum()  # random and in-batch negatives are not rated
            facts = torch.stack([varied, clamped.sum(), rated, weight.sum()]).double()
            self._sums += torch.cat([losses, counts, facts])
            self._measure(grid, *outputs)
        return loss

    def _grid(self, batch: MicroBatch) -> dict[str, Tensor]:
        """Move the arrays that the losses need to the device."""
        return {name: torch.from_numpy(getattr(batch, name)).to(self.device, non_blocking=True) for name in _GRID}

    def _parts(
        self, on: Mapping[str, Tensor], score_N: Tensor, predicted_N: Tensor, *other_N: Tensor
    ) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
        """Return scores [B, K] and, per list, the ranking term, the regression term and whether it was clamped."""
        loss = self.config.loss
        mask = on["mask_BK"]
        rating = on["rating_BK"]
        score_BK, predicted_BK, *other_BK = (
            torch.zeros(mask.numel(), device=self.device).index_put((on["slot_N"],), values).view_as(mask)
            for values in (score_N, predicted_N, *other_N)
        )
        terms = [self._ranking(on, scores) for scores in (score_BK, *other_BK)]
        ranking = terms[0][0] if len(terms) == 1 else torch.stack([term for term, _ in terms]).mean(0)
        target = rating_target(rating, on["mean_B"], on["spread_B"], loss.target)
        term = regression if loss.regression == "ratings" else margin_regression
        return score_BK, (ranking, term(predicted_BK, target, mask, on["precision_BK"]), terms[0][1])

    def _ranking(self, on: Mapping[str, Tensor], score_BK: Tensor) -> tuple[Tensor, Tensor]:
        """Return the ranking term of each list and whether its correction was clamped."""
        loss = self.config.loss
        mask, positive, weight, rating = (on[f"{name}_BK"] for name in ("mask", "positive", "weight", "rating"))
        shown = score_BK if loss.bound is None else torch.tanh(score_BK / loss.bound)
        clamped = torch.zeros(len(mask), dtype=torch.bool, device=self.device)
        if loss.ranking == "infonce":
            return weighted_infonce(shown, weight, mask, self.temperature, positive), clamped
        if loss.ranking == "debiased":
            return debiased(shown, weight, mask & ~positive, self.temperature, self.positive_share, loss.hardness)
        term = ranknet if loss.ranking == "ranknet" else listnet
        return term(shown, rating, mask, self.temperature), clamped

    def _weigh(
        self, parts: tuple[Tensor, Tensor, Tensor], phase: Phase, lists: int
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The micro-batch's share of the step's loss and of both terms, and the flags of its lists."""
        per_step = self.config.lists_per_step
        ranking, error = (part.sum() / per_step for part in parts[:2])
        first, second = self.balance.weights(self.weights, phase.alpha)
        # leave out terms of zero weight: 0 · ∞ would be NaN
        pairs = ((first, ranking), (second, error))
        terms = [weight * part for weight, part in pairs if isinstance(weight, Tensor) or weight != 0.0]
        loss = torch.stack(terms).sum()
        if (more := self.balance.more(self.weights)) is not None:
            loss = loss + more * lists / per_step
        return loss, ranking, error, parts[2]

    def _measure(self, on: Mapping[str, Tensor], score_N: Tensor, predicted_N: Tensor, *other_N: Tensor) -> None:
        """Add both terms' gradients on their common input: last-layer weights, a bi-encoder's vectors, or scores.

        Computed on detached copies, since engines attach hooks to outputs and would mistake this for the backward pass.
        """
        leaves = [output.detach().requires_grad_(True) for output in (score_N, predicted_N, *other_N)]
        _, (ranking, error, _) = self._parts(on, *leaves)
        scores = [leaves[0], *leaves[2:]]
        of_ranking = torch.cat(torch.autograd.grad(ranking.sum(), scores))
        (of_error,) = torch.autograd.grad(error.sum(), leaves[1])
        of_error = torch.cat([of_error, torch.zeros_like(of_ranking[len(of_error) :])])
        pulls = torch.stack([of_ranking, self.module.slope * of_error]).float() / self.config.lists_per_step
        if (gradients_2H := self.module.pulled(pulls)) is None:
            return
        self._gradients_2H = gradients_2H if self._gradients_2H is None else self._gradients_2H + gradients_2H

    def sums(self) -> list[float]:
        learned = [value / self.world for scalars in (self.weights, self.sharpness) for value in scalars.gradients()]
        gradients = [] if self._gradients_2H is None else self._gradients_2H.flatten().tolist()
        totals = [*self._sums.tolist(), *learned, *gradients]
        self._sums.zero_()
        self._gradients_2H = None
        return totals

    def finish(self, totals: Sequence[float], phase: Phase, step: int) -> Figures:
        """Also updates the loss parameters.

        Raises TrainingError if the debiased loss was clamped for most lists over CLAMPED_STEPS steps.
        """
        named = dict(zip(_NAMES, totals, strict=False))
        learned = list(totals[len(_NAMES) :])
        weights, sharpness = len(self.weights.values), len(self.sharpness.values)
        gradients = torch.tensor(learned[weights + sharpness :], dtype=torch.float64).reshape(2, -1)
        gradients = self.module.gradients(gradients)
        first, second = numbers(self.balance.weights(self.weights, phase.alpha))
        rated = named.pop("rated_weight")
        negative = named.pop("negative_weight")
        figures = named | self._shares(gradients, first, second) | self._learned(first, second)
        figures["rated_share"] = rated / negative if negative > 0 else None
        figures["minimum_gap_elo"] = phase.minimum_gap_elo if math.isfinite(phase.minimum_gap_elo) else None
        if self.config.loss.ranking == "debiased":
            figures["clamped"] = self._check_clamped(named["clamped"] / self.config.lists_per_step, step)
        else:
            del figures["clamped"]
        norms = [float(norm) for norm in gradients.norm(dim=1)] if gradients.numel() else [math.nan, math.nan]
        if math.isfinite(named["loss"]):
            measured = Measured(named["ranking"], named["regression"], *norms)
            self.balance.step(self.weights, learned[:weights], measured)
            if sharpness:
                self.sharpness.step(learned[weights : weights + sharpness])
                value = float(self.sharpness["log_sharpness"].detach())
                self.sharpness.set("log_sharpness", min(max(value, 0.0), math.log(SHARPEST)))
        return figures

    def _shares(self, gradients_2H: Tensor, first: float, second: float) -> Figures:
        """Return weighted gradient norms of both terms on the last layer, the ranking share, and the cosine."""
        if not gradients_2H.numel():
            return {}
        norms = gradients_2H.norm(dim=1).tolist()
        ranking, error = first * norms[0], second * norms[1]
        product = float(gradients_2H[0] @ gradients_2H[1])
        return {
            "gradient_ranking": ranking,
            "gradient_regression": error,
            "gradient_share": ranking / (ranking + error) if ranking + error > 0 else None,
            "gradient_cosine": product / (norms[0] * norms[1]) if min(norms) > 0 else None,
        }

    def _learned(self, first: float, second: float) -> Figures:
        """Return the ranking term's share of the weights and the learned parameters."""
        figures: Figures = {"alpha": first / (first + second)}
        if self.weights.values:
            figures |= {"weight_ranking": first, "weight_regression": second}
        if self.sharpness.values:
            figures["temperature"] = float(torch.exp(-self.sharpness["log_sharpness"].detach()))
        return figures

    def _check_clamped(self, share: float, step: int) -> float:
        self._clamped_steps = self._clamped_steps + 1 if share > 0.5 else 0
        if self._clamped_steps >= CLAMPED_STEPS:
            raise TrainingError(
                f"the debiased loss was clamped in more than half of the lists for {CLAMPED_STEPS} steps, so "
                "their negatives give no gradient",
                f"training, step {step + 1}",
                "raise train.loss.temperature or train.loss.bound, or lower train.loss.positive_share",
            )
        return share

    def state(self) -> dict[str, Any]:
        parts = {"weights": self.weights.state(), "sharpness": self.sharpness.state(), "balance": self.balance.state()}
        return parts | {"clamped_steps": self._clamped_steps}

    def load(self, state: Mapping[str, Any]) -> None:
        for name in ("weights", "sharpness", "balance"):
            getattr(self, name).load(state[name])
        self._clamped_steps = state["clamped_steps"]


def _positive_share(config: TrainConfig, false_negative_rate: float | None) -> float:
    if config.loss.ranking != "debiased":
        return 0.0
    share = config.loss.positive_share if config.loss.positive_share is not None else false_negative_rate
    if share is None:
        raise ConfigError(
            "the share of false negatives is unknown", "train.loss.positive_share", "set it, for example to .05"
        )
    return min(share, 0.99)
