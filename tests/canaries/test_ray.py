"""What the stages take from Ray 2.60, each with what leans on it: an upgrade that breaks it fails here first."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
import logging
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import ray
import ray.data
import ray.exceptions
import ray.train
import ray.train.torch
import ray.train.v2.api.config
from ray.data import ActorPoolStrategy, DataContext


def test_actor_pool_arguments() -> None:
    names = set(inspect.signature(ActorPoolStrategy).parameters)
    assert {"size", "min_size", "max_size", "initial_size", "max_tasks_in_flight_per_actor"} <= names


def test_map_batches_takes_named_resources() -> None:
    parameters = inspect.signature(ray.data.Dataset.map_batches).parameters
    assert {"compute", "batch_format", "num_cpus", "memory", "fn_constructor_kwargs", "label_selector"} <= set(
        parameters
    )
    assert parameters["batch_size"].default is None, "the default batch is a whole block: a chunk is a block"


def test_context_settings_the_stages_set() -> None:
    names = {field.name for field in dataclasses.fields(DataContext)}
    assert {"execution_no_progress_timeout_s", "max_consecutive_actor_init_deaths", "max_errored_blocks"} <= names
    assert DataContext.get_current().max_errored_blocks == 0, "a failed block must fail the stage, not be dropped"


def test_context_is_scoped() -> None:
    outer = DataContext.get_current().execution_no_progress_timeout_s
    context = DataContext.get_current().copy()
    context.execution_no_progress_timeout_s = 7200
    with DataContext.current(context):
        assert DataContext.get_current().execution_no_progress_timeout_s == 7200
    assert DataContext.get_current().execution_no_progress_timeout_s == outer


def test_train_v2_is_the_default_and_refuses_what_v1_had() -> None:
    assert ray.train.torch.TorchTrainer.__module__.startswith("ray.train.v2."), "resume and report follow Train v2"
    with pytest.raises(DeprecationWarning):
        ray.train.RunConfig(name="a", storage_path="/tmp", verbose=1)  # type: ignore[arg-type]


def test_train_resumes_by_name_and_storage_path() -> None:
    assert list(inspect.signature(ray.train.RunConfig).parameters)[:2] == ["name", "storage_path"]
    assert not inspect.signature(ray.train.get_checkpoint).parameters
    failure = ray.train.FailureConfig()
    assert failure.max_failures == 0, "retries are ours to ask for"
    assert failure.controller_failure_limit == -1, "an impossible request loops quietly unless we limit it"


def test_report_is_a_call_with_metrics_and_checkpoint() -> None:
    assert list(inspect.signature(ray.train.report).parameters)[:2] == ["metrics", "checkpoint"]


def test_llm_processor_has_its_new_name() -> None:
    llm = pytest.importorskip("ray.data.llm")
    assert hasattr(llm, "build_processor")
    assert hasattr(llm, "vLLMEngineProcessorConfig")
    assert not hasattr(llm, "build_llm_processor")


def test_several_nodes_in_one_process_need_cluster_utils() -> None:
    cluster = importlib.import_module("ray.cluster_utils").Cluster
    assert {"add_node", "remove_node", "shutdown"} <= set(dir(cluster))


def test_an_exception_in_a_parquet_writer_leaves_a_valid_partial_file(tmp_path: Path) -> None:
    """Why a file is built whole and published once, and why "does it open" proves nothing."""
    path = tmp_path / "partial.parquet"
    table = pa.table({"x": list(range(10))})

    def write_half() -> None:
        with pq.ParquetWriter(path, table.schema) as writer:
            writer.write_table(table)
            raise RuntimeError("half way")

    with pytest.raises(RuntimeError, match="half way"):
        write_half()
    assert pq.read_table(path).num_rows == 10


class _Times:
    def __init__(self, factor: int) -> None:
        self.factor = factor

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        assert not batch["item"].flags.writeable, "batches are views of the object store"
        return {"item": batch["item"] * self.factor}


def test_actor_pool_over_blocks(ray_local: None) -> None:
    rows = ray.data.from_items(list(range(8)), override_num_blocks=4)
    pool = ActorPoolStrategy(size=1)
    rows = rows.map_batches(
        _Times, fn_constructor_kwargs={"factor": 3}, compute=pool, num_cpus=0.25, batch_format="numpy"
    )
    assert sorted(row["item"] for row in rows.take_all()) == [3 * i for i in range(8)]


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_concurrency_argument_is_deprecated(ray_local: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pools are given as `compute`; Ray says so in its log, which does not propagate."""
    said: list[str] = []
    monkeypatch.setattr(logging.Logger, "warning", lambda self, text, *rest, **named: said.append(str(text)))
    monkeypatch.setattr(warnings, "warn", lambda message, *rest, **named: said.append(str(message)))
    ray.data.range(1).map_batches(_Times, fn_constructor_kwargs={"factor": 1}, concurrency=1)
    assert any("concurrency" in text for text in said)


def test_tasks_are_retried_only_for_what_is_named(ray_local: None, tmp_path: Path) -> None:
    """`retry_exceptions` takes a list: a transient failure is tried again, a defect of ours is not."""

    @ray.remote(num_cpus=0.25, max_retries=2, retry_exceptions=[ConnectionError])  # pyright: ignore[reportArgumentType]
    def attempt(log: Path, error: type[Exception]) -> int:
        with log.open("a") as file:
            file.write("x")
        tries = len(log.read_text())
        if tries < 3:
            raise error("again")
        return tries

    assert ray.get(attempt.remote(tmp_path / "transient", ConnectionError)) == 3
    with pytest.raises(ray.exceptions.RayTaskError):
        ray.get(attempt.remote(tmp_path / "defect", KeyError))
    assert (tmp_path / "defect").read_text() == "x"
