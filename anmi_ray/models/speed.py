"""Settings of speed and memory that change results only by rounding: attention, checkpointing, compilation."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import transformers

from anmi_ray.core.errors import ConfigError


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


def set_attention(encoder: transformers.PreTrainedModel, device: torch.device) -> None:
    """Compute attention in eager form on a CPU, whose backward pass is faster than the fused kernel's."""
    if device.type == "cpu" and encoder._can_set_attn_implementation():
        encoder.set_attn_implementation("eager")


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
