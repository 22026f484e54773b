"""One of two workers of test_two_workers_save_together_and_others_go_on, as a process of its own: BASE OUTPUT."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import torch.distributed as dist

from anmi_ray.training.loop import Row, train
from tests.training.folder import FolderCheckpoints
from tests.training.test_checkpoints import EVERY_STEP, SELDOM, settings
from tests.training.test_loop import start
from tests.training.two import joined


def main(base: str, output: str) -> None:
    """Train thrice with a checkpoint a step, then with SIGTERM to the second worker after step 4."""
    folder = Path(output)
    with joined(folder) as rank:
        losses: list[list[float]] = []
        for engine, stage in (("ddp", 0), ("deepspeed", 0), ("deepspeed", 2)):
            model, data = start(Path(base), settings(engine, stage))
            checkpoints = FolderCheckpoints(folder / f"{engine}-{stage}")
            trained = train(model, data, None, settings(engine, stage), EVERY_STEP, checkpoints)
            losses.append([float(row["loss"] or 0.0) for row in trained.rows])
        if rank == 0:
            (folder / "losses.json").write_text(json.dumps(losses[0]), encoding="utf-8")

        pids: list[int] = [0, 0]
        dist.all_gather_object(pids, os.getpid())

        def on_row(row: Row) -> None:
            if row["step"] == 4:
                os.kill(pids[1], signal.SIGTERM)

        model, data = start(Path(base), settings("ddp"))
        trained = train(model, data, None, settings("ddp"), SELDOM, FolderCheckpoints(folder / "sigterm"), on_row)
        assert len(trained.rows) == 12


if __name__ == "__main__":
    main(*sys.argv[1:])
