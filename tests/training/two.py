"""Two workers on this machine: two processes that join by a file in OUTPUT, as `python -m` runs this module."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
from pathlib import Path

import torch.distributed as dist

# Every way to carry out a step: engine and ZeRO stage.
WAYS = {"ddp": ("ddp", 0)} | {f"zero-{stage}": ("deepspeed", stage) for stage in range(4)}


def two_workers(module: str, base: Path, output: Path) -> None:
    """Call `work(base, output, rank)` of a module in two processes at once, as ranks 0 and 1, until both have ended."""
    processes = [
        subprocess.Popen(
            [sys.executable, "-m", __name__, module, str(base), str(output)],
            env=os.environ | {"RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_RANK": str(rank)},
        )
        for rank in range(2)
    ]
    assert [process.wait(timeout=500) for process in processes] == [0, 0]


def main(module: str, base: str, output: str) -> None:
    """One of the two processes."""
    rank, store = int(os.environ["RANK"]), dist.FileStore(f"{output}/store", 2)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=2)
    importlib.import_module(module).work(Path(base), Path(output), rank)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
