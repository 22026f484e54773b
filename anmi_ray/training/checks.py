"""What is wrong with a training before its first step, and whether its learning rates have any effect after some.

Each is one message with its remedy. Legend: E lists, P documents of all lists.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from anmi_ray.config.train import TrainConfig
from anmi_ray.core.errors import ConfigError, DataError, TrainingError
from anmi_ray.models.cross_encoder import positions
from anmi_ray.models.heads import Scorer
from anmi_ray.models.reranker import Reranker
from anmi_ray.training.batching import effective_weights
from anmi_ray.training.curriculum import Curriculum, Phase
from anmi_ray.training.training_set import TrainingSet

BODY = "learning_rate"
HEAD = "head_learning_rate"
Moments = dict[str, tuple[float, float]]  # by the setting that moves them, sums of trained weights and of squares


def before_training(model: Reranker, data: TrainingSet, config: TrainConfig, curriculum: Curriculum) -> None:
    """Raise ConfigError where inputs are longer than the model's positions, DataError where there is no negative.

    The latter of ranking terms that read mined negatives alone, by weight, over all that the curriculum lets in.
    """
    check_positions(model.network, data.longest, data.inputs, config.group)
    phases = [phase for phase in curriculum.phases() if phase.alpha > 0]
    if config.loss.ranking not in ("infonce", "debiased") or config.loss.in_batch or not phases:
        return
    if not any(_negative_weight(data, phase).any() for phase in phases):
        raise DataError(
            f"every negative of {len(data)} lists has weight 0: {config.loss.ranking} has nothing to learn from",
            "examples",
            "loosen mine.allow and mine.weigh, lower train.curriculum.minimum_gap_elo, or learn from ratings alone: "
            "train.balance.alpha=0",
        )


def check_positions(network: Scorer, longest: int, inputs: str, group: str) -> None:
    """Raise ConfigError where the longest input has more tokens than the model has positions."""
    held = positions(network.encoder)
    if held and longest > held:
        raise ConfigError(
            f"{inputs} have up to {longest} tokens, and the model has {held} positions",
            f"{group}.max_tokens",
            f"set it to at most {held}",
        )


def _negative_weight(data: TrainingSet, phase: Phase) -> NDArray[np.float64]:
    """Σ of the weights of every list's negatives in a phase, float64[E]."""
    weight_P = effective_weights(data, np.arange(len(data.weight_P)), phase)
    weight_P[data.start_E[:-1]] = 0.0  # the anchor
    return np.add.reduceat(weight_P, data.start_E[:-1])


@torch.no_grad()
def moments(network: Scorer, trained: Iterable[nn.Parameter]) -> Moments:
    """Sums of the trained parameters, all together in float64: biases of zero that gain 1e-30 are lost.

    Where the weights are, without a copy; each is looked at once and need be whole only then.
    """
    head = {id(parameter) for layer in network.head() for parameter in layer.parameters()}
    sums_by_setting: dict[str, Tensor] = {}
    for parameter in trained:
        setting = HEAD if id(parameter) in head else BODY
        norm = torch.linalg.vector_norm(parameter, dtype=torch.float64)
        sums = torch.stack([parameter.sum(dtype=torch.float64), norm * norm])
        sums_by_setting[setting] = sums_by_setting[setting] + sums if setting in sums_by_setting else sums
    return {setting: cast(tuple[float, float], tuple(sums.tolist())) for setting, sums in sums_by_setting.items()}


def check_effect(before: Moments, after: Moments, steps: int, group: str = "train") -> None:
    """Raise TrainingError where none of the weights that a learning rate moves has changed in `steps` steps."""
    still = [f"{group}.{setting}" for setting, sums in before.items() if after[setting] == sums]
    if still:
        raise TrainingError(
            f"{' and '.join(still)} moved no weight in {steps} steps",
            "training",
            f"raise {' and '.join(still)}, or freeze what is not to be trained ({group}.freeze_layers)",
        )
