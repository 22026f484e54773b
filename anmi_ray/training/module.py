"""What is trained: a network as the settings want it, a reranker's with the map to ratings, parameters by rate."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn

from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.cross_encoder import tensors
from anmi_ray.models.heads import Scorer, transformer_layers
from anmi_ray.models.lora import is_adapted, is_adapter
from anmi_ray.models.pairs import Batch
from anmi_ray.models.reranker import Reranker, resolve_precision
from anmi_ray.models.speed import checkpoint_activations, compile_body, set_attention
from anmi_ray.models.texts import TextPairs

# The map a·score + b that regression compares with ratings: its start, and its peak learning rate. Two scalars on
# top of a network find their place with a rate far above the network's own.
_MAP_START = (0.3, 1.0)
_MAP_RATE = 2e-2
_WARMUP = 0.1  # share of the steps with rising learning rate
_WEIGHT_DECAY = 0.01  # decoupled; of matrices alone

Inputs = list[Batch] | TextPairs  # of one forward call: pairs as they are read together, or texts and their pairs


class Learner(nn.Module):
    """A network made ready: frozen where it is kept, with its dropout, attention and arithmetic.

    forward gives a tuple of tensors float32[N, ...], inputs of one call in their order, whose loss engines propagate.
    Raises ConfigError where the settings and the network do not fit.
    """

    def __init__(
        self, network: Scorer, device: torch.device, config: LearnConfig, execution: TrainExecution | None = None
    ) -> None:
        super().__init__()
        # ZeRO 3 gathers a parameter that is asked for its device
        self.network = network
        self.device = device
        encoder = network.encoder
        how = execution or TrainExecution()
        self.in_bfloat16 = resolve_precision(config.precision, device) == "bfloat16"
        if is_adapted(network) != (config.lora is not None):
            raise ConfigError(
                "the settings and the model disagree on adapters",
                f"{config.group}.lora",
                "load the model with the same lora as the settings",
            )
        if config.lora is None:  # adapters come with all else frozen
            _freeze(encoder, config)
        if config.dropout is not None:
            _set_dropout(network, config.dropout)
        set_attention(encoder, how.attention, device, self.in_bfloat16)
        if self.in_bfloat16:
            _residuals_in_bfloat16(encoder)
        if how.gradient_checkpointing:
            checkpoint_activations(encoder)
        if how.compile:
            compile_body(encoder, device)

    def logits(self, batches: Sequence[Batch]) -> list[Tensor]:
        """What the network gives of every batch."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            return [self.network(**tensors(batch, self.device)) for batch in batches]

    def rates(self) -> dict[int, float]:
        """By id, the learning rates of parameters that are neither the transformer's nor its head's."""
        return {}

    def idle(self) -> list[nn.Parameter]:
        """Trained parameters that no loss of these settings reaches."""
        return []


class Trainable(Learner):
    """Scores of a micro-batch and g_ψ of them, the rising affine map exp(a)·s + b that regression reads.

    One forward call covers all length batches of a micro-batch, so engines that synchronise workers per call see one.
    Of the newest call it keeps `features_NH`, the inputs of the last linear layer, whose product with the gradient of
    the scores is the gradient of that layer's weights (None where the network has no such layer), and exp(a).
    """

    def __init__(self, model: Reranker, config: TrainConfig, execution: TrainExecution | None = None) -> None:
        super().__init__(model.network, model.device, config, execution)
        scale, shift = _MAP_START
        self.regresses = config.regresses
        self.log_scale = nn.Parameter(torch.tensor([math.log(scale)]))
        self.shift = nn.Parameter(torch.tensor([shift]))
        self.features_NH: Tensor | None = None
        self.slope: float | Tensor = scale
        self._inputs: list[Tensor] = []
        if (last := self.network.score_layer()) is not None:
            last.register_forward_pre_hook(lambda _module, inputs: self._inputs.append(inputs[0].detach()))
        self.to(model.device)

    def forward(self, batches: Inputs) -> tuple[Tensor, Tensor]:
        """(score, predicted rating in units of the target), float32[N] each, batch after batch."""
        self._inputs.clear()
        score = torch.cat(self.logits(cast(Sequence[Batch], batches))).float()
        flat = [features for features in self._inputs if features.dim() == 2]
        self.features_NH = torch.cat(flat).float() if sum(map(len, flat)) == len(score) else None
        self._inputs.clear()
        return score, self.mapped(score)

    def rates(self) -> dict[int, float]:
        """Those of g_ψ."""
        return {id(self.log_scale): _MAP_RATE, id(self.shift): _MAP_RATE}

    def idle(self) -> list[nn.Parameter]:
        """Those of g_ψ where the regression term has no weight."""
        return [] if self.regresses else [self.log_scale, self.shift]

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


