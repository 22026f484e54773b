"""Scoring with a share of a GPU: what is asked of Ray, what is refused, and that scores are those of the CPU.

Ray takes a machine's word for its GPUs, so that what is asked shows on one without any; torch then sees none.
"""

from __future__ import annotations

import logging
import multiprocessing
import os
import platform
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
import torch
from ray._private import state

from anmi_ray.config.evaluate import PeerConfig
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.load import load
from anmi_ray.config.retrieve import LateConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.core.records import RUN
from anmi_ray.models.kinds import load_reranker
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.pipeline.run import run
from anmi_ray.runtime import actors
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context
from anmi_ray.stages.rerank import held_out, scoring
from anmi_ray.stages.retrieve import late
from anmi_ray.store import Artifact, Flow
from tests.models.test_token_vectors import write_pylate
from tests.models.tiny import write_tiny_bert, write_tiny_classifier
from tests.small import Remembering, write_config
from tests.stages.test_peers import DEPTH, World

HALF = {"gpus": 0.5, "on": {"zone": "fast"}}
no_gpu = pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU is there")


@no_gpu
@pytest.mark.ray
@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize("stage", ["retrieve", "rerank"])
def test_without_a_gpu_a_run_is_refused_before_anything_is_computed(
    small_collection: Path, tmp_path: Path, stage: str
) -> None:
    """By late interaction within retrieve alone, and by rerank alone."""
    dense = {"depth": 30, "candidates": 14, "retrievers": ["dense", "late"] if stage == "retrieve" else ["dense"]}
    config = write_config(tmp_path / "small.yaml", small_collection, retrieve=dense)
    settings = load(config, [f"execution.root={tmp_path / 'root'}"])
    asking = load(config, [f"execution.root={tmp_path / 'root'}", "execution.score.gpus=.5"])
    names = {name: made.fingerprint for name, made in resolve(settings).items()}
    assert {name: made.fingerprint for name, made in resolve(asking).items()} == names
    told = Remembering()
    with pytest.raises(ConfigError, match=r"1 scorer of 0\.5 GPU each: there is room for 0") as caught:
        run(asking, reporter=told, last=stage)
    assert caught.value.remedy is not None
    assert "set execution.score.gpus: 0" in caught.value.remedy
    assert told.computed == []


def wait_for_end(processes: set[int]) -> None:
    deadline = time.monotonic() + 30
    while [one for one in processes if Path(f"/proc/{one}").exists()]:
        assert time.monotonic() < deadline, "a scorer that outlives its calls"
        time.sleep(0.05)


class OneGpu:
    """A Ray of one node that says that it has a GPU, and one bucket of queries whose documents peers score."""

    def __init__(self, root: Path) -> None:
        ray.init(
            address="local", num_cpus=4, num_gpus=1, labels={"zone": "fast"}, include_dashboard=False,
            log_to_driver=False, logging_level=logging.ERROR, _temp_dir=str(root / "ray"),
        )  # fmt: skip
        self.world = World(root / "store", ["one", "two", "three"])
        store = self.world.store
        execution = ExecutionConfig.model_validate({"root": store.root, "address": "auto", "score": HALF})
        self.context = Context(store, execution, 1, 0, Reporter().progress)

    def calls(self) -> dict[int, list[Any]]:
        """Of eight calls, the process of each, what it holds, and its node's label."""

        def where_am_i(number: int) -> list[Any]:  # local, so that its process imports nothing of this file
            context = ray.get_runtime_context()
            return [os.getpid(), context.get_assigned_resources(), context.get_node_labels()["zone"]]

        many = replace(self.context, buckets=8)
        return dict(actors.scorers(many.execution)(many, ((number, where_am_i, (number,)) for number in range(8))))

    def scored(self, model: Path) -> Artifact:
        return held_out.score_peer(peer(model), self.world.retrieve, self.world.ingest, DEPTH, self.context)

    def refused(self, model: Path) -> str:
        """What is said where a peer is scored: torch sees no GPU."""
        with pytest.raises(ConfigError) as caught:
            self.scored(model)
        return str(caught.value)

    def read(self, model: Path) -> tuple[int, int]:
        """Rows of a bucket whose scores by document are there, and how many actors it took."""
        before = len(state.actors())
        made = held_out.artifact_of(peer(model), self.world.retrieve, self.world.ingest, DEPTH)
        scoring.score(made, 0, 1, partial(load_reranker, str(model)))
        return self.scored(model).read_part("runs", 0, RUN).num_rows, len(state.actors()) - before


