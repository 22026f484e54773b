"""Training through Ray Train, with checkpoints under the artifact's fingerprint.

The run's name in Ray Train is the fingerprint, so a call after a crash resumes from the newest checkpoint. A finished
artifact is never trained again: Ray Train would continue.
"""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.train
import torch.distributed as dist
from numpy.typing import NDArray
from ray.actor import ActorHandle
from ray.exceptions import RayActorError
from ray.train.torch import TorchTrainer, get_device

from anmi_ray.config.learning import LearnConfig
from anmi_ray.config.needs import needed, of_training
from anmi_ray.config.paths import as_written
from anmi_ray.config.train import TrainConfig, TrainExecution, with_engine
from anmi_ray.core import logs
from anmi_ray.core.errors import ConfigError, DataError, StoreError, TrainingError, disk_is_full
from anmi_ray.models.kinds import load_student
from anmi_ray.models.pairs import TokenPairs
from anmi_ray.models.reranker import Reranker
from anmi_ray.runtime.capacity import check_room
from anmi_ray.runtime.tasks import Context
from anmi_ray.runtime.train_workers import (
    KEPT,
    ListeningTorchConfig,
    RayCheckpoints,
    Report,
    failed,
    mend_list,
    new_board,
    room_named,
    shown,
    tell,
)
from anmi_ray.stages.rerank.ranking import SYSTEM, document_texts, ranked
from anmi_ray.store import Artifact, uri
from anmi_ray.store.folders import publish_folder, seal_folder
from anmi_ray.training import tracking
from anmi_ray.training.checks import memory_remedy
from anmi_ray.training.loop import Row, Trained, train
from anmi_ray.training.task import DevSet
from anmi_ray.training.tokens import TokenCache
from anmi_ray.training.tracking import shared_curves
from anmi_ray.training.training_set import numbered, prepare

MODEL = "model"  # folder of the trained model in an artifact
RESULT = "training.json"
_LOG = logging.getLogger(__name__)
_STORAGE, _TOKENS = "ray", "tokens"  # _STORAGE next to the output, _TOKENS in it
_COLLECTIVE_S = 7200  # of one collective call: workers may wait while one of a node tokenizes all texts, or uploads
_DETERMINED = (ConfigError, DataError, TrainingError)  # errors that no retry changes


@dataclass(frozen=True)
class DevInputs:
    """Dev data: a Run of one system, whose documents are reranked, Qrel, Text and Query tables."""

    run: pa.Table
    qrels: pa.Table
    texts: pa.Table
    queries: pa.Table
    measure: str = "nDCG@10"


@dataclass(frozen=True)
class TrainSources:
    """What to train on: Example, Text and Query files of all buckets, as paths or URIs that every worker reaches.

    false_negative_rate: estimated share of false negatives among the examples' negatives.
    own: files of queries' own documents.
    """

    examples: list[str]
    texts: list[str]
    queries: list[str]
    dev: DevInputs | None = None
    false_negative_rate: float | None = None
    own: list[str] = field(default_factory=list[str])


@dataclass(frozen=True)
class Job:
    """How to train.

    sources: what to train on, as `body` reads it.
    storage: folder or URI of checkpoints; output: of the model; curves: of the trackers' files.
    tokens: local folder of token lists.
    board: actor that receives rows, notices and errors.
    body: called in each worker with (job, device, checkpoints, report).
    where: context of log lines, the driver's.
    """

    sources: Any
    config: LearnConfig
    execution: TrainExecution
    storage: str
    output: str
    board: ActorHandle
    name: str
    curves: str
    tokens: str
    body: Body
    where: Mapping[str, Any] = field(default_factory=logs.context)


Body = Callable[[Job, str, RayCheckpoints, Report], Trained]


def train_artifact(
    artifact: Artifact,
    sources: Callable[[], Any],
    config: LearnConfig,
    context: Context,
    on_row: Callable[[Row], None],
    body: Body | None = None,
) -> Trained:
    """Call `run_training` unless the artifact has a model; seal the model and publish the log."""
    output = artifact.store.uri(f"{artifact.path}/{MODEL}")
    if not artifact.store.exists(f"{artifact.path}/{MODEL}/{RESULT}"):
        name = artifact.fingerprint
        curves = artifact.store.uri(f"tracking/{name}")
        execution = context.execution.training
        run_training(sources(), config, execution, name, output, on_row, context.notice, curves, body)
    result = collect(uri.absolute(output))
    artifact.publish_json("log.json", result.rows)
    seal_folder(artifact, MODEL)
    return result


