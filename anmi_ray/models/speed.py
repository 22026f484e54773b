"""How a network computes, which changes no result beyond rounding: attention, checkpointing, compilation."""

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
    """Set for a while how the whole process computes, and put it back: on so many threads (None: as many as it has).

    On a GPU without cuDNN's attention, which torch prefers on an H100: it makes a plan for every new shape of a batch,
    milliseconds each time, and batches of texts hardly repeat theirs.
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
    """Choose the attention; auto: plain matrix products on a CPU, elsewhere as the model was loaded.

    Raises ConfigError where the machine or the architecture has not the one that is asked for.
    """
    if attention == "auto":
        if device.type != "cpu":
            return
        # The fused kernel's backward pass is slower than plain matrix products there: by .7 in bfloat16.
        attention = "eager"
    current = encoder.config._attn_implementation
    if attention == current:
        return
    place = f"execution.train.attention: {attention}"
    if attention == "flash_attention_2":
        if device.type != "cuda" or not is_flash_attn_2_available():
            why = "needs a GPU" if device.type != "cuda" else "its package flash-attn is not installed"
            raise ConfigError(why, place, "choose sdpa, which torch brings, or auto")
        if not in_bfloat16:
            raise ConfigError(
                "computes in half precision alone", place, "set train.precision: bfloat16, or choose sdpa"
            )
    support = {"sdpa": "_supports_sdpa", "flash_attention_2": "_supports_flash_attn"}.get(attention)
    if not encoder._can_set_attn_implementation() or (support is not None and not getattr(encoder, support)):
        name = type(encoder).__name__
        raise ConfigError(f"{name} computes attention by {current} alone", place, f"choose {current} or auto")
    encoder.set_attn_implementation(attention)


def checkpoint_activations(encoder: transformers.PreTrainedModel) -> None:
    """Keep the layers' inputs alone and compute each layer again going backward; ConfigError where it cannot be."""
    if not encoder.supports_gradient_checkpointing:
        raise ConfigError(
            f"{type(encoder).__name__} cannot compute its layers twice",
            "execution.train.gradient_checkpointing",
            "leave it false and lower execution.train.micro_batch_tokens",
        )
    encoder.gradient_checkpointing_enable({"use_reentrant": False})


def compile_body(encoder: transformers.PreTrainedModel, device: torch.device) -> None:
    """Compile the transformer, for all shapes at once. Raises ConfigError where a CPU has no C++ compiler."""
    if device.type == "cpu" and not any(map(shutil.which, ("g++", "c++", "clang++"))):
        raise ConfigError("needs a C++ compiler", "execution.train.compile", "install g++, or leave compile false")
    encoder.base_model.compile(dynamic=True)
