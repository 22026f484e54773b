"""Work on a cluster follows the size of the cluster, not of the driver's machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from typing import Any

import pytest

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.train import TrainExecution
from anmi_ray.core.errors import ConfigError
from anmi_ray.runtime.capacity import check_buckets, in_flight
from anmi_ray.runtime.tasks import model_room
from tests.heads import REPOSITORY, environment

LARGE = ExecutionConfig(address="auto", cpus=112)
HERE = ExecutionConfig()


@pytest.fixture(scope="module")
def two_nodes(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What tests/runtime/two_nodes.py prints; in a process of its own, as this one may be connected to another Ray."""
    folder = tmp_path_factory.mktemp("two-nodes")
    with tempfile.TemporaryDirectory(prefix="anmi-", dir="/tmp", ignore_cleanup_errors=True) as temp:
        os.mkdir(f"{temp}/ray")
        done = subprocess.run(
            [sys.executable, "-m", "tests.runtime.two_nodes", str(folder)],
            capture_output=True,
            text=True,
            timeout=500,
            env=environment(RAY_TMPDIR=temp),
            cwd=REPOSITORY,
        )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.long
@pytest.mark.ray
class TestTwoNodesOfEightCpus:
    def test_shards_and_buckets_are_in_flight_on_both(self, two_nodes: dict[str, Any]) -> None:
        assert two_nodes["cpus"] == 16
        assert two_nodes["window"] == 32
        assert two_nodes["buckets"] >= 16
        assert two_nodes["shards"] >= 8
        assert two_nodes["searched"] == 12

    def test_a_new_root_gets_two_buckets_per_cpu(self, two_nodes: dict[str, Any]) -> None:
        assert two_nodes["root"] == 32

    def test_a_root_with_few_buckets_is_refused_unless_asked_for(self, two_nodes: dict[str, Any]) -> None:
        place, remedy = two_nodes["few buckets"]
        assert place.endswith("/few")
        assert "--root" in remedy
        assert "execution.buckets=2" in remedy
        assert two_nodes["few buckets, as given"] is None

    def test_what_the_autoscaler_reports_counts_without_nodes_for_gpus(self, two_nodes: dict[str, Any]) -> None:
        assert two_nodes["reported"] == [112, 112]


@pytest.mark.parametrize(
    ("execution", "known"),
    [
        (HERE, 2),  # a Ray started here takes any root
        (ExecutionConfig(buckets=4096), 8),
        (LARGE, None),
        (LARGE, 28),
        (LARGE.model_copy(update={"cpus": 32}), 8),
        (ExecutionConfig(address="auto", cpus=112, buckets=8), 8),
    ],
)
def test_roots_that_are_taken(execution: ExecutionConfig, known: int | None) -> None:
    check_buckets(execution, known, "results")


@pytest.mark.parametrize(
    ("execution", "known", "least"),
    [(LARGE, 8, "28"), (LARGE, 27, "28"), (ExecutionConfig(address="auto", cpus=1, buckets=256), 8, "64")],
)
def test_roots_that_are_refused(execution: ExecutionConfig, known: int, least: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_buckets(execution, known, "s3://bucket/trial")
    assert caught.value.place == "root s3://bucket/trial"
    assert f"at least {least} query buckets" in caught.value.message
    assert f"execution.buckets={known}" in str(caught.value.remedy)


def test_buckets_of_a_new_root() -> None:
    assert [HERE.buckets_on(cpus) for cpus in (0, 4, 5, 112, 2048, 10**6)] == [8, 8, 16, 256, 4096, 65_536]
    assert ExecutionConfig(buckets=16).buckets_on(112) == 16


def test_threads_are_a_clusters_own() -> None:
    assert model_room(LARGE) == (1, 1.0)
    assert model_room(LARGE.model_copy(update={"threads": 3})) == (3, 3.0)
    assert model_room(HERE)[0] == HERE.training.threads == HERE.cores
    assert LARGE.training.threads == 1
    asked = TrainExecution(resources={"CPU": 8.0})
    assert ExecutionConfig(address="auto", train=asked).training.threads == 8
    assert ExecutionConfig(address="auto", train=asked, threads=2).training.threads == 2


def test_actors_that_ask_are_as_many_as_the_clusters_cpus() -> None:
    assert HERE.asking == (HERE.cores, HERE.cores)
    assert LARGE.asking == (1, 112)
    assert LARGE.model_copy(update={"askers": 3}).asking == (3, 3)


def test_a_known_largest_size_is_never_exceeded() -> None:
    assert in_flight(LARGE) == 112
