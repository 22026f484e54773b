"""Training in a task, whose process is kept for the next one, in the place of the six that Ray Train starts for each.

For runs whose tests say nothing of Ray Train: what starting it costs is most of their time. The job, the loop and what
becomes of the model are the product's; there are no checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import ray
import torch.distributed as dist

from anmi_ray.stages.train import trainer


class NoCheckpoints:
    """Nothing is kept: what a task trains is not gone on with."""

    def __init__(self, _storage: str, _stack: ExitStack, before: Callable[[], None]) -> None:
        self._before = before

    def names(self) -> list[str]:
        """None."""
        return []

    def open(self, name: str) -> Path:
        """Nobody opens what is not there."""
        raise AssertionError(name)

    def save(self, _write: Callable[[Path], None], _step: int, _dev: float | None) -> None:
        """Curves alone are brought into safety."""
        self._before()

    def wanted(self) -> bool:
        """Nobody tells a task of what will be stopped."""
        return False


def carry_out(job: trainer.Job) -> None:
    """What the only worker of a training does."""
    if not dist.is_initialized():
        dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    with mock.patch.multiple(trainer, RayCheckpoints=NoCheckpoints, get_device=lambda: "cpu"):
        trainer._work({"job": job})


class InOneTask:
    """What `trainer._trainer` makes, of one worker."""

    def __init__(self, job: trainer.Job, _storage: str, _name: str) -> None:
        assert job.execution.num_workers == 1
        assert not job.execution.use_gpu
        self._job = job

    def fit(self) -> None:
        """Train, and return when it is done."""
        task: Any = ray.remote(max_retries=0, scheduling_strategy="DEFAULT")(carry_out)
        ray.get(task.remote(self._job))


def replace_ray_train(patch: pytest.MonkeyPatch) -> None:
    """Trainings of runs that this process drives are each one task, as long as the patch is there."""
    patch.setattr(trainer, "_trainer", InOneTask)


@contextmanager
def in_one_task() -> Iterator[None]:
    """`replace_ray_train` while inside."""
    with pytest.MonkeyPatch.context() as patch:
        replace_ray_train(patch)
        yield
