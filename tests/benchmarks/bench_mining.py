"""What mining costs: the mine stage over rated queries of 100 candidates, end to end, from Parquet to Parquet.

    python -m tests.benchmarks.bench_mining [--queries 100000] [RULE ...]

Prints seconds on this machine's cores and the peak memory (PSS) of Ray and its workers for each composition. Ratings
are drawn, not fitted: mining does not see the difference.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import numpy as np
import pyarrow as pa

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.mine import MineConfig
from anmi_ray.core import identity
from anmi_ray.core.records import CANDIDATE, FIT, GAP, RATING
from anmi_ray.core.schema import Record
from anmi_ray.runtime.tasks import Context, ray_session
from anmi_ray.stages import mine
from anmi_ray.store import Artifact, Store
from tests.benchmarks.bench_judging import Peak, quiet

DOCUMENTS, PER_BUCKET = 100, 400


def inputs(store: Store, queries: int, buckets: int) -> dict[str, Artifact]:
    """Artifacts of rate and retrieve: so many queries of DOCUMENTS candidates, the best of each a known positive."""
    made = {name: Artifact(store, name, "bench") for name in ("rate", "retrieve")}
    for bucket in range(buckets):
        size = (bucket + 1) * queries // buckets - bucket * queries // buckets
        for (stage, part, record), columns in _tables(size, identity.rng("bench", bucket)).items():
            made[stage].publish_part(part, bucket, record.table(columns), record)
    return made


def _tables(size: int, rng: np.random.Generator) -> dict[tuple[str, str, Record], dict[str, object]]:
    rows = size * DOCUMENTS
    query_ids = rng.integers(0, 256, (size, 16), dtype=np.uint8)
    query_ids = query_ids[identity.id_order(query_ids)]
    documents = rng.integers(0, 256, (rows, 16), dtype=np.uint8)
    owner = np.repeat(np.arange(size), DOCUMENTS)
    documents = documents[identity.id_order(query_ids[owner], documents)]
    latent = rng.normal(size=(size, DOCUMENTS))
    latent = (latent - latent.mean(axis=1, keepdims=True)).ravel()
    best = np.arange(size) * DOCUMENTS + latent.reshape(size, DOCUMENTS).argmax(axis=1)
    rest = np.setdiff1d(np.arange(rows), best)
    elo = 277.21 * latent
    return {
        ("retrieve", "candidates", CANDIDATE): {
            "query_id": query_ids[owner], "doc_id": documents, "source": pa.array(["retrieved"]).take(owner * 0),
            "is_positive": np.isin(np.arange(rows), best),
            "rank": np.tile(np.arange(1, DOCUMENTS + 1, dtype=np.int32), size), "fused_score": rng.random(rows),
            "retriever_ranks": pa.array([[]] * rows, CANDIDATE.schema.field("retriever_ranks").type),
            "similarity": rng.random(rows),
        },
        ("rate", "ratings", RATING): {
            "query_id": query_ids[owner], "doc_id": documents, "rating_elo": elo, "std_err_elo": np.full(rows, 90.0),
            "latent": latent, "games": np.full(rows, 24.0), "component": np.zeros(rows, dtype=np.int32),
        },
        ("rate", "gaps", GAP): {
            "query_id": query_ids[owner[rest]], "anchor_id": documents[best[owner[rest]]], "doc_id": documents[rest],
            "gap_elo": elo[best[owner[rest]]] - elo[rest], "gap_se_elo": rng.uniform(90.0, 200.0, len(rest)),
            "anchor_kind": pa.array(["known"]).take(owner[rest] * 0),
        },
        ("rate", "fits", FIT): {
            **{field.name: np.ones(size, dtype=field.type.to_pandas_dtype()) for field in FIT.schema
               if not pa.types.is_fixed_size_binary(field.type) and not pa.types.is_string(field.type)},
            "query_id": query_ids, "estimate": ["mean"] * size,
        },
    }  # fmt: skip


def measure(queries: int, rules: list[str], folder: Path) -> None:
    """Print one line a composition."""
    buckets = 1 << max(2, (queries // PER_BUCKET).bit_length())
    execution = ExecutionConfig(root=str(folder), buckets=buckets)
    store = Store(str(folder))
    made = inputs(store, queries, buckets)
    context = Context(store, execution, buckets, 0, quiet)
    with ray_session(execution):
        warm = Context(store, execution, 2, 0, quiet)
        mine.run(Artifact(store, "mine", "warm"), made, MineConfig(), warm)
        for rule in rules:
            with Peak() as peak:
                begin = time.perf_counter()
                facts = mine.run(Artifact(store, "mine", rule), made, MineConfig(rule=rule), context)
                seconds = time.perf_counter() - begin
            out = sum(flow.rows_out for flow in facts["flows"])
            print(
                f"{queries:,} queries x {DOCUMENTS}, {rule}: {seconds:.1f} s, {out:,} queries with examples, "
                f"peak {peak.bytes / 2**30:.2f} GiB",
                flush=True,
            )


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--queries", type=int, default=100_000)
    parser.add_argument("rules", nargs="*", default=["posterior", "simans", "percentile", "gaussian-mixture"])
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        measure(given.queries, given.rules, Path(folder))


if __name__ == "__main__":
    main()
