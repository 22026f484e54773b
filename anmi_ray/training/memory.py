"""The memory of training: kept from step to step, and where it ends, one error that names the settings to lower."""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.train import TrainExecution
from anmi_ray.core.errors import GPU_IS_FULL, TrainingError

# What torch says in a plain RuntimeError: its allocator on a CPU, oneDNN, C++ itself, and libraries on a GPU.
_WORDS = (
    "can't allocate memory",
    "not enough memory",
    "could not create a memory object",
    "std::bad_alloc",
    *GPU_IS_FULL,
)


# Of glibc's mallopt: what a parameter is called, its value in training, and the one that glibc itself would settle at.
_TRIM_THRESHOLD = (-1, 2**31 - 1, 1 << 26)
_MMAP_MAX = (-4, 0, 1 << 16)
_MMAP_THRESHOLD = -3
_USUAL_MMAP_THRESHOLD = 1 << 25


@contextmanager
def freed_memory_kept() -> Iterator[None]:
    """Have the C library keep what is freed for the next step; at the end the system gets it back.

    It would return each large tensor at once, and the kernel would clear its pages again for the next: 100,000 page
    faults a second, a seventh of the time of a step on two cores. The peak is the same. Does nothing beside glibc.
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
        library.mallopt(_MMAP_THRESHOLD, _USUAL_MMAP_THRESHOLD)
        library.malloc_trim(0)


def remedy(config: LearnConfig, execution: TrainExecution) -> str:
    """What to lower where memory does not suffice, with the values that were too much."""
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
    """Raise TrainingError in the place of what says that memory cannot be had."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        by_kind = isinstance(error, MemoryError | torch.OutOfMemoryError)
        if not by_kind and not any(word in str(error) for word in _WORDS):
            raise
        raise _out_of_memory(error, config, execution) from error


def _out_of_memory(error: BaseException, config: LearnConfig, execution: TrainExecution) -> TrainingError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    what = next((line for line in lines if any(word in line for word in _WORDS)), lines[0] if lines else "")
    where = "the GPU's memory" if isinstance(error, torch.OutOfMemoryError) or "CUDA" in what else "memory"
    message = f"{where} does not suffice" + (f": {what[:300]}" if what else "")
    return TrainingError(message, "training", remedy(config, execution))
