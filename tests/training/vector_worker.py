"""One of two workers of test_two_workers_have_the_curve_of_one (test_vectors.py), as a process: BASE OUTPUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from anmi_ray.training.loop import train
from tests.training.test_vectors import LENT, SMALL, settings, start
from tests.training.two import joined


def main(base: str, output: str) -> None:
    """Train with both engines, each worker one group in parts, and let rank 0 write the losses."""
    with joined(Path(output)) as rank:
        for engine, stage in (("ddp", 0), ("deepspeed", 2)):
            config = settings(loss=LENT, engine=engine, zero_stage=stage)
            trained = train(*start(Path(base)), None, config, SMALL)
            if rank == 0:
                figures = [[row["loss"], row["gradient_share"]] for row in trained.rows]
                (Path(output) / f"{engine}.json").write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
