"""A training with TensorBoard that kills itself before row DIE_AT can be checkpointed: BASE FOLDER DIE_AT."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

from anmi_ray.training.loop import Row, train
from anmi_ray.training.tracking import open_curves
from tests.training.folder import FolderCheckpoints
from tests.training.test_loop import CONFIG, EXECUTION, dev_set, start


def main(base: str, folder: str, die_at: int) -> None:
    """Checkpoints after every step; the row of step `die_at` is written, then the process is gone."""
    curves = open_curves(("tensorboard",), "f1", Path(folder) / "curves", {})

    def on_row(row: Row) -> None:
        curves(row)
        if row["step"] == die_at:
            os.kill(os.getpid(), signal.SIGKILL)

    model, data = start(Path(base))
    execution = EXECUTION.model_copy(update={"checkpoint_minutes": 0.0})
    checkpoints = FolderCheckpoints(Path(folder) / "checkpoints")
    train(model, data, dev_set(model)[0], CONFIG, execution, checkpoints, on_row)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
