"""Out of memory is one error that names what to lower."""

from __future__ import annotations

import ctypes
import multiprocessing
import resource
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import TrainingError
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.training.checks import memory_named
from anmi_ray.training.loop import train
from tests.models.tiny import write_tiny_bert
from tests.training.lists import planted
from tests.training.test_loop import CONFIG

KNOBS = ("execution.train.micro_batch_tokens", "execution.train.forward_tokens", "train.max_tokens", "train.zero_stage")


def on_a_gpu() -> None:
    raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB.")


FULL: list[Callable[[], object]] = [lambda: torch.empty(1 << 50), lambda: bytearray(1 << 60), on_a_gpu]


@pytest.mark.parametrize("allocate", FULL)
def test_every_kind_names_the_settings(allocate: Callable[[], object]) -> None:
    with (
        pytest.raises(TrainingError, match="memory does not suffice") as caught,
        memory_named(TrainConfig(), TrainExecution()),
    ):
        allocate()
    assert [knob for knob in KNOBS if knob not in str(caught.value.remedy)] == []


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="shape"), memory_named(TrainConfig(), TrainExecution()):
        torch.zeros(2).view(3)


@pytest.mark.gpu
def test_a_full_gpu_names_the_settings() -> None:
    with pytest.raises(TrainingError, match="GPU's memory"), memory_named(TrainConfig(), TrainExecution()):
        torch.empty(1 << 46, device="cuda")


@contextmanager
def at_most(more: int) -> Iterator[None]:
    """This process may take so many bytes more of address space."""
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + more, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))


def train_in_little_memory(folder: str) -> tuple[str, int]:
    """The remedy where a step takes all lists at once, and the steps taken where it takes a few at a time."""
    config = CONFIG.model_copy(update={"lists_per_step": 600, "max_steps": 2})
    model = CrossEncoder.load(folder, pooling=config.pooling, max_tokens=32, seed=0)
    data = planted(lists=600).lists(model.pairs)
    large = TrainExecution(micro_batch_tokens=1 << 20, forward_tokens=1 << 20)
    with at_most(128 << 20), pytest.raises(TrainingError, match="memory does not suffice") as caught:
        train(model, data, None, config, large)
    model = CrossEncoder.load(folder, pooling=config.pooling, max_tokens=32, seed=0)
    small = TrainExecution(micro_batch_tokens=512, forward_tokens=512)
    with at_most(128 << 20):
        rows = train(model, data, None, config, small).rows
    return str(caught.value.remedy), len(rows)


@pytest.mark.slow
def test_a_step_that_does_not_fit_on_this_machine_names_the_settings(tmp_path: Path) -> None:
    folder = str(write_tiny_bert(tmp_path))
    # a process of its own: what earlier tests freed here may still be the process's, and a limit does not count it
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        remedy, steps = pool.submit(train_in_little_memory, folder).result()
    assert "execution.train.micro_batch_tokens (1,048,576)" in remedy
    assert steps == 2


# Page faults of ten tensors of 64 MB, one after another, outside and within, and the memory held within and after.
_FAULTS = """
import resource, torch
from anmi_ray.training.checks import freed_memory_kept

def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(10):
        torch.ones(1 << 24)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def held():
    return int(open("/proc/self/statm").read().split()[1]) * resource.getpagesize()

outside = faults()
with freed_memory_kept():
    faults()
    within = faults()
    kept = held()
print(outside, within, kept, held())
"""


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(ctypes.CDLL(None), "mallopt"), reason="another C library than glibc")
def test_freed_memory_is_kept_while_training_and_given_back_after() -> None:
    told = subprocess.run([sys.executable, "-c", _FAULTS], capture_output=True, text=True, check=True).stdout
    outside, within, kept, after = map(int, told.split())
    assert within < outside / 10
    assert after < kept - (1 << 25)
