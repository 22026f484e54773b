"""Low-rank adapters (LoRA, arXiv:2106.09685) through peft: W + (α/r) B A with A and B trained, W frozen."""

from __future__ import annotations

import copy
import warnings
from typing import Any

from torch import nn

from anmi_ray.config.learning import LoraConfig
from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError
from anmi_ray.models.heads import Scorer, transformer_layers

_PART = "lora_"


def add_adapters(network: Scorer, config: LoraConfig) -> None:
    """Add adapters to linear layers of the transformer, and freeze all but them and the head.

    New weights come from torch's generator. Raises ConfigError if peft is missing or a target is not a layer.
    """
    inside = {id(module) for layer in transformer_layers(network.encoder) for module in layer.modules()}
    modules = network.encoder.named_modules()
    layers = [name for name, module in modules if isinstance(module, nn.Linear) and id(module) in inside]
    short = {name.rpartition(".")[2] for name in layers}
    if unknown := sorted(set(config.targets or ()) - short):
        raise ConfigError(
            f"the model has no linear layer {', '.join(unknown)} to adapt",
            "train.lora.targets",
            f"choose among {', '.join(sorted(short))}, or leave it out for all",
        )
    names = [name for name in layers if not config.targets or name.rpartition(".")[2] in config.targets]
    peft = _peft()
    settings = peft.LoraConfig(r=config.rank, lora_alpha=config.alpha, target_modules=names, bias="none")
    peft.inject_adapter_in_model(settings, network.encoder)
    for layer in network.head():
        layer.requires_grad_(True)


def is_adapted(network: nn.Module) -> bool:
    """Return whether `network` has adapters."""
    return any(is_adapter(name) for name, _ in network.named_parameters())


def is_adapter(name: str) -> bool:
    """Return whether a parameter or module of this name belongs to an adapter."""
    return _PART in name


def is_adapter_input(name: str) -> bool:
    """Return whether a parameter of this name is the A of an adapter B A: drawn at random, while B starts at 0."""
    return f"{_PART}A" in name


def merged(network: Scorer) -> Scorer:
    """Copy `network` with its adapters added to the weights; the copy is a plain model."""
    whole = copy.deepcopy(network)
    for name, module in list(whole.named_modules()):
        if hasattr(module, "base_layer") and hasattr(module, "merge"):
            module.merge()  # type: ignore[operator]
            parent, _, last = name.rpartition(".")
            setattr(whole.get_submodule(parent), last, module.base_layer)
    for mark in ("peft_config", "_hf_peft_config_loaded"):
        if mark in vars(whole.encoder):
            delattr(whole.encoder, mark)
    return whole


def _peft() -> Any:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            import peft  # pyright: ignore[reportMissingImports]

            return peft
    except ImportError as error:
        raise ConfigError(
            f"peft cannot be imported: {error}", "train.lora", f"{environment.install('lora')}, or leave lora out"
        ) from error
