"""The body of the train stage: which files and dev queries to use, and what to record."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.train import TrainConfig
from anmi_ray.core.errors import DataError
from anmi_ray.core.records import EXAMPLE, QREL, RUN, TEXT_OF
from anmi_ray.evaluation import judged
from anmi_ray.runtime.status import GROUP
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages import by_judges
from anmi_ray.stages.ingest import OWN, of_queries, queries_of, stacked
from anmi_ray.stages.rerank.start import GONE_ON_WITH
from anmi_ray.stages.train.trainer import (
    DevInputs,
    TrainSources,
    clear_checkpoints,
    interpolated,
    report_steps,
    train_artifact,
)
from anmi_ray.store import Artifact, Flow


def run(artifact: Artifact, inputs: Mapping[str, Artifact], config: TrainConfig, context: Context) -> dict[str, Any]:
    """Train on all mined examples, keep the model that is best on dev; return flows and facts for the manifest."""
    mine, retrieve, ingest = (inputs[name] for name in ("mine", "retrieve", "ingest"))
    buckets = range(context.buckets)
    flows = [flow for bucket in buckets for flow in mine.seal("examples", EXAMPLE, bucket) or []]
    examples = sum(flow.rows_out for flow in flows)
    if not examples:
        remedy = (
            "see the rejects of mine: `anmi show RUN`; if no negative is left, ask about more pairs (a larger "
            "compare.degree), or let uncertain negatives count less instead of leaving them out (mine.allow=[])"
        )
        raise DataError("no example was mined", "train", remedy)

    wants_dev = bool(config.dev_points or config.interpolate)
    has_own = bool((ingest.manifest() or {}).get("own_documents"))

    def sources() -> TrainSources:
        return TrainSources(
            examples=[mine.store.uri(mine.part_path("examples", bucket)) for bucket in buckets],
            texts=[retrieve.store.uri(retrieve.part_path("texts", bucket)) for bucket in buckets],
            queries=[ingest.store.uri(ingest.part_path("queries", bucket)) for bucket in buckets],
            dev=_dev_inputs(inputs, config.dev_depth, context.buckets) if wants_dev else None,
            false_negative_rate=mine.read_json("summary.json")["false_negative_rate"]["mean"],
            start=inputs.get(GONE_ON_WITH),
            own=[ingest.store.uri(ingest.part_path(OWN, bucket)) for bucket in buckets if has_own],
        )

    result = train_artifact(artifact, sources, config, context, lambda row: _report_row(context, row))
    clear_checkpoints(artifact, context.execution.training)
    facts = {"best_step": result.best_step, "steps": result.steps, "dev": result.dev, **interpolated(result)}
    return {"flows": [Flow("examples of queries", examples, examples)], **facts}


def _report_row(context: Context, row: dict[str, Any]) -> None:
    """Report the progress of training and dev measures."""
    step, progress, dev = (row.get(name) for name in ("step", "progress", "dev"))
    if step and progress and dev is not None:
        context.measured(int(step), progress, dev, row.get(GROUP))
    report_steps(context, row)


def _dev_inputs(inputs: Mapping[str, Artifact], depth: int, buckets: int) -> DevInputs | None:
    """The hybrid's top of the dev queries with labels, else with judges' gains; None without either."""
    retrieve, ingest = inputs["retrieve"], inputs["ingest"]

    def of_bucket(bucket: int) -> tuple[pa.Table, ...]:
        queries = queries_of(ingest, bucket, "dev")
        runs = of_queries(retrieve.read_part("runs", bucket, RUN), queries)
        runs = runs.filter(pc.and_(pc.equal(runs["system"], "hybrid"), pc.less_equal(runs["rank"], depth)))
        texts = retrieve.read_part("texts", bucket, TEXT_OF)
        texts = texts.filter(pc.is_in(texts["doc_id"], value_set=pc.unique(runs["doc_id"])))
        return runs, of_queries(ingest.read_part("qrels", bucket, QREL), queries), texts, queries

    dev = DevInputs(*stacked(map(of_bucket, range(buckets))))
    if "anchor" in inputs:
        gains = by_judges.rated(inputs["anchor"], dev.queries, buckets)
        dev = dev if judged.labels_choose(dev.qrels, gains) else replace(dev, qrels=gains)
    return dev if dev.run.num_rows and judged.tell(dev.qrels) else None
