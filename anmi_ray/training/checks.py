"""Checks before the first step, whether learning rates have an effect, and errors that name the memory settings."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import GPU_IS_FULL, DataError, TrainingError
from anmi_ray.models.heads import Scorer
from anmi_ray.training.batching import effective_weights
from anmi_ray.training.curriculum import Curriculum
from anmi_ray.training.training_set import TrainingSet

Moments = dict[str, tuple[float, float]]  # sum of trained weights and of their squares, by learning rate setting
# torch's own words in a plain RuntimeError: its CPU allocator, oneDNN, C++, and libraries on a GPU
_OUT_OF_MEMORY = (
    "can't allocate memory",
    "not enough memory",
    "could not create a memory object",
    "std::bad_alloc",
    *GPU_IS_FULL,
)
# glibc's mallopt: parameter, value in training, the value that glibc would settle at
_TRIM_THRESHOLD = (-1, 2**31 - 1, 1 << 26)
_MMAP_MAX = (-4, 0, 1 << 16)
_MMAP_THRESHOLD = (-3, 1 << 25)


def before_training(data: TrainingSet, config: TrainConfig, curriculum: Curriculum) -> None:
    """Raise DataError if no negative has weight in any phase."""
    phases = [phase for phase in curriculum.phases() if phase.alpha > 0]
    if config.loss.ranking not in ("infonce", "debiased") or config.loss.in_batch or not phases:
        return
    everything = np.arange(len(data.weight_P))
    if not any(effective_weights(data, everything, phase)[data.is_negative_P].any() for phase in phases):
        raise DataError(
            f"every negative of {len(data)} lists has weight 0: {config.loss.ranking} has nothing to learn from",
            "examples",
            "loosen mine.allow and mine.weigh, lower train.curriculum.minimum_gap_elo, or learn from ratings alone: "
            "train.balance.alpha=0",
        )


@torch.no_grad()
def moments(network: Scorer, trained: Iterable[nn.Parameter]) -> Moments:
    """Sum the trained parameters in float64, by learning rate; each need be whole only while it is summed."""
    head = {id(parameter) for layer in network.head() for parameter in layer.parameters()}
    sums_by_setting: dict[str, Tensor] = {}
    for parameter in trained:
        setting = "head_learning_rate" if id(parameter) in head else "learning_rate"
        norm = torch.linalg.vector_norm(parameter, dtype=torch.float64)
        sums = torch.stack([parameter.sum(dtype=torch.float64), norm * norm])
        sums_by_setting[setting] = sums_by_setting[setting] + sums if setting in sums_by_setting else sums
    return {setting: cast(tuple[float, float], tuple(sums.tolist())) for setting, sums in sums_by_setting.items()}


def check_effect(before: Moments, after: Moments, steps: int, group: str = "train") -> None:
    """Raise TrainingError if none of the weights of a learning rate has changed in `steps` steps."""
    still = [f"{group}.{setting}" for setting, sums in before.items() if after[setting] == sums]
    if still:
        raise TrainingError(
            f"{' and '.join(still)} moved no weight in {steps} steps",
            "training",
            f"raise {' and '.join(still)}, or freeze what is not to be trained ({group}.freeze_layers)",
        )


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Let the C library keep freed memory for the next step, and return it to the system at the end.

    Otherwise it returns each large tensor at once, and the kernel clears its pages again: a seventh of a step's time on
    two cores. The peak is the same. Does nothing without glibc.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallopt") or not hasattr(library, "malloc_trim"):
        yield
        return
    for parameter, kept, _ in (_TRIM_THRESHOLD, _MMAP_MAX):
        library.mallopt(parameter, kept)
    try:
        yield
    finally:
        for parameter, _, usual in (_TRIM_THRESHOLD, _MMAP_MAX):
            library.mallopt(parameter, usual)
        library.mallopt(*_MMAP_THRESHOLD)
        library.malloc_trim(0)


def memory_remedy(config: LearnConfig, execution: TrainExecution) -> str:
    """The settings to lower if memory does not suffice, with their values."""
    knobs = [
        f"execution.train.micro_batch_tokens ({execution.micro_batch_tokens:,})",
        f"execution.train.forward_tokens ({execution.at_once:,})",
        f"{config.group}.max_tokens ({config.max_tokens:,})",
    ]
    text = f"lower {', '.join(knobs)}; the first two change no result"
    if not execution.gradient_checkpointing:
        text += "; or set execution.train.gradient_checkpointing, which takes more time"
    stage = config.zero_stage if config.engine == "deepspeed" else 0
    if stage < 3:
        text += f"; or share more among several workers ({config.group}.engine: deepspeed, {config.group}.zero_stage: "
        text += f"{stage + 1} to 3)"
    return text


@contextmanager
def memory_named(config: LearnConfig, execution: TrainExecution) -> Iterator[None]:
    """Raise TrainingError instead of errors that say that memory is exhausted."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        named = next((line for line in lines if any(word in line for word in _OUT_OF_MEMORY)), None)
        if named is None and not isinstance(error, MemoryError | torch.OutOfMemoryError):
            raise
        cause = named or (lines[0] if lines else "")
        on_gpu = isinstance(error, torch.OutOfMemoryError) or "CUDA" in cause
        message = ("the GPU's memory" if on_gpu else "memory") + " does not suffice" + (cause and f": {cause[:300]}")
        raise TrainingError(message, "training", memory_remedy(config, execution)) from error
