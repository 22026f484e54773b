"""What is trained: a reranker's network with the map from score to rating, and its parameters by learning rate."""

from __future__ import annotations

import math
from typing import Any, cast

import torch
from torch import Tensor, nn
from transformers import PreTrainedModel

from anmi_ray.config.train import TrainConfig
from anmi_ray.errors import ConfigError
from anmi_ray.models.cross_encoder import head_layers, resolve_precision, tensors
from anmi_ray.models.pairs import Batch
from anmi_ray.models.reranker import Reranker
from anmi_ray.models.texts import TextPairs

Inputs = list[Batch] | TextPairs  # of one forward call: pairs as they are read together, or texts and their pairs


class Trainable(nn.Module):
    """Scores of a micro-batch and g_ψ of them, the rising affine map exp(a)·s + b that regression reads.

    One forward call covers all length batches of a micro-batch, so engines that synchronise workers per call see one.
    Of the newest call it keeps `features_NH`, the inputs of the last linear layer, whose product with the gradient of
    the scores is the gradient of that layer's weights (None where the network has no such layer), and exp(a).
    """

    def __init__(self, model: Reranker, config: TrainConfig) -> None:
        super().__init__()
        self.network = model.network
        scale, shift = config.map_start
        self.log_scale, self.shift = nn.Parameter(torch.tensor([math.log(scale)])), nn.Parameter(torch.tensor([shift]))
        self.in_bfloat16 = resolve_precision(config.precision, model.device) == "bfloat16"
        _freeze(cast(PreTrainedModel, self.network.encoder), config)
        if config.dropout is not None:
            _set_dropout(self.network, config.dropout)
        if model.device.type == "cpu":
            # The fused kernel's backward pass is slower than plain matrix products there: by .7 in bfloat16.
            cast(PreTrainedModel, self.network.encoder).set_attn_implementation("eager")
        if self.in_bfloat16:
            _residuals_in_bfloat16(cast(PreTrainedModel, self.network.encoder))
        self.features_NH: Tensor | None = None
        self.slope: float | Tensor = scale
        self._inputs: list[Tensor] = []
        if (last := _score_layer(self.network)) is not None:
            last.register_forward_pre_hook(lambda _module, inputs: self._inputs.append(inputs[0].detach()))
        self.to(model.device)

    def forward(self, batches: Inputs) -> tuple[Tensor, Tensor]:
        """(score, predicted rating in units of the target), float32[N] each, batch after batch."""
        device = self.shift.device
        self._inputs.clear()
        with torch.autocast(device.type, torch.bfloat16, enabled=self.in_bfloat16):
            scores = [self.network(**tensors(batch, device)) for batch in batches]
        score = torch.cat(scores).float()
        flat = [one for one in self._inputs if one.dim() == 2]
        self.features_NH = torch.cat(flat).float() if sum(map(len, flat)) == len(score) else None
        self._inputs.clear()
        return score, self.mapped(score)

    def mapped(self, score_N: Tensor) -> Tensor:
        """g_ψ of scores; keeps its slope."""
        slope = self.log_scale.exp()
        self.slope = slope.detach()
        return slope * score_N + self.shift

    def pulled(self, pull_2N: Tensor) -> Tensor | None:
        """What adds up over micro-batches to both terms' gradients on the last layer, from those of the scores."""
        return None if self.features_NH is None else pull_2N @ self.features_NH

    def gradients(self, pulled: Tensor) -> Tensor:
        """Both terms' gradients [2, H] from the sum of `pulled`."""
        return pulled


def _score_layer(network: nn.Module) -> nn.Linear | None:
    """The linear layer whose one output is the score."""
    layers = [module for head in head_layers(network) for module in head.modules()]
    return next((m for m in reversed(layers) if isinstance(m, nn.Linear) and m.out_features == 1), None)


