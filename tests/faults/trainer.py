"""A training run as a process of its own, for test_training.py to kill: FOLDER MODE, where FOLDER holds all it reads.

Prints every step and notice as a line, and at the end writes the log of the run to FOLDER/rows.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.runtime.tasks import ray_session
from anmi_ray.stages.train.trainer import TrainSources, run_training

STEPS = {"always": 24, "seldom": 300, "last": 4}  # with a checkpoint a step, or none by the clock


def settings(folder: Path, mode: str) -> TrainConfig:
    """A tiny model for some seconds."""
    return TrainConfig(
        model=str(folder / "base"),
        max_tokens=32,
        lists_per_step=8,
        max_steps=STEPS[mode],
        learning_rate=3e-3,
        precision="float32",
        freeze_embeddings=False,
    )


def main(folder_: str, mode: str) -> None:
    """Train with a checkpoint a step (MODE `always`), or none that is due by the clock (`seldom`, `last`)."""
    folder = Path(folder_)
    examples, texts, queries = ([str(folder / f"{name}.parquet")] for name in ("examples", "texts", "queries"))
    sources = TrainSources(examples, texts, queries)
    execution = TrainExecution(checkpoint_minutes=0.0 if mode == "always" else 1000.0)
    with ray_session(ExecutionConfig(logical_cpus=2, object_store_gb=0.1)):
        result = run_training(
            sources,
            settings(folder, mode),
            execution,
            "fault",
            str(folder / "out" / "model"),
            lambda row: print(f"step {row['step']}", flush=True),
            lambda text: print(f"notice {text}", flush=True),
        )
    (folder / "rows.json").write_text(json.dumps(result.rows), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
