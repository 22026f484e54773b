"""The service at ten times what it can answer: what becomes of every request, its memory, and the first request after.

    python -m tests.benchmarks.bench_overload [--seconds 60] [--times 10]

The shipped MiniLM as late interaction, 100 documents of 128 tokens a request, the flags' defaults. The rate is measured
first, eight clients at once; then requests come at even distances, whether or not those before are answered, each on a
connection of its own.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from pathlib import Path

import numpy as np
import psutil

from anmi_ray.core import environment
from anmi_ray.models.late_interaction import LateInteraction
from tests.benchmarks.bench_serving import DOCUMENTS, MAX_TOKENS, MODEL, Asked, load, requests_of, started

CLIENTS = 8
PATIENCE_S = 600.0


def outcome(address: str, asked: Asked) -> tuple[int, float]:
    """Status, and seconds to the answer; 0 where the connection broke."""
    body = json.dumps({"query": asked.query, "documents": asked.documents}).encode()
    request = urllib.request.Request(f"{address}/v2/rerank", body, {"Content-Type": "application/json"})
    begin = time.monotonic()
    try:
        with urllib.request.urlopen(request, timeout=PATIENCE_S) as answer:
            answer.read()
            status = answer.status
    except urllib.error.HTTPError as error:
        error.read()
        status = error.code
    except OSError:
        status = 0
    return status, time.monotonic() - begin


def resident(pid: int) -> float:
    """MB of a process and of those below it."""
    found = psutil.Process(pid)
    return sum(one.memory_info().rss for one in (found, *found.children(recursive=True))) / 1e6


def crowd(address: str, asked: list[Asked], per_s: float, pid: int) -> tuple[list[tuple[int, float]], list[float]]:
    """Every request's outcome where so many come in a second, and MB of the service at each half second."""
    found: list[tuple[int, float]] = []
    sizes: list[float] = []
    threads = [threading.Thread(target=lambda one=one: found.append(outcome(address, one))) for one in asked]
    begin = time.monotonic()
    for at, thread in enumerate(threads):
        time.sleep(max(0.0, begin + at / per_s - time.monotonic()))
        thread.start()
        if time.monotonic() - begin > len(sizes) / 2:
            sizes.append(resident(pid))
    for thread in threads:
        thread.join()
    return found, sizes


def main() -> None:
    """Print what became of the requests."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--times", type=float, default=10.0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = LateInteraction.load(MODEL, max_tokens=MAX_TOKENS).export(Path(scratch) / "minilm")
        asked = requests_of(LateInteraction.load(str(folder)), 2 * CLIENTS)
        with started(str(folder)) as (address, pid):
            trial(address, asked, pid, options.seconds, options.times)


def trial(address: str, asked: list[Asked], pid: int, seconds: float, times: float) -> None:
    """Measure the rate, send the crowd, ask once more."""
    load(address, asked[:1], 1)
    _, took = load(address, asked, CLIENTS)
    per_s = len(asked) / took
    alone = outcome(address, asked[0])
    before = resident(pid)
    print(f"{environment.hardware()['processor']}: {per_s * DOCUMENTS:.0f} pairs/s, alone {alone[1]:.1f} s", flush=True)
    count = int(seconds * times * per_s)
    outcomes, sizes = crowd(address, [asked[at % len(asked)] for at in range(count)], times * per_s, pid)
    statuses = Counter(status for status, _ in outcomes)
    print(f"{count} requests in {seconds:.0f} s: {', '.join(f'{statuses[one]} of {one}' for one in sorted(statuses))}")
    for status in sorted(statuses):
        p50, p99 = np.percentile([taken for one, taken in outcomes if one == status], [50, 99])
        print(f"  {status}: p50 {p50:.2f} s, p99 {p99:.2f} s")
    print(f"memory: {before:.0f} MB before, {max(sizes):.0f} at most, {resident(pid):.0f} after")
    after = outcome(address, asked[0])
    print(f"the first request after the last answer: {after[0]}, {after[1]:.1f} s")


if __name__ == "__main__":
    main()