def peer(model: Path) -> PeerConfig:
    return PeerConfig(name="tiny", model=str(model), precision="float32")


def on_one_gpu(root: Path, cross_encoder: Path, colbert: Path) -> dict[str, Any]:
    """What came of scoring where Ray has a GPU and torch sees none."""
    try:
        one = OneGpu(root)
        found: dict[str, Any] = {"calls": one.calls()}
        wait_for_end({process for process, *_ in found["calls"].values()})
        found["refused"] = [one.refused(colbert), one.refused(cross_encoder)]
        found["read"] = one.read(colbert)
        return found
    finally:
        ray.shutdown()


@no_gpu
@pytest.mark.long
@pytest.mark.ray
def test_scorers_hold_their_share_of_a_gpu_and_tasks_that_compute_nothing_hold_none(
    tmp_path: Path, short_temp: Path
) -> None:
    start = write_tiny_bert(tmp_path / "bert")
    models = write_tiny_classifier(tmp_path / "cross", ["relevance"]), write_pylate(tmp_path / "colbert", start)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as own:  # this process may have a Ray without
        found = own.submit(on_one_gpu, short_temp / "scorers", *models).result()
    assert set(found["calls"]) == set(range(8))
    assert len({process for process, *_ in found["calls"].values()}) <= 2  # a half each: whoever is free goes on
    for _, resources, zone in found["calls"].values():
        assert {name: resources[name] for name in ("CPU", "GPU")} == {"CPU": 1.0, "GPU": 0.5}
        assert zone == "fast"
    for said in found["refused"]:
        assert platform.node() in said
        assert "set execution.score.gpus: 0" in said
    assert found["read"] == (3 * DEPTH, 0)


@no_gpu
def test_late_interaction_says_where_no_gpu_is_seen() -> None:
    with pytest.raises(ConfigError, match=rf"{platform.node()}(.|\n)*set execution\.score\.gpus: 0"):
        late.encoder("{}", "", 1, "cuda")


def test_a_full_gpu_is_no_traceback() -> None:
    def fill() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.\nGPU 0 has ...")

    scorer = actors._Scorer()  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(ConfigError, match=r"Tried to allocate 20\.00 GiB\.\n.*fewer scorers share a GPU"):
        scorer.run(fill)
    with pytest.raises(RuntimeError, match="shape"):
        scorer.run(torch.zeros(2).view, 3)


@pytest.mark.gpu
def test_a_gpu_gives_the_scores_of_the_cpu(tmp_path: Path) -> None:
    world = World(tmp_path / "store", ["one", "two", "three"])
    model = write_tiny_classifier(tmp_path / "model", ["relevance"])
    scores = {}
    for device in ("cpu", "cuda"):
        world.device = device
        artifact, flows = world.score(peer(model), device)
        assert flows == [Flow("test queries", 3, 3)]
        run = artifact.read_part("runs", 0, RUN).sort_by([("query_id", "ascending"), ("doc_id", "ascending")])
        scores[device] = run["score"].to_numpy()
    np.testing.assert_allclose(scores["cuda"], scores["cpu"], atol=1e-4)
    encoders = [late.encoder(LateConfig().model_dump_json(), str(write_tiny_bert(tmp_path / "bi")), 1, "cuda")]
    assert encoders[0].encode(["word1 word2"], "document")[0].shape[0] > 0
