"""Ask a judge that vLLM runs: chunks of questions become requests to Ray's engines, whose answers go to the log.

    chunk -> requests, 256 a block -> engines (an autoscaling pool of actors) -> Answer rows, published block by block

A block is taken by an engine, repeated by Ray if the engine dies, and published as a whole: a death costs the blocks in
flight, and published answers are not asked again. Blocks keep the order of the questions, so prompts with a common
beginning share an engine's cache. Requests that cannot be asked skip the engines and are published as failures.
"""

from __future__ import annotations

import collections
import functools
import logging
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import ray
import ray.data
from ray.exceptions import RayError
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from anmi_ray.config.needs import gpu_of_type
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.core import logs
from anmi_ray.core.errors import AnmiError, ConfigError, JudgeError, flatten
from anmi_ray.judging.kinds.base import failures_of
from anmi_ray.judging.kinds.vllm import REQUEST, Requests, VllmModel, answers, check_engine, examine
from anmi_ray.judging.questions import AT_ONCE
from anmi_ray.runtime.tasks import Context, data_settings, rows_of
from anmi_ray.stages.judge.asking import Asking, Chunk
from anmi_ray.store.answer_log import Lacking
from anmi_ray.store.spend_log import Spend

_LOG = logging.getLogger(__name__)
_RESTARTS = 20  # deaths of one engine after which the run stops: the model is at fault, not a machine
_DATA = "__data"  # the column in which Ray's processor keeps a row


def ask_chunks(chunks: list[Chunk], asking: Asking, pool: tuple[int, int], context: Context) -> None:
    """Ask the unanswered questions of chunks (at least one), as the budget actor admits them.

    pool: minimum and maximum number of engines. Raises ConfigError for user errors before an engine starts, JudgeError
    if engines do not start or keep dying.
    """
    config: VllmJudgeConfig = asking.judge.config
    check_engine(config)
    model = examine(config)
    _check_gpus(config, context)
    # a node may be lost while an engine starts on it
    deaths = {} if context.execution.address is None else {"max_consecutive_actor_init_deaths": 2}
    with (
        data_settings(context, context.execution.judging_on, **deaths),
        _engine_errors(config),
        _off_screen(),
        rows_of(_pipeline(chunks, model, asking, pool, context.execution.judging_on)) as rows,
    ):
        collections.deque(rows, maxlen=0)


def _pipeline(
    chunks: list[Chunk], model: VllmModel, asking: Asking, pool: tuple[int, int], on: Mapping[str, str]
) -> ray.data.Dataset:
    requests = (
        ray.data.from_items([chunk._asdict() for chunk in chunks], override_num_blocks=len(chunks))
        .map_batches(
            cast(Any, _requests),  # Ray's types do not know generators of tables
            fn_args=(model, asking),
            batch_size=1,
            batch_format="numpy",
            num_cpus=0.5,
        )
        .repartition(target_num_rows_per_block=AT_ONCE)
    )
    return _processor(model, pool, on)(requests).map_batches(
        _publish, fn_args=(model, asking), batch_size=None, batch_format="numpy", num_cpus=0.25
    )


