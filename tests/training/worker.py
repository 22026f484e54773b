"""One of two workers of test_two_workers_have_the_curve_of_one, as a process of its own: BASE OUTPUT ENGINE."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import torch.distributed as dist

from anmi_ray.training.loop import train
from tests.training.test_loop import CONFIG, EXECUTION, start


def main(base: str, output: str, engine: str) -> None:
    """Train and let rank 0 write the losses."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    store = dist.FileStore(str(Path(output) / f"{engine}-store"), world)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world)
    config = CONFIG.model_copy(update={"engine": engine, "zero_stage": 2 if engine == "deepspeed" else 0})
    model, data = start(Path(base), config)
    trained = train(model, data, None, config, EXECUTION)
    if rank == 0:
        losses = [row["loss"] for row in trained.rows]
        (Path(output) / f"{engine}.json").write_text(json.dumps(losses), encoding="utf-8")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
