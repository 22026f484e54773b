"""A cross-encoder's ONNX files against its own weights in torch: the same pairs, batches and threads, in one run.

    python tests/benchmarks/bench_onnx.py [PAIRS]

Prints pairs per second of each (the median of five passes, taken in turns) and the ratio to torch in float32.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from anmi_ray.core import environment
from anmi_ray.models import onnx_files
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.reranker import Reranker
from tests.benchmarks.bench_scoring import MAX_TOKENS, MODEL, PASSES, pairs


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    threads = environment.cores()
    queries, documents = pairs(count)
    model = CrossEncoder.load(MODEL, max_tokens=MAX_TOKENS, seed=0, threads=threads)
    with tempfile.TemporaryDirectory() as scratch:
        models: dict[str, Reranker] = {"torch, float32": model}
        for numbers in onnx_files.FILES:
            file = onnx_files.write(model, Path(scratch), numbers)
            models[f"ONNX, {numbers}"] = onnx_files.reading(model, file)
        seconds: dict[str, list[float]] = {name: [] for name in models}
        found: dict[str, np.ndarray] = {}
        for _ in range(1 + PASSES):  # the first pass warms up
            for name, one in models.items():
                begin = time.perf_counter()
                found[name] = one.score(queries, documents)
                seconds[name].append(time.perf_counter() - begin)
    print(f"{count} pairs of at most {MAX_TOKENS} tokens, {threads} threads, {environment.hardware()['processor']}")
    own = next(iter(models))
    for name, values in seconds.items():
        ratio = statistics.median(a / b for a, b in zip(seconds[own][1:], values[1:], strict=True))
        apart = np.abs(found[name] - found[own]).max() / found[own].std()
        rate = count / statistics.median(values[1:])
        print(f"{name:16} {rate:8.1f} pairs/s  {ratio:5.2f} x  scores within {apart:.1e} sd")


if __name__ == "__main__":
    main()