class Average:
    """An exponential average of the trained weights: a ← d·a + (1 − d)·w after every step."""

    def __init__(self, network: nn.Module, decay: float) -> None:
        self.decay = decay
        self._current = {name: p for name, p in network.named_parameters() if p.requires_grad}
        self.weights = {name: p.detach().clone() for name, p in self._current.items()}

    def load(self, weights: dict[str, Tensor]) -> None:
        """Go on from the average of an earlier process."""
        for name, value in weights.items():
            self.weights[name].copy_(value)

    def update(self) -> None:
        """Take the current weights in."""
        with torch.no_grad():
            for name, parameter in self._current.items():
                self.weights[name].lerp_(parameter, 1.0 - self.decay)


def parameter_groups(module: Trainable, config: TrainConfig) -> list[dict[str, Any]]:
    """AdamW's groups of the parameters that are trained: learning rate by depth, no decay on vectors.

    The head and g_ψ have learning rates of their own; layer l of L has learning_rate · layer_decay^(L − 1 − l).
    """
    head = {id(p) for layer in head_layers(module.network) for p in layer.parameters()}
    rates = dict.fromkeys(head, config.head_learning_rate)
    rates |= dict.fromkeys((id(module.log_scale), id(module.shift)), config.map_learning_rate)
    layers = transformer_layers(cast(PreTrainedModel, module.network.encoder))
    depth = {id(p): i for i, layer in enumerate(layers) for p in layer.parameters()}
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        below = len(layers) - 1 - depth.get(id(parameter), -1)
        rate = rates.get(id(parameter), config.learning_rate * config.layer_decay**below)
        decay = config.weight_decay if parameter.dim() > 1 else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": found, "lr": rate, "weight_decay": decay} for (rate, decay), found in groups.items()]


def rate_factor(config: TrainConfig, step: int, steps: int) -> float:
    """Factor on every learning rate at `step` of `steps`: linear warm-up, then linear, cosine or no decay.

    >>> [rate_factor(TrainConfig(warmup_fraction=0.5), s, 4) for s in range(4)]
    [0.5, 1.0, 1.0, 0.5]
    """
    warmup = round(config.warmup_fraction * steps)
    if step < warmup:
        return (step + 1) / warmup
    if config.decay == "constant":
        return 1.0
    left = (steps - step) / max(steps - warmup, 1)
    return left if config.decay == "linear" else 0.5 * (1.0 - math.cos(math.pi * left))


def transformer_layers(encoder: PreTrainedModel) -> list[nn.Module]:
    """The transformer's layers, lowest first; ConfigError where the architecture does not show them."""
    wanted = encoder.config.num_hidden_layers
    for module in encoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == wanted:
            return list(module)
    raise ConfigError(
        f"{type(encoder).__name__} has no list of {wanted} layers",
        "train.freeze_layers",
        "leave freeze_layers at 0 and layer_decay at 1 for this architecture",
    )


def _freeze(encoder: PreTrainedModel, config: TrainConfig) -> None:
    if config.freeze_embeddings:
        base = encoder.base_model
        # Word, position and segment embeddings with their LayerNorm, where the architecture keeps them together.
        embeddings = getattr(base, "embeddings", None) or encoder.get_input_embeddings()
        embeddings.requires_grad_(False)
    if not config.freeze_layers:
        return
    layers = transformer_layers(encoder)
    if config.freeze_layers > len(layers):
        raise ConfigError(
            f"freeze_layers is {config.freeze_layers}, the model has {len(layers)}",
            "train.freeze_layers",
            f"choose at most {len(layers)}",
        )
    for layer in layers[: config.freeze_layers]:
        layer.requires_grad_(False)


def _residuals_in_bfloat16(encoder: PreTrainedModel) -> None:
    """Autocast would keep embeddings and so residuals in float32, and cast before each product: a tenth of a step."""
    embeddings = getattr(encoder.base_model, "embeddings", None)
    if embeddings is not None:
        embeddings.register_forward_hook(lambda _module, _inputs, output: output.bfloat16())


def _set_dropout(network: nn.Module, probability: float) -> None:
    for module in network.modules():
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name in ("dropout_prob", "attention_dropout"):  # attention that calls the function, not the module
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, probability)