def run_training(
    sources: Any,
    config: LearnConfig,
    execution: TrainExecution,
    fingerprint: str,
    output_folder: str,
    on_row: Callable[[Row], None] = lambda _: None,
    on_notice: Callable[[str], None] = lambda _: None,
    curves: str | None = None,
    body: Body | None = None,
) -> Trained:
    """Train on the sources and publish the Hugging Face folder at `output_folder`. Needs a started Ray.

    on_row: called from a thread with the newest log row about once a second and each with a dev measure, with the
        workers' placement group (GROUP).
    on_notice: called from a thread with what a user should know, such as a broken checkpoint.
    curves: place for the trackers' files; default: next to the output.
    body: trains in a worker; default: a reranker on `TrainSources`.
    Raises ConfigError if the cluster has no room for the workers, TrainingError if workers keep dying, and the loop's
    errors.
    """
    tracking.check(execution.trackers)
    check_room(of_training(execution), on_notice)
    config = with_engine(config, execution)  # here, once for all workers
    output = uri.absolute(output_folder)
    storage = uri.absolute(execution.storage_path or uri.beside(output, _STORAGE))
    mend_list(uri.below(storage, fingerprint), on_notice)
    job = Job(
        sources=sources,
        config=config,
        execution=execution,
        storage=uri.below(storage, fingerprint),
        output=output,
        board=new_board(),
        name=fingerprint,
        curves=uri.absolute(curves or uri.beside(output, "tracking")),
        tokens=uri.absolute(_token_folder(storage)),
        body=body or train_reranker,
    )
    try:
        with shown(job.board, on_row, on_notice):
            _trainer(job, storage, fingerprint).fit()
    except (ray.train.TrainingFailedError, RayActorError) as error:
        if (found := failed(job.board)) is None:
            raise _died(error, config, execution) from error
        raise found from None
    if found := failed(job.board):
        raise found
    return collect(job.output)


def _trainer(job: Job, storage: str, name: str) -> TorchTrainer:
    execution = job.execution
    return TorchTrainer(
        _work,
        train_loop_config={"job": job},
        scaling_config=ray.train.ScalingConfig(
            num_workers=execution.num_workers,
            use_gpu=execution.use_gpu,
            resources_per_worker=needed(execution),
            label_selector=execution.label_selector or None,
        ),
        run_config=ray.train.RunConfig(
            name=name,
            **uri.of_ray(storage),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=KEPT),
            failure_config=ray.train.FailureConfig(max_failures=execution.max_failures),
        ),
        torch_config=ListeningTorchConfig(backend="nccl" if execution.use_gpu else "gloo", timeout_s=_COLLECTIVE_S),
    )


def _died(error: BaseException, config: LearnConfig, execution: TrainExecution) -> TrainingError:
    """Describe why the workers, or the controller that watches them, died too often."""
    failures = error.worker_failures.values() if isinstance(error, ray.train.WorkerGroupError) else [error]
    text = "\n".join(str(failure) for failure in failures)
    most = execution.max_failures
    times = f"workers failed more than {most} times" if most else "worker failed"
    resumes = "running again resumes from the newest checkpoint"
    if "running low on memory" in text:
        what = f"{times}, last: Ray ended it because its node ran out of memory"
        return TrainingError(what, "train", f"{memory_remedy(config, execution)}; {resumes}")
    if "OOM killer" in text:
        what = f"{times}, last: its process was killed, as the system does when memory runs out"
        return TrainingError(what, "train", f"if memory was short, {memory_remedy(config, execution)}; {resumes}")
    return TrainingError(f"{times}, last: {last_line(error)}", "train", f"see Ray's logs of the workers; {resumes}")


def _work(loop_config: dict[str, Any]) -> None:
    """Train in a worker, and publish on rank 0. Errors that no retry changes go to the board."""
    job: Job = loop_config["job"]
    if failed(job.board):  # in an earlier attempt, on another worker
        return
    logs.set_up()
    try:
        with logs.Span(_LOG, "training", traces=True, **{**job.where, "rank": dist.get_rank()}) as span:
            trained = _train(job)
            span.told(steps=trained.steps, best_step=trained.best_step, dev=trained.dev)
    except _DETERMINED as error:
        tell(job.board, error)
        if dist.get_world_size() == 1:
            return
        raise  # others may wait for this worker: Ray ends them
    if dist.get_rank() == 0:
        try:
            _publish(job, trained)
        except TrainingError as error:
            tell(job.board, error)
        except StoreError as error:
            if not disk_is_full(error.__cause__):
                raise
            tell(job.board, error)


def _publish(job: Job, trained: Trained) -> None:
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        with room_named("the model", scratch, "TMPDIR"):
            folder = trained.model.export(Path(scratch) / "model", _card(job, trained))
            content = {"rows": trained.rows, "best_step": trained.best_step, "dev": trained.dev, "steps": trained.steps}
            (folder / RESULT).write_text(json.dumps(content), encoding="utf-8")
        publish_folder(folder, job.output)


