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
    """A measure of one system of a run by test query, in hexadecimal; not fused with anything.

    `record` is the run's, complete up to rerank, or up to retrieve for systems of the first stage.
    """
    store = Store(one.execution.root)
    stages = {name: Artifact(store, name, stage["fingerprint"]) for name, stage in record["stages"].items()}
    made = stages[RETRIEVE if system in STARTS else RERANK]
    return of_artifact(stages[INGEST], made, store.buckets(one.execution.buckets), measure, system)


def of_artifact(
    ingest: Artifact, made: Artifact, buckets: int, measure: str, system: str, only_ranked: bool = False
) -> dict[str, float]:
    """A measure of one system of the artifact `made`, whose parts are runs, by test query, in hexadecimal.

    A query that has no ranking counts 0; with `only_ranked` it is left out.
    """
    runs = []
    qrels = []
    for bucket in range(buckets):
        asked = queries_of(ingest, bucket, "test")
        rows = made.read_part("runs", bucket, RUN)
        runs.append(of_queries(rows.filter(pc.equal(rows["system"], system)), asked))
        qrels.append(of_queries(ingest.read_part("qrels", bucket, QREL), asked))
    run = pa.concat_tables(runs)
    rows = measures.evaluate(run, pa.concat_tables(qrels), [measure], [system]).to_pylist()
    left_out = {row["query_id"] for row in rows} - set(run["query_id"].to_pylist()) if only_ranked else set()
    return {row["query_id"].hex(): row["value"] for row in rows if row["query_id"] not in left_out}
