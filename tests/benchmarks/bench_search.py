"""Seconds of a search of a run's documents through `anmi serve`, by system, one client, one after the other.

    python -m tests.benchmarks.bench_search [RUN] [--root results] [--queries 50]

The run's first held-out queries are asked in every system that the service has, after a few that warm it. Prints the
median and the 95th percentile of a search, with HTTP and Ray Serve, as somebody who asks by hand waits for it.
"""

from __future__ import annotations

import argparse
import http.client
import json
import time
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pyarrow.compute as pc

from anmi_ray.core import environment
from anmi_ray.core.records import QUERY
from anmi_ray.store import Artifact, Store, runs
from tests.benchmarks.bench_serving import started

WARM = 5


def held_out(run: str, root: str, count: int) -> list[str]:
    """Texts of so many test queries of a run, in the order of their ids."""
    record = runs.find_run(run, root)[1]
    ingest = Artifact(Store(root), "ingest", record["stages"]["ingest"]["fingerprint"])
    texts: list[tuple[bytes, str]] = []
    for bucket in range((ingest.manifest() or {})["buckets"]):
        queries = ingest.read_part("queries", bucket, QUERY)
        queries = queries.filter(pc.equal(queries["split"], "test"))
        texts += zip(queries["query_id"].to_pylist(), queries["text"].to_pylist(), strict=True)
    return [text for _, text in sorted(texts)[:count]]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("run", nargs="?", default="quickstart")
    parser.add_argument("--root", default="results")
    parser.add_argument("--queries", type=int, default=50)
    options = parser.parse_args()
    queries = held_out(options.run, options.root, WARM + options.queries)
    with started(options.run, "--root", options.root) as (address, _):
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=300)

        def ask(method: str, path: str, body: object = None) -> Any:
            sent = None if body is None else json.dumps(body).encode()
            connection.request(method, path, sent, {"Content-Type": "application/json"})
            answer = connection.getresponse()
            found = json.loads(answer.read())
            assert answer.status == 200, found
            return found

        print(f"{options.queries} queries, {environment.hardware()['processor']}")
        for name in (one["name"] for one in ask("GET", "/v1/systems")["systems"]):
            taken: list[float] = []
            for query in queries:
                begin = time.perf_counter()
                ask("POST", "/v1/search", {"query": query, "systems": [name], "top_n": 10})
                taken.append(1e3 * (time.perf_counter() - begin))
            p50, p95 = np.percentile(taken[WARM:], [50, 95])
            print(f"{name:16} p50 {p50:7.1f} ms  p95 {p95:7.1f} ms", flush=True)


if __name__ == "__main__":
    main()
