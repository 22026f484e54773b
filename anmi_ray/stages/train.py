"""The train stage: examples become a reranker, through Ray Train, with checkpoints under the artifact's fingerprint.

Running again is resuming: the run's name in Ray Train is the fingerprint, so a call after a crash (of workers, or of
everything) goes on from the newest checkpoint. A finished artifact is never entered again: Ray Train would go on.
"""

from __future__ import annotations

import json
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.fs as pafs
import pyarrow.parquet as pq
import ray
import ray.train
import torch.distributed as dist
from numpy.typing import NDArray
from ray.actor import ActorHandle
from ray.train.torch import TorchConfig, TorchTrainer, get_device

from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.errors import ConfigError, DataError, TrainingError
from anmi_ray.models.cross_encoder import CrossEncoder
from anmi_ray.models.pairs import document_text
from anmi_ray.records import EXAMPLE, QREL, RUN, TEXT_OF
from anmi_ray.stages.curves import curves_folder, shared_curves
from anmi_ray.stages.folders import publish_folder, seal_folder
from anmi_ray.stages.ingest import of_queries, queries_of
from anmi_ray.stages.rerank import SYSTEM, ranked
from anmi_ray.stages.runtime import Context
from anmi_ray.store import Artifact, Flow
from anmi_ray.training import tracking
from anmi_ray.training.batching import prepare
from anmi_ray.training.loop import DevSet, Row, Trained, train

RESULT, FAILURE = "training.json", "failure.json"
_DETERMINED = {kind.__name__: kind for kind in (ConfigError, DataError, TrainingError)}


@dataclass(frozen=True)
class DevInputs:
    """What dev is evaluated on: a Run of one system (its documents are reranked), Qrel, Text and Query tables."""

    run: pa.Table
    qrels: pa.Table
    texts: pa.Table
    queries: pa.Table
    measure: str = "nDCG@10"


@dataclass(frozen=True)
class TrainResult:
    """The log (a row per step and dev point), and the exported model: of the best dev point, in `folder`."""

    rows: list[Row]
    best_step: int
    dev: float | None
    steps: int
    folder: str


@dataclass(frozen=True)
class _Job:
    """What every worker gets."""

    examples: list[str]
    texts: list[str]
    queries: list[str]
    dev: DevInputs | None
    config: TrainConfig
    execution: TrainExecution
    output: str
    board: ActorHandle
    name: str
    curves: str


def run_training(
    examples_paths: Sequence[str],
    texts_paths: Sequence[str],
    query_paths: Sequence[str],
    dev: DevInputs | None,
    config: TrainConfig,
    execution: TrainExecution,
    fingerprint: str,
    output_folder: str,
    on_row: Callable[[Row], None] | None = None,
    curves: str | None = None,
) -> TrainResult:
    """Train on the Example, Text and Query files of all buckets; the Hugging Face folder appears at `output_folder`.

    `on_row` sees the newest log row about once a second (its "progress" runs to 1), from a thread. Paths are files or
    URIs that every worker reaches. Checkpoints go to `execution.storage_path`/`fingerprint`, files of the trackers to
    `curves` (else beside the output). Raises TrainingError, DataError or ConfigError as the loop does, and
    TrainingError where workers keep dying. Needs a started Ray.
    """
    tracking.check(execution.trackers)
    storage = execution.storage_path or str(Path(output_folder).absolute().parent / "ray")
    board: ActorHandle = _Board.remote()  # type: ignore[assignment]
    output = _absolute(output_folder)
    curves = _absolute(curves or str(Path(output_folder).absolute().parent / "tracking"))
    inputs = (list(examples_paths), list(texts_paths), list(query_paths))
    job = _Job(*inputs, dev, config, execution, output, board, fingerprint, curves)
    trainer = TorchTrainer(
        _work,
        train_loop_config={"job": job},
        scaling_config=ray.train.ScalingConfig(
            num_workers=execution.num_workers,
            use_gpu=execution.use_gpu,
            resources_per_worker=dict(execution.resources) | ({"GPU": 1.0} if execution.use_gpu else {}),
        ),
        run_config=ray.train.RunConfig(
            name=fingerprint,
            storage_path=_absolute(storage),
            checkpoint_config=ray.train.CheckpointConfig(num_to_keep=execution.checkpoints_kept),
            failure_config=ray.train.FailureConfig(max_failures=execution.max_failures),
        ),
        torch_config=TorchConfig(backend="nccl" if execution.use_gpu else "gloo"),
    )
    try:
        with _shown(board, on_row):
            trainer.fit()
    except ray.train.TrainingFailedError as error:
        raise TrainingError(
            f"workers failed more than {execution.max_failures} times, last: {_last_line(error)}",
            "train",
            "see Ray's logs of the workers; running again resumes from the newest checkpoint",
        ) from error
    return _collect(job.output)


