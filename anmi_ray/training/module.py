"""The trained modules, their parameter groups and learning rates."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from typing import Any, cast

import torch
import transformers
from torch import Tensor, nn

from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.cross_encoder import tensors
from anmi_ray.models.heads import Scorer, is_adapted, is_adapter, transformer_layers
from anmi_ray.models.pairs import Batch
from anmi_ray.models.reranker import Reranker, resolve_precision
from anmi_ray.models.texts import TextPairs

# The map a·score + b from scores to ratings: its start, and its learning rate, far above the network's.
_MAP_START = (0.3, 1.0)
_MAP_RATE = 2e-2
_WARMUP = 0.1  # share of the steps with rising learning rate
_WEIGHT_DECAY = 0.01  # decoupled; of matrices alone

Inputs = list[Batch] | TextPairs  # of one forward call: pairs read together, or texts and their pairs


class Learner(nn.Module):
    """A network with frozen parts, dropout, attention and precision as configured.

    forward returns a tuple of tensors float32[N, ...] in the order of the inputs. Raises ConfigError if settings and
    network do not match.
    """

    def __init__(
        self, network: Scorer, device: torch.device, config: LearnConfig, execution: TrainExecution | None = None
    ) -> None:
        super().__init__()
        self.network = network
        self.device = device  # stored: ZeRO 3 would gather a parameter to read its device
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
        if device.type == "cpu" and encoder._can_set_attn_implementation():
            encoder.set_attn_implementation("eager")  # its backward pass is faster than the fused kernel's
        if self.in_bfloat16:
            # autocast would keep embeddings, so residuals, in float32 and cast before each product: a tenth of a step
            embeddings = getattr(encoder.base_model, "embeddings", None) or encoder.get_input_embeddings()
            embeddings.register_forward_hook(lambda _module, _inputs, output: output.bfloat16())
        if how.gradient_checkpointing:
            _checkpoint_activations(encoder)
        if how.compile:
            _compile(encoder, device)

    def logits(self, batches: Sequence[Batch]) -> list[Tensor]:
        """Outputs of the network for each batch."""
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.in_bfloat16):
            return [self.network(**tensors(batch, self.device)) for batch in batches]

    def rates(self) -> dict[int, float]:
        """Learning rates, by id, of parameters outside of the transformer and its head."""
        return {}

    def idle(self) -> list[nn.Parameter]:
        """Trained parameters without a gradient under these settings."""
        return []


class Trainable(Learner):
    """Scores of a micro-batch and g_ψ of them, the increasing affine map exp(a)·s + b for the regression term.

    One forward call covers all batches of a micro-batch, for engines that synchronise workers per call.
    features_NH: of the last call, the inputs of the last linear layer; times the gradient of the scores they give the
        gradient of its weights. None if the network has no such layer.
    slope: exp(a) of the last call.
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
        """Return (score, predicted rating in units of the target), float32[N] each."""
        self._inputs.clear()
        score = torch.cat(self.logits(cast(Sequence[Batch], batches))).float()
        flat = [features for features in self._inputs if features.dim() == 2]
        self.features_NH = torch.cat(flat).float() if sum(map(len, flat)) == len(score) else None
        self._inputs.clear()
        return score, self.mapped(score)

    def rates(self) -> dict[int, float]:
        return {id(self.log_scale): _MAP_RATE, id(self.shift): _MAP_RATE}

    def idle(self) -> list[nn.Parameter]:
        return [] if self.regresses else [self.log_scale, self.shift]

    def mapped(self, score_N: Tensor) -> Tensor:
        """Apply g_ψ to scores and store its slope."""
        slope = self.log_scale.exp()
        self.slope = slope.detach()
        return slope * score_N + self.shift

    def pulled(self, pull_2N: Tensor) -> Tensor | None:
        """A micro-batch's summand of both terms' gradients on the last layer, from those of the scores."""
        return None if self.features_NH is None else pull_2N @ self.features_NH

    def gradients(self, pulled: Tensor) -> Tensor:
        """Both terms' gradients [2, H] from the sum of `pulled`."""
        return pulled


def parameter_groups(module: Learner, config: LearnConfig) -> list[dict[str, Any]]:
    """AdamW's groups of the trained parameters, without decay on vectors.

    Layer l of L has the rate learning_rate · layer_decay^(L − 1 − l); the head and g_ψ have their own.
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
    """Layer of each parameter, by id; the last layer for what is above it."""
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
        # word, position and segment embeddings with their LayerNorm, if the architecture has them in one module
        embeddings = getattr(base, "embeddings", None) or encoder.get_input_embeddings()
        embeddings.requires_grad_(False)
        if (out := encoder.get_output_embeddings()) is not None:
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


def _checkpoint_activations(encoder: transformers.PreTrainedModel) -> None:
    """Keep only the layers' inputs and compute layers again in the backward pass. Raises ConfigError if unsupported."""
    if not encoder.supports_gradient_checkpointing:
        raise ConfigError(
            f"{type(encoder).__name__} does not support it",
            "execution.train.gradient_checkpointing",
            "leave it false and lower execution.train.micro_batch_tokens",
        )
    encoder.gradient_checkpointing_enable({"use_reentrant": False})


def _compile(encoder: transformers.PreTrainedModel, device: torch.device) -> None:
    """Compile the transformer for all shapes. Raises ConfigError without a C++ compiler on a CPU."""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise ConfigError("needs a C++ compiler", "execution.train.compile", "install g++, or leave compile false")
    encoder.base_model.compile(dynamic=True)


def _set_dropout(network: nn.Module, probability: float) -> None:
    for path, module in network.named_modules():
        if is_adapter(path):  # has its own dropout
            continue
        if isinstance(module, nn.Dropout):
            module.p = probability
        for name, child in module.named_children():
            if isinstance(child, nn.Identity) and "drop" in name:  # ModernBERT, trained without dropout
                setattr(module, name, nn.Dropout(probability))
        for name in ("dropout_prob", "attention_dropout"):  # of attention that calls the function
            if isinstance(getattr(module, name, None), float):
                setattr(module, name, probability)


def copied(network: nn.Module) -> dict[str, Tensor]:
    """Copy the network's weights to the CPU."""
    return {name: value.detach().to("cpu", copy=True) for name, value in network.state_dict().items()}
