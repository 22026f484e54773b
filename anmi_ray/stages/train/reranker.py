"""Training on what was mined: which files and which dev queries, and what becomes of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.train import TrainConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import EXAMPLE, QREL, RUN, TEXT_OF
from anmi_ray.runtime.status import GROUP
from anmi_ray.runtime.tasks import Context
from anmi_ray.runtime.trackers import curves_folder
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.train.trainer import (
    RESULT,
    DevInputs,
    TrainSources,
    clear_checkpoints,
    collect,
    report_steps,
    run_training,
)
from anmi_ray.store import Artifact, Flow, uri
from anmi_ray.store.folders import seal_folder


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: TrainConfig, context: Context) -> dict[str, Any]:
    """Train on all mined examples, keep the model that is best on dev; returns flows and what became of it."""
    mine, retrieve, ingest = (inputs[name] for name in ("mine", "retrieve", "ingest"))
    buckets = range(context.buckets)
    flows = [flow for bucket in buckets for flow in mine.seal("examples", EXAMPLE, bucket) or []]
    examples = sum(flow.rows_out for flow in flows)
    if not examples:
        raise DataError("no example was mined", "train", "see the rejects of mine: `anmi show RUN`")
    output = artifact.store.uri(f"{artifact.path}/model")
    if not artifact.store.exists(f"{artifact.path}/model/{RESULT}"):
        sources = TrainSources(
            examples=[mine.store.uri(mine.part_path("examples", bucket)) for bucket in buckets],
            texts=[retrieve.store.uri(retrieve.part_path("texts", bucket)) for bucket in buckets],
            queries=[ingest.store.uri(ingest.part_path("queries", bucket)) for bucket in buckets],
            dev=_dev_inputs(retrieve, ingest, config.dev_depth, context.buckets) if config.dev_points else None,
            false_negative_rate=mine.read_json("summary.json")["false_negative_rate"]["mean"],
        )
        run_training(
            sources,
            config,
            context.execution.training,
            artifact.fingerprint,
            output,
            lambda row: _report_row(context, row),
            context.notice,
            artifact.store.uri(curves_folder(artifact)),
        )
    result = collect(uri.absolute(output))
    artifact.publish_json("log.json", result.rows)
    seal_folder(artifact, "model")
    clear_checkpoints(artifact, output, context.execution.training)
    facts = {"best_step": result.best_step, "steps": result.steps, "dev": result.dev}
    return {"flows": [Flow("examples of queries", examples, examples)], **facts}


def _report_row(context: Context, row: dict[str, Any]) -> None:
    """Show how far training is, and what dev says."""
    step, progress, dev = (row.get(name) for name in ("step", "progress", "dev"))
    if step and progress and dev is not None:
        context.measured(int(step), progress, dev, row.get(GROUP))
    report_steps(context, row)


def _dev_inputs(retrieve: Artifact, ingest: Artifact, depth: int, buckets: int) -> DevInputs | None:
    """The hybrid's top of the dev queries, or None where no dev query is judged."""
    tables: list[list[pa.Table]] = [[], [], [], []]
    for bucket in range(buckets):
        queries = queries_of(ingest, bucket, "dev")
        run_ = of_queries(retrieve.read_part("runs", bucket, RUN), queries)
        run_ = run_.filter(pc.and_(pc.equal(run_["system"], "hybrid"), pc.less_equal(run_["rank"], depth)))
        texts = retrieve.read_part("texts", bucket, TEXT_OF)
        texts = texts.filter(pc.is_in(texts["doc_id"], value_set=pc.unique(run_["doc_id"])))
        qrels = of_queries(ingest.read_part("qrels", bucket, QREL), queries)
        for rows, table in zip(tables, (run_, qrels, texts, queries), strict=True):
            rows.append(table)
    runs, qrels, texts, queries = (pa.concat_tables(rows) for rows in tables)
    if not runs.num_rows or not pc.any(pc.greater(qrels["grade"], 0)).as_py():
        return None
    return DevInputs(runs, qrels, texts, queries)