def _work(loop_config: dict[str, Any]) -> None:
    """One worker: read, train, and on rank 0 publish. What no retry can change is handed over as a file."""
    job: _Job = loop_config["job"]
    try:
        trained = _train(job)
    except tuple(_DETERMINED.values()) as error:
        if dist.get_rank() == 0:
            with tempfile.TemporaryDirectory() as scratch:
                content = {"kind": type(error).__name__, "args": error.args}
                (Path(scratch) / FAILURE).write_text(json.dumps(content), encoding="utf-8")
                publish_folder(Path(scratch), job.output)
        return
    if dist.get_rank() == 0:
        with tempfile.TemporaryDirectory() as scratch:
            folder = trained.model.export(Path(scratch) / "model", _card(job, trained))
            content = {"rows": trained.rows, "best_step": trained.best_step, "dev": trained.dev, "steps": trained.steps}
            (folder / RESULT).write_text(json.dumps(content), encoding="utf-8")
            publish_folder(folder, job.output)


def _train(job: _Job) -> Trained:
    config = job.config
    with ExitStack() as stack:
        settings = config.model_dump(mode="json")
        curves, flush = shared_curves(job.execution.trackers, job.name, job.curves, settings, stack)
        model = CrossEncoder.load(
            config.model,
            pooling=config.pooling,
            max_tokens=config.max_tokens,
            seed=config.seed,
            device=str(get_device()),
            trust_remote_code=config.trust_remote_code,
            whole_head=config.whole_head,
            equal_segments=config.equal_segments,
        )
        tables = (map(pq.read_table, paths) for paths in (job.examples, job.texts, job.queries))
        data = prepare(*tables, model.pairs)
        dev = None if job.dev is None else dev_set(job.dev, model)
        checkpoints = _RayCheckpoints(stack, flush)
        return train(model, data, dev, config, job.execution, checkpoints, _Report(job.board, curves))


def dev_set(dev: DevInputs, model: CrossEncoder) -> DevSet:
    """The dev run tokenised, with its measure: scores become a Run, which evaluation measures."""
    from anmi_ray.evaluation import measures

    query, query_rows = _positions(dev.run["query_id"], dev.queries["query_id"], "dev queries")
    document, text_rows = _positions(dev.run["doc_id"], dev.texts["doc_id"], "dev texts")
    texts = dev.texts.take(text_rows)
    titles, bodies = texts["title"].to_pylist(), texts["text"].to_pylist()

    def measure(score: NDArray[np.float32]) -> float:
        return measures.mean(measures.evaluate(ranked(dev.run, score), dev.qrels, [dev.measure]), SYSTEM, dev.measure)

    return DevSet(
        queries=model.pairs.texts(dev.queries.take(query_rows)["text"].to_pylist()),
        query_N=query,
        documents=model.pairs.texts([document_text(t, b) for t, b in zip(titles, bodies, strict=True)]),
        document_N=document,
        measure=measure,
    )


class _RayCheckpoints:
    """Checkpoints through ray.train: every worker writes its part and reports, which is a barrier."""

    def __init__(self, stack: ExitStack, before: Callable[[], None]) -> None:
        self._stack, self._before = stack, before

    def latest(self) -> Path | None:
        checkpoint = ray.train.get_checkpoint()
        return None if checkpoint is None else Path(self._stack.enter_context(checkpoint.as_directory()))

    def save(self, write: Callable[[Path], None], step: int, dev: float | None) -> None:
        self._before()
        scratch = Path(tempfile.mkdtemp(prefix="anmi-checkpoint-"))
        try:
            write(scratch)
            dist.barrier()
            metrics = {"step": step} | ({} if dev is None else {"dev": dev})
            empty = not any(scratch.iterdir())
            ray.train.report(metrics, checkpoint=None if empty else ray.train.Checkpoint.from_directory(str(scratch)))
        finally:
            shutil.rmtree(scratch, ignore_errors=True)


@ray.remote(num_cpus=0)
class _Board:
    """Where rank 0 writes how far it is, for the driver to show."""

    def __init__(self) -> None:
        self._row: Row = {}

    def write(self, row: Row) -> None:
        self._row = row

    def read(self) -> Row:
        return self._row