def parameter_groups(module: Learner, config: LearnConfig) -> list[dict[str, Any]]:
    """AdamW's groups of the parameters that are trained: learning rate by depth, no decay on vectors.

    The head and g_ψ have learning rates of their own; layer l of L has learning_rate · layer_decay^(L − 1 − l).
    """
    head = {id(p) for layer in module.network.head() for p in layer.parameters()}
    rates = dict.fromkeys(head, config.head_learning_rate)
    rates |= module.rates()
    depth = _depths(module.network) if config.layer_decay < 1 else {}
    highest = max(depth.values(), default=-1)
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for parameter in module.parameters():
        if not parameter.requires_grad:
            continue
        below = highest - depth.get(id(parameter), -1)
        rate = rates.get(id(parameter), config.learning_rate * config.layer_decay**below)
        decay = _WEIGHT_DECAY if parameter.dim() > 1 else 0.0
        groups.setdefault((rate, decay), []).append(parameter)
    return [{"params": parameters, "lr": rate, "weight_decay": decay} for (rate, decay), parameters in groups.items()]


def rate_factor(step: int, steps: int) -> float:
    """Factor on every learning rate at `step` of `steps`: linear warm-up over a tenth of them, then linear decay.

    >>> [round(rate_factor(s, 20), 3) for s in (0, 1, 2, 11, 19)]
    [0.5, 1.0, 1.0, 0.5, 0.056]
    """
    warmup = round(_WARMUP * steps)
    return (step + 1) / warmup if step < warmup else (steps - step) / max(steps - warmup, 1)


def _depths(network: Scorer) -> dict[int, int]:
    """By id of a parameter, the layer that it is in; what is above the last layer counts to that layer."""
    layers = transformer_layers(network.encoder)
    depth = {id(p): i for i, layer in enumerate(layers) for p in layer.parameters()}
    above = [child for child in network.children() if child is not network.encoder]
    depth |= {id(p): len(layers) - 1 for child in above for p in child.parameters()}
    for name, child in network.encoder.base_model.named_children():
        if name in ("norm", "final_norm"):
            depth |= {id(parameter): len(layers) - 1 for parameter in child.parameters()}
    return depth


def _freeze(encoder: transformers.PreTrainedModel, config: LearnConfig) -> None:
    if config.freeze_embeddings:
        base = encoder.base_model
        # Word, position and segment embeddings with their LayerNorm, where the architecture keeps them together.
        embeddings = getattr(base, "embeddings", None) or encoder.get_input_embeddings()
        embeddings.requires_grad_(False)
        if (out := encoder.get_output_embeddings()) is not None:  # a language model's, of which two rows are read
            out.requires_grad_(False)
    if not config.freeze_layers:
        return
    layers = transformer_layers(encoder)
    if config.freeze_layers > len(layers):
        raise ConfigError(
            f"freeze_layers is {config.freeze_layers}, the model has {len(layers)}",
            f"{config.group}.freeze_layers",
            f"choose at most {len(layers)}",
        )
    for layer in layers[: config.freeze_layers]:
        layer.requires_grad_(False)


def _residuals_in_bfloat16(encoder: transformers.PreTrainedModel) -> None:
    """Autocast would keep embeddings and so residuals in float32, and cast before each product: a tenth of a step."""
    embeddings = getattr(encoder.base_model, "embeddings", None) or encoder.get_input_embeddings()
    embeddings.register_forward_hook(lambda _module, _inputs, output: output.bfloat16())


def _set_dropout(network: nn.Module, probability: float) -> None:
    for path, module in network.named_modules():
        if is_adapter(path):  # has a dropout of its own
            continue
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name, child in module.named_children():
            if isinstance(child, nn.Identity) and "drop" in name:  # ModernBERT's, where it was trained without
                setattr(module, name, nn.Dropout(probability))
        for name in ("dropout_prob", "attention_dropout"):  # attention that calls the function, not the module
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, probability)
