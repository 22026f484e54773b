"""What a comparison costs beyond its judging, at ten thousand, a hundred thousand and a million of them.

    python tests/benchmarks/bench_overhead.py [--rounds N]

The judge stage asks a judge that answers by hash: chunks planned, leased, asked and published, judgments assembled and
committed. Every bucket holds as many comparisons at each size, so what is measured is whether more of them cost more
each. Prints the seconds of each size, and the slope between neighbouring sizes, in microseconds a comparison: medians
over rounds in which the sizes take turns, each with a store of its own, after one that warms up. A slope that rises
would mean that the driver, the budget actor or the store does something once a row, or once a bucket over all buckets.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
import tempfile
import time
from pathlib import Path

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.runtime.tasks import Context, ray_session
from anmi_ray.stages import judge
from anmi_ray.store import Artifact, Store
from tests.benchmarks.bench_judging import DEGREE, DOCUMENTS, inputs, quiet

EACH = 3  # queries a bucket
COMPARISONS = EACH * DOCUMENTS * DEGREE // 2
BUCKETS = (8, 84, 834)


def measure(buckets: int, folder: Path) -> float:
    """Seconds of the judge stage over so many buckets, none of it answered before."""
    store = Store(str(folder))
    made = inputs(store, EACH * buckets, buckets)
    context = Context(store, ExecutionConfig(root=str(folder)), buckets, 0, quiet)
    config = JudgeConfig.model_validate({"judges": [{"kind": "null"}]})
    begin = time.perf_counter()
    judge.run(Artifact(store, "judge", "overhead"), made, config, context)
    return time.perf_counter() - begin


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Orchestration overhead of a comparison at three sizes.")
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    taken: dict[int, list[float]] = {buckets: [] for buckets in BUCKETS}
    with ray_session(ExecutionConfig()):
        for number in range(1 + rounds):
            for buckets in BUCKETS if number else BUCKETS[:1]:
                with tempfile.TemporaryDirectory() as folder:
                    seconds = measure(buckets, Path(folder))
                if number:
                    taken[buckets].append(seconds)
    for buckets, seconds in taken.items():
        spread = f"{min(seconds):.1f} to {max(seconds):.1f}"
        print(f"{COMPARISONS * buckets:>9,} comparisons: {statistics.median(seconds):7.1f} s ({spread})")
    slopes = []
    for few, many in itertools.pairwise(BUCKETS):
        each = [(b - a) / (COMPARISONS * (many - few)) for a, b in zip(taken[few], taken[many], strict=True)]
        slopes.append(statistics.median(each) * 1e6)
        print(f"from {COMPARISONS * few:,} to {COMPARISONS * many:,}: {slopes[-1]:.1f} µs a comparison")
    print(f"the second slope is {slopes[1] / slopes[0]:.2f} times the first")


if __name__ == "__main__":
    main()
