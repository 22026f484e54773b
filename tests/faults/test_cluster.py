"""The quickstart as a job on a cluster of several nodes, one of which goes in every stage: what one node makes of it.

Every node but the head's is taken away in its turn while it is at work, and another takes its place. With
ANMI_QUICKSTART=whole the quickstart has its own size; else less of everything.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest
from ray.cluster_utils import Cluster

from tests.faults.test_kill import carried_out, files, finished_buckets
from tests.heads import REPOSITORY, environment, free_port
from tests.models.tiny import write_tiny_bert
from tests.small import NAMES
from tests.training.one_task import in_one_task

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.ray, pytest.mark.timeout(2400)]
CONFIG = REPOSITORY / "jobs" / "configs" / "quickstart-labels.yaml"
LESS = (
    "corpus.max_train_queries=120", "corpus.max_dev_queries=15", "corpus.max_test_queries=30", "retrieve.candidates=20",
    "train.max_steps=8", "train.max_tokens=48", "retrieve.dense.max_tokens=32",
)  # fmt: skip
SIZE = () if os.environ.get("ANMI_QUICKSTART") == "whole" else LESS
# what every node has, and the checks before the first stage
IDLE = ("ray::IDLE", "ray::DashboardAgent", "ray::RuntimeEnvAgent", "ray::_look")
DATED = ("log.json", "training.json", "files.json")  # they say when and where the model was trained
# what Ray says of a node that died: hundreds of lines
NOISE = ("\x1b[33m(raylet)", "(raylet)", "[state-dump]", "[20")
# a sum of floats depends on its threads, a node's room is not this machine's, and of four shards some are lost
EQUAL = ("execution.threads=1", "corpus.shard_documents=1500", *SIZE)


@pytest.fixture
def overrides(tmp_path: Path) -> tuple[str, ...]:
    """What both runs have in common beside the file; with less of everything, tiny models too."""
    if not SIZE:
        return EQUAL
    tiny = write_tiny_bert(tmp_path / "tiny")
    return (*EQUAL, f"train.model={tiny}", "train.freeze_layers=1", f"retrieve.dense.model={tiny}")


@pytest.fixture
def alone(ray_local: None, overrides: tuple[str, ...], tmp_path: Path) -> Path:
    """The root of a run that nothing disturbs, on this machine, in this process."""
    root = tmp_path / "alone"
    with in_one_task():
        carried_out(CONFIG, root, *overrides)
    return root


@pytest.fixture
def cluster(alone: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head that a job's driver fills, and two nodes for all that it starts."""
    # agents of its nodes may still be writing their logs when it is removed
    with tempfile.TemporaryDirectory(prefix="anmi-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        for name, value in environment(RAY_TMPDIR=folder).items():
            monkeypatch.setenv(name, value)
        (Path(folder) / "ray").mkdir()
        ports = {"dashboard_port": free_port(), "dashboard_agent_listen_port": free_port()}
        head: dict[str, Any] = {"num_cpus": 1, "include_dashboard": True, "dashboard_host": "127.0.0.1", **ports}
        head["_system_config"] = {"health_check_period_ms": 1000, "health_check_failure_threshold": 3}
        made = Cluster(initialize_head=True, head_node_args=head)
        try:
            for _ in range(2):
                add_node(made)
            yield made
        finally:
            made.shutdown()


def add_node(cluster: Cluster) -> None:
    """A node with a folder of its own for what jobs bring along.

    Nodes on one machine share it otherwise, and one that unpacks a job's files deletes what is there: the directory in
    which the driver works, and MKL then ends the driver.
    """
    cluster.add_node(num_cpus=2, runtime_env_dir_name=f"resources-{uuid.uuid4().hex[:8]}")


def at_work(node: Any) -> list[str]:
    """The titles of a node's processes that carry something out."""
    raylet, found = node.all_processes["raylet"][0].process.pid, []
    for child in psutil.Process(raylet).children(recursive=True):
        try:
            title = " ".join(child.cmdline()).strip()
        except psutil.Error:
            continue
        if title.startswith("ray::") and not title.startswith(IDLE):
            found.append(title)
    return found


def driver(cluster: Cluster) -> psutil.Process:
    """The process that carries out the job's stages, below the head."""
    assert cluster.head_node is not None
    raylet = cluster.head_node.all_processes["raylet"][0].process.pid
    for child in psutil.Process(raylet).children(recursive=True):
        with suppress(psutil.Error):
            if {"anmi_ray", "run"} <= set(child.cmdline()):
                return child
    raise AssertionError("no driver is at work")


@contextmanager
def standing_still(process: psutil.Process) -> Iterator[None]:
    """The process is stopped, and goes on afterwards."""
    process.suspend()
    try:
        yield
    finally:
        process.resume()


def stage_under_way(root: Path) -> str | None:
    """The first stage that is not complete."""
    return next((name for name in NAMES if not list(root.glob(f"artifacts/{name}/*/manifest.json"))), None)


@dataclass
class Losses:
    """The nodes that were taken away: what they were at in which stage, and the buckets that were finished before."""

    cluster: Cluster
    root: Path
    hit: dict[str, list[str]] = field(default_factory=dict)
    before: dict[str, int] = field(default_factory=dict)

    def take(self) -> None:
        """Take a node away that is at work, where none was in this stage, and put another in its place.

        The driver stands still meanwhile: a busy machine takes so long for it that the next stage would be over.
        """
        stage = stage_under_way(self.root)
        if stage is None or stage in self.hit:
            return
        for node in list(self.cluster.worker_nodes):
            if titles := at_work(node):
                with standing_still(driver(self.cluster)):
                    self.before |= finished_buckets(self.root)
                    self.cluster.remove_node(node, allow_graceful=False)
                    self.hit[stage] = sorted(set(titles))
                    add_node(self.cluster)
                return


def test_a_node_goes_in_every_stage(alone: Path, cluster: Cluster, overrides: tuple[str, ...], tmp_path: Path) -> None:
    root = tmp_path / "cluster"
    submit = [sys.executable, "-m", "anmi_ray", "submit", "pipeline", str(CONFIG), *overrides, "--root", str(root)]
    # one bucket at a time: a stage of a few small tasks would be over before its node is seen at work
    submit += ["execution.driver.num_cpus=1", "execution.window=1", "--address", f"http://{cluster.webui_url}"]
    losses, began = Losses(cluster, root), time.monotonic()
    with (tmp_path / "said").open("w+") as said, subprocess.Popen(submit, stdout=said, stderr=said) as process:
        while process.poll() is None:  # in this thread: Ray starts nodes in the main one only
            losses.take()
            time.sleep(0.01)
        said.seek(0)
        log = "".join(line for line in said if not line.lstrip().startswith(NOISE))
    for stage, titles in losses.hit.items():
        print(f"{stage:10} lost a node with {', '.join(titles)}")
    print(f"{time.monotonic() - began:.0f} s")
    assert process.returncode == 0, log
    assert log.count(": submitted") == 1, log  # one attempt: the driver goes on by itself
    after = finished_buckets(root)
    assert [path for path, when in losses.before.items() if after.get(path) != when] == []
    expected, found = (  # a report says how long stages took
        {path: content for path, content in files(one, NAMES[:-1]).items() if not path.endswith(DATED)}
        for one in (alone, root)
    )
    assert any(path.endswith("model.safetensors") for path in expected)
    assert sorted(found) == sorted(expected)
    assert [path for path in expected if expected[path] != found[path]] == []
    assert {"retrieve", "judge", "train", "rerank"} <= set(losses.hit), sorted(losses.hit)
    # a short stage may be over before its node is seen at work
    assert len(losses.hit) >= len(NAMES) - 3, sorted(losses.hit)
