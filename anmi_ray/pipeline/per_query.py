"""Per-query measures of a run's rankings, from its artifacts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.experiment import Experiment
from anmi_ray.core.records import QREL, RUN
from anmi_ray.evaluation import measures
from anmi_ray.pipeline.stages import INGEST, RERANK, RETRIEVE
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank.ranking import SYSTEM
from anmi_ray.store import Artifact, Store

STARTS = ("bm25", "dense", "hybrid")  # systems of retrieve


def per_query(one: Experiment, record: Mapping[str, Any], measure: str, system: str = SYSTEM) -> dict[str, float]:
    """Return a measure of one system of a run by test query, in hexadecimal; 0 for a query without a ranking.

    record: of the run, complete up to rerank, or up to retrieve for systems of the first stage.
    """
    store = Store(one.execution.root)
    stages = {name: Artifact(store, name, stage["fingerprint"]) for name, stage in record["stages"].items()}
    made = stages[RETRIEVE if system in STARTS else RERANK]
    runs = []
    qrels = []
    for bucket in range(store.buckets(one.execution.buckets)):
        asked = queries_of(stages[INGEST], bucket, "test")
        rows = made.read_part("runs", bucket, RUN)
        runs.append(of_queries(rows.filter(pc.equal(rows["system"], system)), asked))
        qrels.append(of_queries(stages[INGEST].read_part("qrels", bucket, QREL), asked))
    rows = measures.evaluate(pa.concat_tables(runs), pa.concat_tables(qrels), [measure], [system])
    return {row["query_id"].hex(): row["value"] for row in rows.to_pylist()}
