"""Low-rank adapters (LoRA, arXiv:2106.09685) through peft: W + (α/r) B A, with W as it was and A, B trained.

They are put into the transformer itself, whose class and forward stay; `merged` gives the plain model back.
"""

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
    """Put adapters on linear layers of the transformer; they and the head are trained, all else stays as it is.

    New weights come from torch's generator. Raises ConfigError where peft is absent or no layer has a target's name.
    """
    layers = _linear_layers(network)
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
    """Whether `network` holds adapters."""
    return any(is_adapter(name) for name, _ in network.named_parameters())


def is_adapter(name: str) -> bool:
    """Whether a parameter or module of this name belongs to an adapter."""
    return _PART in name


def is_adapter_input(name: str) -> bool:
    """Whether a parameter of this name is the A of an adapter B A: drawn at random, where B starts at 0."""
    return f"{_PART}A" in name


def merged(network: Scorer) -> Scorer:
    """A copy of `network` with its adapters added to the weights, in float32 as they are; the copy is a plain model."""
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


def _linear_layers(network: Scorer) -> list[str]:
    """Names of the linear layers inside the transformer's layers."""
    inside = {id(module) for layer in transformer_layers(network.encoder) for module in layer.modules()}
    return [
        name
        for name, module in network.encoder.named_modules()
        if isinstance(module, nn.Linear) and id(module) in inside
    ]


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
