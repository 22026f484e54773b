"""Memory and time of reading and retrieving from ten thousand, a hundred thousand and a million documents.

    python -m tests.benchmarks.bench_retrieval [--sizes N ...] [--rounds N] [--retrievers NAME ...] [--model NAME]
        [--collection FOLDER]

Documents are sentences of the standard library's documentation (and of a BEIR collection, where one is given), drawn
and joined by hash. Shards hold five thousand: the smallest size has two, as a process takes more for its second one,
when all libraries are loaded. Each measurement is `anmi run --until retrieve` under a root of its own, in processes of
its own; dense retrieval takes a small encoder with random weights unless a model is named, since what is measured is
what streams, not a model. Prints, by size, the seconds of ingest and retrieve and the peak of anonymous memory of the
process that took most (medians over rounds in which the sizes take turns), the slope between neighbouring sizes in
microseconds a document, and how much the slope and the peak rise from the first to the last.
"""

from __future__ import annotations

import argparse
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil
import yaml

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import identity
from tests.models.tiny import write_tiny_bert

SIZES = (10_000, 100_000, 1_000_000)
SHARD, SENTENCES, QUERIES = 5_000, 3, 100
_EVERY_S = 0.2


@dataclass(frozen=True)
class Measured:
    """Seconds of a stage, by its name, and the peak of anonymous memory of a process, in MB."""

    seconds: dict[str, float]
    peak_mb: float


def sentences(collection: str | None) -> list[str]:
    """What documents are made of."""
    configs = [CorpusConfig()]
    if collection is not None:
        configs.append(CorpusConfig(reader="beir", path=collection, max_reject_fraction=1.0))
    texts = (text for one in configs for table in corpus.read(one).documents() for text in table["text"].to_pylist())
    return [part.strip() for text in texts for part in text.split(". ") if 30 < len(part) < 300]


def write_collection(folder: Path, parts: list[str], documents: int) -> None:
    """A collection of so many documents; of each query one is relevant."""
    (folder / "qrels").mkdir(parents=True)
    with (folder / "corpus.jsonl").open("w", encoding="utf-8") as file:
        for start in range(0, documents, SHARD):
            drawn = identity.rng("recombined", start).integers(0, len(parts), (SHARD, SENTENCES))
            for number, row in enumerate(drawn[: documents - start], start):
                text = ". ".join([parts[i] for i in row.tolist()])
                file.write(json.dumps({"_id": f"d{number}", "title": "", "text": text}) + "\n")
    with (folder / "queries.jsonl").open("w", encoding="utf-8") as file:
        for number in range(QUERIES):
            text = parts[identity.seed("query", number) % len(parts)]
            file.write(json.dumps({"_id": f"q{number}", "text": f"{text} {number}"}) + "\n")
    for split, numbers in (("train", range(0, QUERIES, 2)), ("test", range(1, QUERIES, 2))):
        lines = "".join(f"q{number}\td{number}\t1\n" for number in numbers)
        (folder / "qrels" / f"{split}.tsv").write_text("query-id\tcorpus-id\tscore\n" + lines)


def anonymous_mb(process: psutil.Process) -> float:
    """Anonymous memory that a process holds now, in MB."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("RssAnon"):
            return int(line.split()[1]) / 1024
    return 0.0


def measure(collection: Path, model: str, retrievers: Sequence[str], folder: Path) -> Measured:
    """Run ingest and retrieve over a collection, under a root that is empty."""
    config = folder / "config.yaml"
    settings = {
        "name": "bench",
        "corpus": {"reader": "beir", "path": str(collection), "shard_documents": SHARD},
        "retrieve": {"retrievers": list(retrievers), "dense": {"model": model, "max_tokens": 64}},
        "execution": {"root": str(folder / "root")},
    }
    config.write_text(yaml.safe_dump(settings))
    run = [sys.executable, "-m", "anmi_ray", "run", str(config), "--until", "retrieve"]
    peak = 0.0
    with (folder / "said").open("w+") as said, subprocess.Popen(run, stdout=said, stderr=said) as process:
        root = psutil.Process(process.pid)
        while process.poll() is None:
            try:
                peak = max(peak, *(anonymous_mb(one) for one in (root, *root.children(recursive=True))))
            except (psutil.Error, OSError):  # one of them ended meanwhile
                continue
            finally:
                time.sleep(_EVERY_S)
        if process.returncode:
            said.seek(0)
            raise SystemExit(said.read())
    timings = {path.name.split("-")[0]: path for path in (folder / "root" / "timings").iterdir()}
    return Measured({name: json.loads(path.read_text())["seconds"] for name, path in timings.items()}, peak)


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description="Memory and time of retrieval over sizes of a collection.")
    parser.add_argument("--sizes", type=int, nargs="+", default=SIZES)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--retrievers", nargs="+", default=["bm25", "dense"])
    parser.add_argument("--model")
    parser.add_argument("--collection")
    given = parser.parse_args()
    taken: dict[int, list[Measured]] = {size: [] for size in given.sizes}
    with tempfile.TemporaryDirectory(prefix="anmi-bench-") as top:
        model = given.model or str(write_tiny_bert(Path(top) / "model"))
        parts = sentences(given.collection)
        for size in given.sizes:
            write_collection(Path(top) / str(size), parts, size)
        for _, size in itertools.product(range(given.rounds), given.sizes):
            with tempfile.TemporaryDirectory(prefix="anmi-bench-") as folder:
                taken[size].append(measure(Path(top) / str(size), model, given.retrievers, Path(folder)))
            one = taken[size][-1]
            stages = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in sorted(one.seconds.items()))
            print(f"  {size:,} documents: {stages}, {one.peak_mb:.0f} MB", flush=True)
    tell(taken)


def tell(taken: dict[int, list[Measured]]) -> None:
    """Print medians, slopes, and how they rise."""
    peaks = {size: statistics.median(one.peak_mb for one in found) for size, found in taken.items()}
    totals = {size: [sum(one.seconds.values()) for one in found] for size, found in taken.items()}
    for size in taken:
        seconds = statistics.median(totals[size])
        print(f"{size:>9,} documents: {seconds:7.1f} s, {peaks[size]:6.0f} MB in the process that took most")
    slopes = []
    for few, many in itertools.pairwise(taken):
        each = [(b - a) / (many - few) for a, b in zip(totals[few], totals[many], strict=True)]
        slopes.append(statistics.median(each) * 1e6)
        print(f"from {few:,} to {many:,}: {slopes[-1]:.1f} µs a document")
    first, *_, last = taken
    if len(slopes) > 1:
        print(f"the last slope is {slopes[-1] / slopes[0]:.2f} times the first")
    print(f"the peak at {last:,} is {peaks[last] / peaks[first]:.2f} times that at {first:,}")


if __name__ == "__main__":
    main()
