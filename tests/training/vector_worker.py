"""One of two workers of test_two_workers_have_the_curve_of_one (test_vectors.py), as a process: BASE OUTPUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from anmi_ray.training.loop import train
from tests.training.test_vectors import LATE, LENT, SMALL, loaded, settings, start
from tests.training.two import joined


def main(base: str, output: str) -> None:
    """Train with both engines, and late interaction; each worker one group in parts. Rank 0 writes the losses."""
    ways = {engine: settings(loss=LENT, engine=engine, zero_stage=2) for engine in ("ddp", "deepspeed")}
    with joined(Path(output)) as rank:
        for name, config in (ways | {"late": LATE}).items():
            model, data = start(Path(base))
            trained = train(loaded(Path(base)) if name == "late" else model, data, None, config, SMALL)
            if rank == 0:
                figures = [[row["loss"], row["gradient_share"]] for row in trained.rows]
                (Path(output) / f"{name}.json").write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
