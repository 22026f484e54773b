"""Workers that do not fit are refused before anything starts, unless the cluster may grow."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path

import pytest
from ray.experimental import internal_kv

from anmi_ray.config.needs import gpu_of_type, of_training
from anmi_ray.config.train import TrainConfig, TrainExecution
from anmi_ray.core.errors import ConfigError
from anmi_ray.runtime.capacity import check_room, largest, may_grow, room, scales
from anmi_ray.stages.train.trainer import TrainSources, run_training

HAND_MADE = {"active_nodes": {"node_" + "fb17a6ca" * 7: 1}, "idle_nodes": None, "pending_launches": {}}
CLOUD = {"active_nodes": {"ray.head.default": 1}, "idle_nodes": None, "pending_launches": {"gpu.worker": 2}}


def test_a_worker_is_whole_on_one_node() -> None:
    nodes = [{"CPU": 3.0, "GPU": 1.0}, {"CPU": 3.0}]
    assert room(nodes, {"CPU": 1.0}) == 6
    assert room(nodes, {"CPU": 2.0}) == 2  # 6 CPUs, but three to a node
    assert room(nodes, {"CPU": 1.0, "GPU": 1.0}) == 1
    assert room([{"CPU": 0.3}], {"CPU": 0.1}) == 3
    assert room(nodes, {}) == math.inf


def test_how_large_a_cluster_may_become() -> None:
    groups = [(1, {"CPU": 4.0}), (3, {"CPU": 8.0, "GPU": 2.0})]
    assert largest(groups, {"CPU": 1.0, "GPU": 1.0}) == 6
    assert largest([(-1, {"CPU": 8.0})], {"CPU": 1.0}) == math.inf
    assert largest([(-1, {"CPU": 8.0})], {"GPU": 1.0}) == 0


def test_a_group_that_does_not_say_which_gpus_it_has_may_have_the_right_ones() -> None:
    worker = {"GPU": 1.0, **gpu_of_type("H100")}
    assert largest([(2, {"GPU": 8.0})], worker) == 16
    assert largest([(2, {"GPU": 8.0, "accelerator_type:H100": 1.0})], worker) == 16
    assert largest([(2, {"GPU": 8.0, "accelerator_type:A100": 1.0})], worker) == 0


def test_which_autoscaler_can_start_nodes() -> None:
    assert not scales(None)
    assert not scales(json.dumps({"autoscaler_report": HAND_MADE}).encode())
    assert scales(json.dumps({"autoscaler_report": CLOUD}).encode())
    assert scales(json.dumps({"time": 0.0}).encode())  # it has just started: nobody can tell


@pytest.mark.usefixtures("ray_local")
def test_what_fits_is_let_through_in_silence() -> None:
    said: list[str] = []
    check_room(of_training(TrainExecution(num_workers=4)), said.append)
    check_room(of_training(TrainExecution(num_workers=8, resources={"CPU": 0.5})), said.append)
    check_room(of_training(TrainExecution(num_workers=100, resources={"CPU": 0.0})), said.append)
    two = of_training(TrainExecution(num_workers=2))
    check_room(two, said.append, 2)
    assert said == []
    check_room(two, said.append, 3)
    assert said == ["there is room for 2 of 3 at once (execution.train.num_workers), the others wait for them"]


@pytest.mark.usefixtures("ray_local")
def test_another_cluster_that_this_process_has_shut_down_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    while may_grow({"CPU": 1.0}, 9):  # Ray has not reported yet
        time.sleep(0.1)
    monkeypatch.setattr(internal_kv, "global_gcs_client", None)  # as ray.cluster_utils.Cluster.shutdown leaves it
    with pytest.raises(ConfigError, match=r"there is room for 4"):
        check_room(of_training(TrainExecution(num_workers=5)), pytest.fail)


@pytest.mark.usefixtures("ray_local")
@pytest.mark.parametrize(
    ("execution", "there", "remedy"),
    [
        (TrainExecution(num_workers=5), "there is room for 4 (4 CPU on 1 node)", "num_workers to 4"),
        (TrainExecution(resources={"CPU": 8.0}), "there is room for 0 (4 CPU on 1 node)", "execution.train.resources"),
        (TrainExecution(use_gpu=True), "0 GPU on 1 node", "execution.train.use_gpu: false"),
    ],
)
def test_training_that_cannot_start_is_refused_at_once(
    tmp_path: Path, execution: TrainExecution, there: str, remedy: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        run_training(TrainSources([], [], []), TrainConfig(), execution, "room", str(tmp_path / "model"))
    assert caught.value.place == "execution.train.num_workers"
    assert there in caught.value.message
    assert remedy in str(caught.value.remedy)
    assert not list(tmp_path.iterdir())