def _processor(judge: VllmModel, pool: tuple[int, int], on: Mapping[str, str]) -> Any:
    """Return Ray's processor with engines only, on nodes with the labels `on`: requests are tokenized already.

    Its own steps before and after would process single rows, break up blocks, and give failed rows another schema.
    """
    from ray.data.llm import build_processor, vLLMEngineProcessorConfig

    execution, engine = judge.config.execution, judge.engine_kwargs()
    with _quiet():
        settings = vLLMEngineProcessorConfig(
            model_source=judge.source.path_or_id,
            engine_kwargs=engine,
            batch_size=AT_ONCE,
            # one more waits, so that none runs dry
            max_concurrent_batches=1 + -(-engine["max_num_seqs"] // AT_ONCE),
            concurrency=pool,
            accelerator_type=execution.accelerator_type,
            runtime_env={"env_vars": judge.environment()},
            placement_group_config=None if execution.device == "gpu" else {"bundles": [{"CPU": 1}]},
            should_continue_on_error=True,
            log_engine_metrics=execution.metrics,
            chat_template_stage=False,
            tokenize_stage=False,
            detokenize_stage=False,
        )
        processor = build_processor(settings)
    processor.preprocess = processor.postprocess = None
    stage = processor.get_stage_by_name("vLLMEngineStage")
    stage.map_batches_kwargs["max_restarts"] = _RESTARTS  # Ray's own is for ever
    if on and execution.tensor_parallel > 1:
        bundle = {"GPU": 1, "CPU": 1, **gpu_of_type(execution.accelerator_type)}
        stage.map_batches_kwargs["ray_remote_args_fn"] = functools.partial(
            reserved, [bundle] * execution.tensor_parallel, dict(on)
        )
    return processor


def reserved(bundles: list[dict[str, float]], on: dict[str, str]) -> dict[str, Any]:
    """Return options of an engine's actor that reserve its workers' bundles, too, on nodes with the labels `on`.

    Ray's processor would apply the labels to the actor, but not to the placement group of an engine with several GPUs.
    """
    group = ray.util.placement_group(bundles, strategy="PACK", bundle_label_selector=[on] * len(bundles))
    return {"scheduling_strategy": PlacementGroupSchedulingStrategy(group, placement_group_capture_child_tasks=True)}


def _requests(batch: dict[str, Any], model: VllmModel, asking: Asking) -> Iterator[pa.Table]:
    """Yield requests for the unanswered questions of chunks, query by query as the budget actor admits them."""
    logs.set_up()
    try:
        requests = _requests_of(model, asking.log.judge_id)
        for chunk in Chunk.of(batch):
            questions = asking.sources.questions(chunk.bucket)
            lacking = Lacking(asking.log, chunk.bucket, questions.ids)
            ray.get(asking.budget.begin.remote(chunk.key))
            sent = 0
            # without patience: requests wait for others to fill a block, and would wait for their own answers
            for which in asking.slices(chunk, questions, lacking, AT_ONCE, patience_s=0.0):
                sent += len(which)
                for begin in range(0, len(which), AT_ONCE):
                    rows = which[begin : begin + AT_ONCE]
                    yield _table(requests.of(questions, rows, chunk.bucket, chunk.start), model)
            facts = {"bucket": chunk.bucket, "chunk": chunk.start, "questions": sent}
            _LOG.info("chunk is sent", extra={**asking.where, **facts})
    except AnmiError as error:  # Ray Data would wrap it
        _LOG.error("chunks fail", extra={**asking.where, "error_type": type(error).__name__, "error": str(error)})
        ray.get(asking.budget.stop.remote(flatten(error)))


def _table(requests: pa.StructArray, judge: VllmModel) -> pa.Table:
    sampling = pa.array([judge.sampling()] * len(requests))
    fields = [*REQUEST, pa.field("sampling_params", sampling.type)]
    return pa.table({_DATA: pa.StructArray.from_arrays([*requests.flatten(), sampling], fields=fields)})


_held: dict[str, Requests] = {}


def _requests_of(judge: VllmModel, name: str) -> Requests:
    """Return the builder of requests, loaded once per process."""
    if name not in _held:
        _held.clear()
        _held[name] = Requests(judge)
    return _held[name]


def _publish(batch: dict[str, Any], model: VllmModel, asking: Asking) -> dict[str, Any]:
    """Publish the answers of a block, a segment per bucket, and report them to the budget actor, chunk by chunk."""
    logs.set_up()
    outputs = list(batch[_DATA])
    try:
        for bucket in sorted({int(row["bucket"]) for row in outputs}):
            rows = [row for row in outputs if row["bucket"] == bucket]
            table = answers(model, rows)
            starts = np.array([row["start"] for row in rows])
            for begin in range(0, len(rows), AT_ONCE):
                asking.log.publish(bucket, table.slice(begin, AT_ONCE))
            for start in np.unique(starts).tolist():
                mine = table.filter(pa.array(starts == start))
                tokens = (pc.sum(mine[f"{kind}_tokens"]).as_py() for kind in ("prompt", "cached", "answer"))
                failures = failures_of(mine, model.judge)
                if failures:
                    where = {**asking.where, "bucket": bucket, "chunk": start, "failures": failures}
                    _LOG.warning("questions failed", extra=where)
                spend = Spend(pc.sum(mine["attempts"]).as_py(), *tokens)
                key = Chunk(bucket, start, start).key
                ray.get(asking.budget.settle.remote(key, mine.num_rows, failures, spend))
    except AnmiError as error:
        ray.get(asking.budget.stop.remote(flatten(error)))
    return {"asked": np.array([len(outputs)])}


def _check_gpus(judge: VllmJudgeConfig, context: Context) -> None:
    """Raise ConfigError if a local Ray has too few GPUs; a cluster may get more."""
    execution = judge.execution
    needed = execution.engines[0] * execution.tensor_parallel if execution.device == "gpu" else 0
    there = int(ray.cluster_resources().get("GPU", 0))
    if context.execution.address is None and there < needed:
        raise ConfigError(
            f"{needed} GPUs are needed, and this machine's Ray has {there}",
            f"judge {judge.name}",
            "lower engines or tensor_parallel, give the address of a cluster (execution.address), "
            "or set device: cpu for a small model",
        )


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Ray and vLLM while a processor is built, and restore the levels of their loggers.

    Building one calls ray.init again, which sets the level of Ray's logger, and imports vLLM, which configures its own.
    """
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    logger, disabled = logging.getLogger("ray"), logging.root.manager.disable
    level = logger.level
    logging.disable(logging.WARNING)
    try:
        yield
    finally:
        logging.disable(disabled)
        logger.setLevel(level)


@contextmanager
def _off_screen() -> Iterator[None]:
    """Send Ray Data's tracebacks to its log file only: their cause is raised as one message."""
    shown = [one for one in logging.getLogger("ray.data").handlers if isinstance(one, logging.StreamHandler)]
    levels = [one.level for one in shown]
    for one in shown:
        one.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, level in zip(shown, levels, strict=True):
            one.setLevel(level)


@contextmanager
def _engine_errors(judge: VllmJudgeConfig) -> Iterator[None]:
    """Convert Ray's error about engines that failed to start or kept dying."""
    try:
        yield
    except RayError as error:
        where = re.search(r"\(pid=(\d+), ip=([^,)]+)", str(error))
        file = f"worker-*-{where[1]}.err on node {where[2]}" if where else "worker-*.err"
        raise JudgeError(
            f"the engine did not start, or kept dying: {_cause(str(error)) or type(error).__name__}",
            f"judge {judge.name}",
            f"see the logs of Ray's session ({file}); often it is memory: lower "
            "gpu_memory_utilization, engine_kwargs.max_num_seqs or prompt.document_tokens",
        ) from error


def _cause(text: str) -> str:
    """Return the last error in a traceback, with its lines."""
    found = list(re.finditer(r"^[\w.]*(?:Error|Exception|Death)\b.*$", text, re.MULTILINE))
    lines = text[found[-1].start() :] if found else text
    return re.sub(r" See root cause above\..*", "", " ".join(lines.split()))[:400]  # above is another process's log
