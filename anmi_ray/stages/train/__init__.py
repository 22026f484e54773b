"""train: examples -> a reranker, the weights that are best on dev, as a Hugging Face folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.compute as pc

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.needs import Need, of_training
from anmi_ray.config.train import TrainConfig, with_engine
from anmi_ray.core import environment
from anmi_ray.core.errors import AnmiError, DataError, caught
from anmi_ray.core.records import EXAMPLE, QREL, RUN, TEXT_OF
from anmi_ray.models import loading
from anmi_ray.runtime.costs import StageCost, Workload
from anmi_ray.runtime.stage import Inputs, Stage
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.anchor import read_of_dev
from anmi_ray.stages.ingest import OWN, of_queries, queries_of, stacked
from anmi_ray.store import Artifact, Flow
from anmi_ray.training import tracking

if TYPE_CHECKING:
    from anmi_ray.stages.train.trainer import DevInputs


def run(artifact: Artifact, inputs: Inputs, config: TrainConfig, context: Context) -> dict[str, Any]:
    """Train on all mined examples, keep the model that is best on dev; return flows and facts for the manifest."""
    from anmi_ray.stages.train import trainer

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

    has_own = bool((ingest.manifest() or {}).get("own_documents"))

    def sources() -> trainer.TrainSources:
        return trainer.TrainSources(
            examples=[mine.store.uri(mine.part_path("examples", bucket)) for bucket in buckets],
            texts=[retrieve.store.uri(retrieve.part_path("texts", bucket)) for bucket in buckets],
            queries=[ingest.store.uri(ingest.part_path("queries", bucket)) for bucket in buckets],
            dev=_dev_inputs(inputs, config.dev_depth, context.buckets) if config.dev_points else None,
            false_negative_rate=mine.read_json("summary.json")["false_negative_rate"]["mean"],
            own=[ingest.store.uri(ingest.part_path(OWN, bucket)) for bucket in buckets if has_own],
        )

    result = trainer.train_artifact(artifact, sources, config, context, lambda row: _report_row(context, row))
    trainer.clear_checkpoints(artifact, context.execution.training)
    facts = {"best_step": result.best_step, "steps": result.steps, "dev": result.dev}
    return {"flows": [Flow("examples of queries", examples, examples)], **facts}


def _report_row(context: Context, row: dict[str, Any]) -> None:
    """Report the progress of training and dev measures."""
    from anmi_ray.runtime.train_workers import GROUP

    step, progress, dev = (row.get(name) for name in ("step", "progress", "dev"))
    if step and progress and dev is not None:
        context.measured(int(step), progress, dev, row.get(GROUP))
    report_steps(context, row)


def report_steps(context: Context, row: Mapping[str, Any]) -> None:
    """Report the progress of training."""
    step, progress = row.get("step"), row.get("progress")
    if step and progress:
        context.progress(int(step), round(step / progress), "steps")


def _dev_inputs(inputs: Inputs, depth: int, buckets: int) -> DevInputs | None:
    """The hybrid's top of the dev queries with labels, else with judges' gains; None without either."""
    from anmi_ray.evaluation import judged
    from anmi_ray.stages import by_judges
    from anmi_ray.stages.train.trainer import DevInputs

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


def needs(_: Stage, experiment: Experiment) -> Iterable[Need]:
    """Resources of the workers."""
    yield of_training(experiment.execution.training)


def check(stage: Stage, experiment: Experiment) -> Iterator[AnmiError]:
    """Report packages that are not installed (unless training runs on a cluster), and uneven steps."""
    config: LearnConfig = stage.config_of(experiment)
    execution = experiment.execution
    yield from caught(tracking.check, execution.train.trackers)
    yield from caught(config.check_workers, execution.train.num_workers)
    if execution.address is not None:
        return
    if with_engine(config, execution.train).engine == "deepspeed":
        remedy = f"{environment.install('deepspeed')}, or set {config.group}.engine: ddp"
        yield from caught(environment.need, "deepspeed", f"{config.group}.engine", remedy)
    if config.lora is not None:
        remedy = f"{environment.install('lora')}, or leave lora out"
        yield from caught(environment.need, "peft", f"{config.group}.lora", remedy)


def _cost(load: Workload) -> StageCost:
    """GPU hours, if workers have GPUs and the model's size and the GPU's speed are known."""
    from anmi_ray.judging.spend import planned_hours

    train, mine = load.experiment.train, load.experiment.mine
    listed = 1 + mine.negatives + mine.random_negatives + mine.rated_extra
    lists = train.max_steps * train.lists_per_step if train.max_steps else train.epochs * load.train
    pairs = int(lists * min(listed, 1 + (train.negatives or listed)))
    hours = planned_hours(load.experiment.plan, train.model, 3.0 * pairs * train.max_tokens)
    on_gpus = load.experiment.execution.train.use_gpu
    return StageCost(f"{pairs:,} pairs forward and back", gpu_hours=hours if on_gpus else 0.0)


STAGE = Stage(
    name="train",
    version=2,
    inputs=("mine", "retrieve", "ingest"),
    does="train the reranker with the hybrid loss, keep the best on dev",
    run=run,
    cost=_cost,
    of=read_of_dev,
    also=lambda config, *_: {"model": loading.resolve(config.model).revision or "unpinned"},
    needs=needs,
    check=check,
)
