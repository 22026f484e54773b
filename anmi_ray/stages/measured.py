"""What a run's rankings are worth, query by query, from its artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.experiment import Experiment
from anmi_ray.evaluation import measures
from anmi_ray.records import QREL, RUN
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank import SYSTEM
from anmi_ray.store import Artifact, Store

STARTS = ("bm25", "dense", "hybrid")  # systems of retrieve


def per_query(one: Experiment, record: Mapping[str, Any], measure: str, system: str = SYSTEM) -> dict[str, float]:
    """A measure of one system of a run by test query, in hexadecimal; not fused with anything.

    `record` is the run's, complete up to rerank, or up to retrieve for systems of the first stage.
    """
    store = Store(one.execution.root)
    stages = {name: Artifact(store, name, record["stages"][name]["fingerprint"]) for name in record["stages"]}
    runs, qrels = [], []
    for bucket in range(store.buckets(one.execution.buckets)):
        asked = queries_of(stages["ingest"], bucket, "test")
        rows = stages["retrieve" if system in STARTS else "rerank"].read_part("runs", bucket, RUN)
        runs.append(of_queries(rows.filter(pc.equal(rows["system"], system)), asked))
        qrels.append(of_queries(stages["ingest"].read_part("qrels", bucket, QREL), asked))
    metrics = measures.evaluate(pa.concat_tables(runs), pa.concat_tables(qrels), [measure], [system])
    return {row["query_id"].hex(): row["value"] for row in metrics.to_pylist()}
