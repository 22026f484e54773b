"""Settings of speed and memory that change results only by rounding: attention, checkpointing, compilation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

import torch
import transformers
from transformers.utils import is_flash_attn_2_available

from anmi_ray.core.errors import ConfigError

Attention = Literal["auto", "eager", "sdpa", "flash_attention_2"]


@contextmanager
def torch_settings(threads: int | None) -> Iterator[None]:
    """Set the process's threads (None: unchanged) inside the context, and disable cuDNN's attention on a GPU.

    cuDNN makes a plan for each new shape of a batch, which takes milliseconds, and batches of texts rarely repeat one.
    """
    before = torch.get_num_threads()
    planned = torch.backends.cuda.cudnn_sdp_enabled()
    torch.set_num_threads(threads or before)
    torch.backends.cuda.enable_cudnn_sdp(False)
    try:
        yield
    finally:
        torch.set_num_threads(before)
        torch.backends.cuda.enable_cudnn_sdp(planned)


def set_attention(
    encoder: transformers.PreTrainedModel, attention: Attention, device: torch.device, in_bfloat16: bool
) -> None:
    """Set the attention; auto: eager on a CPU, elsewhere as loaded.

    Raises ConfigError if machine or architecture do not support it.
    """
    if attention == "auto":
        if device.type != "cpu":
            return
        attention = "eager"  # faster backward pass there than the fused kernel's
    current = encoder.config._attn_implementation
    if attention == current:
        return
    place = f"execution.train.attention: {attention}"
    if attention == "flash_attention_2":
        if device.type != "cuda" or not is_flash_attn_2_available():
            why = "needs a GPU" if device.type != "cuda" else "its package flash-attn is not installed"
            raise ConfigError(why, place, "choose sdpa, which torch brings, or auto")
        if not in_bfloat16:
            raise ConfigError("needs half precision", place, "set train.precision: bfloat16, or choose sdpa")
    support = {"sdpa": "_supports_sdpa", "flash_attention_2": "_supports_flash_attn"}.get(attention)
    if not encoder._can_set_attn_implementation() or (support is not None and not getattr(encoder, support)):
        name = type(encoder).__name__
        raise ConfigError(f"{name} supports only {current}", place, f"choose {current} or auto")
    encoder.set_attn_implementation(attention)


def checkpoint_activations(encoder: transformers.PreTrainedModel) -> None:
    """Keep only the layers' inputs and compute layers again in the backward pass. Raises ConfigError if unsupported."""
    if not encoder.supports_gradient_checkpointing:
        raise ConfigError(
            f"{type(encoder).__name__} does not support it",
            "execution.train.gradient_checkpointing",
            "leave it false and lower execution.train.micro_batch_tokens",
        )
    encoder.gradient_checkpointing_enable({"use_reentrant": False})


def compile_body(encoder: transformers.PreTrainedModel, device: torch.device) -> None:
    """Compile the transformer for all shapes. Raises ConfigError without a C++ compiler on a CPU."""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise ConfigError("needs a C++ compiler", "execution.train.compile", "install g++, or leave compile false")
    encoder.base_model.compile(dynamic=True)