class _Report:
    """Where rank 0's rows go: all to the trackers; to the board one a second, and every row with a dev measure."""

    def __init__(self, board: ActorHandle, curves: tracking.Curves) -> None:
        self._board, self._curves, self._next = board, curves, 0.0

    def __call__(self, row: Row) -> None:
        self._curves(row)
        now = time.monotonic()
        if row["dev"] is not None or now >= self._next:
            self._next = now + 1.0
            self._board.write.remote(row)


@contextmanager
def _shown(board: ActorHandle, on_row: Callable[[Row], None] | None) -> Iterator[None]:
    """While inside, a thread hands `on_row` each new row of the board."""
    done = threading.Event()

    def follow() -> None:
        last: Row = {}
        while not done.wait(1.0):
            row: Row = ray.get(board.read.remote())  # pyright: ignore[reportAssignmentType]
            if row != last and on_row is not None:
                on_row(row)
                last = row

    thread = threading.Thread(target=follow, name="training-progress", daemon=True)
    if on_row is not None:
        thread.start()
    try:
        yield
    finally:
        done.set()
        if on_row is not None:
            thread.join(timeout=10.0)


def _distinct(ids: pa.ChunkedArray) -> tuple[NDArray[np.int64], pa.Array]:
    """Every id's position among the distinct ids, and these."""
    coded = ids.combine_chunks().dictionary_encode()
    return coded.indices.to_numpy(zero_copy_only=False).astype(np.int64), coded.dictionary


def _positions(ids: pa.ChunkedArray, among: pa.ChunkedArray, place: str) -> tuple[NDArray[np.int64], pa.Array]:
    """Every id's position among the distinct ids, and the rows of `among` where these stand."""
    index, distinct = _distinct(ids)
    rows = pc.index_in(distinct, value_set=among.combine_chunks())
    if rows.null_count:
        missing = distinct.filter(pc.is_null(rows))[0].as_py().hex()
        raise DataError(f"{rows.null_count} are missing, the first is {missing}", place, "recompute the retrieve stage")
    return index, rows


def _collect(output: str) -> TrainResult:
    """What rank 0 published, or the error it met."""
    filesystem, path = pafs.FileSystem.from_uri(output) if "://" in output else (pafs.LocalFileSystem(), output)
    failure = f"{path}/{FAILURE}"
    if filesystem.get_file_info(failure).type is pafs.FileType.File:
        content = json.loads(filesystem.open_input_file(failure).read())
        filesystem.delete_dir(path)
        raise _DETERMINED[content["kind"]](*content["args"])
    content = json.loads(filesystem.open_input_file(f"{path}/{RESULT}").read())
    return TrainResult(folder=output, **content)


def _card(job: _Job, trained: Trained) -> str:
    settings = job.config.model_dump(exclude_defaults=True)
    dev = "" if trained.dev is None or job.dev is None else f", {job.dev.measure} {trained.dev:.4f} on dev"
    return (
        f"Started from {job.config.model}; the weights after step {trained.best_step} of {trained.steps}{dev}.\n"
        f"Settings that differ from the defaults: `{json.dumps(settings)}`"
    )


def _absolute(place: str) -> str:
    return place if "://" in place else str(Path(place).absolute())


def _last_line(error: BaseException) -> str:
    lines = [line for line in str(error).splitlines() if line.strip()]
    return lines[-1].strip() if lines else type(error).__name__


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
        execution = context.execution.training
        run_training(
            [mine.store.uri(mine.part_path("examples", bucket)) for bucket in buckets],
            [retrieve.store.uri(retrieve.part_path("texts", bucket)) for bucket in buckets],
            [ingest.store.uri(ingest.part_path("queries", bucket)) for bucket in buckets],
            _dev_inputs(retrieve, ingest, config.dev_depth, context.buckets) if config.dev_points else None,
            config,
            execution,
            artifact.fingerprint,
            output,
            lambda row: _tell(context, row),
            artifact.store.uri(curves_folder(artifact)),
        )
    result = _collect(_absolute(output))
    artifact.publish_json("log.json", result.rows)
    seal_folder(artifact, "model")
    if artifact.store.local is not None:  # checkpoints serve resuming only
        shutil.rmtree(artifact.store.local / artifact.path / "ray", ignore_errors=True)
    facts = {"best_step": result.best_step, "steps": result.steps, "dev": result.dev}
    return {"flows": [Flow("examples of queries", examples, examples)], **facts}


def _tell(context: Context, row: Row) -> None:
    step, progress = row.get("step"), row.get("progress")
    if step and progress:
        context.progress(int(step), round(step / progress), "steps")


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
