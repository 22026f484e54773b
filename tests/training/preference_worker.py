"""One of two workers of test_preferences' test_two_workers_have_the_curve_of_one, a process of its own: BASE OUTPUT."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from tests.training.test_preferences import run, ways
from tests.training.two import joined


def main(base: str, output: str) -> None:
    """Train in every way and let rank 0 write the losses and the dev measure."""
    with joined(Path(output)) as rank:
        for name, config in ways().items():
            trained = run(Path(base), config)
            if rank == 0:
                found = {"loss": [row["loss"] for row in trained.rows], "dev": trained.dev}
                (Path(output) / f"{name}.json").write_text(json.dumps(found), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
