"""What judging costs without judges: questions read, looked up, answered by hash, committed and read back, end to end.

    python tests/benchmarks/bench_judging.py [COMPARISONS ...]

Prints judgments per second of the judge stage on this machine's cores for each number of comparisons, first with an
empty answer log, then with a full one; and the peak memory (PSS) of Ray and its workers, which must not follow the
number of comparisons.
"""

from __future__ import annotations

import sys
import tempfile
import threading
import time
from pathlib import Path

import numpy as np
import psutil
import pyarrow as pa

from anmi_ray.comparisons.graph import k_regular
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.judge import JudgeConfig
from anmi_ray.core.identity import comparison_id, doc_id, id_array, query_id, rng, text_hash
from anmi_ray.core.records import CANDIDATE, COMPARISON, QUERY, TEXT_OF
from anmi_ray.runtime.tasks import Context, ray_session
from anmi_ray.stages import judge
from anmi_ray.store import Artifact, Store

DOCUMENTS, DEGREE, PER_BUCKET = 100, 8, 250
WORDS = ("what", "is", "asked", "of", "a", "document", "that", "answers", "the", "query", "in", "three", "words")


def inputs(store: Store, queries: int, buckets: int, documents: int = DOCUMENTS) -> dict[str, Artifact]:
    """Artifacts of ingest, retrieve and compare with so many queries of so many candidates each."""
    made = {name: Artifact(store, name, "bench") for name in ("ingest", "retrieve", "compare")}
    graphs = [np.asarray(k_regular(documents, DEGREE, rng("bench", i))) for i in range(20)]
    for bucket in range(buckets):
        rows = range(bucket * queries // buckets, (bucket + 1) * queries // buckets)
        ids = {q: sorted(doc_id(f"{q}/{d}") for d in range(documents)) for q in rows}
        _publish(made, bucket, ids, {q: graphs[q % len(graphs)] for q in rows})
    return made


def _publish(
    made: dict[str, Artifact], bucket: int, ids: dict[int, list[bytes]], graphs: dict[int, np.ndarray]
) -> None:
    names = [f"query {q} {' '.join(WORDS[q % 7 :])}" for q in ids]
    queries = [query_id(str(q)) for q in ids]
    documents = [d for docs in ids.values() for d in docs]
    count = len(documents)
    each = count // len(ids)
    texts = [f"{d.hex()} {' '.join(WORDS * 3)}" for d in documents]
    pairs = [(query_id(str(q)), ids[q][min(e)], ids[q][max(e)]) for q in ids for e in graphs[q].tolist()]
    repeated = [q for q in queries for _ in range(each)]
    tables = {
        ("ingest", "queries", QUERY): {
            "query_id": queries, "external_id": names, "text": names, "text_hash": [text_hash(n) for n in names],
            "split": ["train"] * len(names),
        },
        ("retrieve", "texts", TEXT_OF): {
            "doc_id": documents, "external_id": [d.hex() for d in documents],
            "text_hash": [text_hash("", text) for text in texts], "title": [""] * count, "text": texts,
        },
        ("retrieve", "candidates", CANDIDATE): {
            "query_id": repeated, "doc_id": documents, "source": ["retrieved"] * count, "is_positive": [False] * count,
            "rank": list(range(1, each + 1)) * len(names), "fused_score": [0.5] * count,
            "retriever_ranks": pa.array([[] for _ in documents], CANDIDATE.schema.field("retriever_ranks").type),
            "similarity": [0.5] * count,
        },
        ("compare", "comparisons", COMPARISON): {
            "comparison_id": [comparison_id(*pair) for pair in pairs], "query_id": id_array(p[0] for p in pairs),
            "doc_a": id_array(p[1] for p in pairs), "doc_b": id_array(p[2] for p in pairs),
            "round": [0] * len(pairs), "design": ["k-regular"] * len(pairs),
        },
    }  # fmt: skip
    for (stage, part, record), columns in tables.items():
        made[stage].publish_part(part, bucket, record.table(columns), record)


def quiet(done: int, total: int, unit: str = "buckets", note: str = "") -> None:
    """Shows nothing."""


class Peak:
    """Largest proportional set size of this process and all below it, sampled every half second."""

    def __init__(self) -> None:
        self.bytes, self._stop = 0, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while not self._stop.wait(0.5):
            total = 0
            for process in (me, *me.children(recursive=True)):
                try:
                    total += process.memory_full_info().pss
                except psutil.Error:
                    continue
            self.bytes = max(self.bytes, total)


def measure(comparisons: int, folder: Path) -> None:
    """Print one line for an empty and one for a full answer log."""
    queries = comparisons // (DOCUMENTS * DEGREE // 2)
    buckets = 1 << max(2, (queries // PER_BUCKET).bit_length())
    execution = ExecutionConfig(root=str(folder), buckets=buckets)
    store = Store(str(folder))
    made = inputs(store, queries, buckets)
    config = JudgeConfig.model_validate({"judges": [{"kind": "null"}]})
    context = Context(store, execution, buckets, 0, quiet)
    with ray_session(execution):
        judge.run(Artifact(store, "judge", "warm"), made, config.model_copy(update={"retry_passes": 0}), context)
        for name in store.tree("answers"):
            (folder / "answers" / name).unlink()
        for what in ("asked", "held"):
            with Peak() as peak:
                begin = time.perf_counter()
                judge.run(Artifact(store, "judge", what), made, config, context)
                seconds = time.perf_counter() - begin
            print(
                f"{comparisons:>9,} comparisons, {what:5}: {2 * comparisons / seconds:>9,.0f} judgments/s, "
                f"{seconds:.1f} s, peak {peak.bytes / 2**30:.2f} GiB",
                flush=True,
            )


def main() -> None:
    """Print the figures."""
    for comparisons in [int(word) for word in sys.argv[1:]] or [100_000, 2_000_000]:
        with tempfile.TemporaryDirectory() as folder:
            measure(comparisons, Path(folder))


if __name__ == "__main__":
    main()
