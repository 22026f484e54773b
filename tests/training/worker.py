"""One of two workers of test_two_workers_have_the_curve_of_one, as a process of its own: BASE OUTPUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from anmi_ray.training.loop import train
from tests.training.test_loop import EXECUTION, start, ways
from tests.training.two import joined


def main(base: str, output: str) -> None:
    """Train in every way and let rank 0 write the losses."""
    with joined(Path(output)) as rank:
        for name, config in ways().items():
            trained = train(*start(Path(base), config), None, config, EXECUTION)
            if rank == 0:
                losses = [row["loss"] for row in trained.rows]
                (Path(output) / f"{name}.json").write_text(json.dumps(losses), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
