"""Two workers on this machine: two processes that join by a file in OUTPUT."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

# Every way to carry out a step: engine and ZeRO stage.
WAYS = {"ddp": ("ddp", 0)} | {f"zero-{stage}": ("deepspeed", stage) for stage in range(4)}


def two_workers(module: str, base: Path, output: Path) -> None:
    """Run `python -m module BASE OUTPUT` twice at once, as ranks 0 and 1, until both have ended well."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", module, str(base), str(output)],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=500) for process in processes] == [0, 0]


@contextmanager
def joined(output: Path) -> Iterator[int]:
    """Inside such a process: its rank, while it is one of the group."""
    rank = int(os.environ["RANK"])
    dist.init_process_group("gloo", store=dist.FileStore(str(output / "store"), 2), rank=rank, world_size=2)
    yield rank
    dist.barrier()
    dist.destroy_process_group()