def _train(job: Job) -> Trained:
    with ExitStack() as stack:
        settings = job.config.model_dump(mode="json")
        curves, flush = shared_curves(job.execution.trackers, job.name, job.curves, settings, stack)
        checkpoints = RayCheckpoints(job.storage, stack, flush)
        return job.body(job, str(get_device()), checkpoints, Report(job.board, curves))


def train_reranker(job: Job, device: str, checkpoints: RayCheckpoints, report: Report) -> Trained:
    """Train a reranker on the lists of `TrainSources`."""
    sources: TrainSources = job.sources
    config = cast(TrainConfig, job.config)
    model = load_student(config, device)
    cache = TokenCache(Path(job.tokens), report.notice)
    examples, texts, queries, own = map(Files, (sources.examples, sources.texts, sources.queries, sources.own))
    data = prepare(examples, texts, queries, model.pairs, cache, own)
    if data.cut:
        report.notice(
            f"{data.cut:,} of {len(data.documents):,} documents are longer than train.max_tokens, {model.max_tokens}: "
            "the rest is not read"
        )
    dev = None if sources.dev is None else dev_set(sources.dev, model)
    rate = sources.false_negative_rate
    return train(model, data, dev, config, job.execution, checkpoints, report, report.notice, rate)


def dev_set(dev: DevInputs, model: Reranker) -> DevSet:
    """Tokenize the dev run; its measure makes a Run of scores and evaluates it."""
    from anmi_ray.evaluation import measures

    query, query_rows = positions(dev.run["query_id"], dev.queries["query_id"], "dev queries")
    document, text_rows = positions(dev.run["doc_id"], dev.texts["doc_id"], "dev texts")

    def measure(score: NDArray[np.float32]) -> float:
        return measures.mean(measures.evaluate(ranked(dev.run, score), dev.qrels, [dev.measure]), SYSTEM, dev.measure)

    queries = model.pairs.of_queries(dev.queries.take(query_rows)["text"].to_pylist())
    documents = model.pairs.of_documents(document_texts(dev.texts.take(text_rows)))
    return DevSet(TokenPairs(queries, query, documents, document), measure)


class Files(Sequence[pa.Table]):
    """Parquet files, read on access."""

    def __init__(self, paths: Sequence[str]) -> None:
        self._paths = paths

    def __len__(self) -> int:
        return len(self._paths)

    def __getitem__(self, at: Any) -> Any:
        return uri.read_table(str(self._paths[at]))


def positions(ids: pa.ChunkedArray, among: pa.ChunkedArray, place: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Return each id's index among the distinct ids, and their rows in `among`. Raises DataError if one is missing."""
    index, distinct = numbered(ids)
    rows = pc.index_in(distinct, value_set=among.combine_chunks())
    if rows.null_count:
        missing = distinct.filter(pc.is_null(rows))[0].as_py().hex()
        raise DataError(f"{rows.null_count} are missing, the first is {missing}", place, "recompute the retrieve stage")
    return index, rows


def collect(output: str) -> Trained:
    """Read what rank 0 published at `output`."""
    files, path = uri.filesystem(output)
    with files.open_input_stream(f"{path}/{RESULT}") as stream:
        return Trained(model=output, **json.loads(stream.read()))


def _card(job: Job, trained: Trained) -> str:
    settings = job.config.model_dump(exclude_defaults=True)
    inputs = getattr(job.sources, "dev", None)
    dev = "" if trained.dev is None or inputs is None else f", {inputs.measure} {trained.dev:.4f} on dev"
    return (
        f"Started from {as_written(job.config.model)}; "
        f"the weights after step {trained.best_step} of {trained.steps}{dev}.\n"
        f"Settings that differ from the defaults: `{json.dumps(settings)}`"
    )


def _token_folder(storage: str) -> str:
    """Next to the checkpoints, or on the node's own disk if these are at a URI."""
    if "://" not in storage:
        return f"{storage}/{_TOKENS}"
    return str(Path(tempfile.gettempdir()) / f"anmi-{_TOKENS}-{os.getuid()}")


def last_line(error: object) -> str:
    """Last line of an error's message, else its class."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1] if lines else type(error).__name__


def clear_checkpoints(artifact: Artifact, execution: TrainExecution) -> None:
    """Remove checkpoints and token lists, which only serve to resume."""
    own = uri.beside(uri.absolute(artifact.store.uri(f"{artifact.path}/{MODEL}")), _STORAGE)
    given = execution.storage_path
    uri.remove(own if given is None else uri.below(uri.absolute(given), artifact.fingerprint))
