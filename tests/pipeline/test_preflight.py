"""A cluster of three nodes, one of which sees other disks: what a run could not carry out there is named beforehand.

The third node lives in a mount namespace of its own, so that one folder is another for it, and one it may only read.
"""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ray.cluster_utils import Cluster

from tests.heads import REPOSITORY, environment, free_port
from tests.small import write_collection, write_config

pytestmark = [
    pytest.mark.slow,
    pytest.mark.ray,
    pytest.mark.timeout(400),
    pytest.mark.skipif(
        subprocess.run(["unshare", "-m", "true"], capture_output=True, check=False).returncode != 0,
        reason="needs the right to make mount namespaces (unshare -m)",
    ),
]


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    base = tmp_path_factory.mktemp("disks")
    made = {name: base / name for name in ("shared", "private", "read_only")}
    for folder in made.values():
        folder.mkdir()
    return made


@pytest.fixture(scope="module")
def cluster(folders: dict[str, Path]) -> Iterator[str]:
    """The address: a head, a node for annotation with two A100 that are not there, and one apart, for training."""
    with tempfile.TemporaryDirectory(prefix="anmi-", dir="/tmp") as temp, pytest.MonkeyPatch.context() as patch:
        for name, value in environment(RAY_TMPDIR=temp).items():
            patch.setenv(name, value)
        (Path(temp) / "ray").mkdir()
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        a100s = {"num_gpus": 2, "resources": {"accelerator_type:A100": 1}}
        made.add_node(num_cpus=2, labels={"ray-subcluster": "annotate"}, **a100s)
        address = str(made.address)
        apart = node_apart(address, folders)
        try:
            wait_for(made, 3)
            yield address
        finally:
            os.killpg(apart.pid, signal.SIGKILL)
            apart.wait()
            made.shutdown()


def node_apart(address: str, folders: dict[str, Path]) -> subprocess.Popen[bytes]:
    """A node for which `private` is a disk of its own, and `read_only` may not be written."""
    private, read_only = (shlex.quote(str(folders[name])) for name in ("private", "read_only"))
    start = [str(Path(sys.executable).parent / "ray"), "start", "--block", f"--address={address}", "--num-cpus=1"]
    start += ["--num-gpus=0", "--labels=ray-subcluster=train", "--object-store-memory=150000000"]
    start += [f"--dashboard-agent-listen-port={free_port()}", "--disable-usage-stats"]
    mounts = f"mount -t tmpfs none {private} && mount --bind {read_only} {read_only}"
    mounts += f" && mount -o remount,bind,ro {read_only}"
    return subprocess.Popen(
        ["unshare", "-m", "sh", "-c", f"{mounts} && exec {shlex.join(start)}"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def wait_for(cluster: Cluster, nodes: int) -> None:
    deadline = time.monotonic() + 120
    while len([one for one in cluster.global_state.node_table() if one["Alive"]]) < nodes:
        assert time.monotonic() < deadline
        time.sleep(0.2)


@pytest.fixture(scope="module")
def found(cluster: str, folders: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("asked")
    config = write_config(
        folder / "small.yaml", write_collection(folder / "collection", train=4, dev=1, test=2, others=9)
    )
    command = [sys.executable, "-m", "tests.stages.on_cluster", cluster, str(config), *map(str, folders.values())]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=environment(), cwd=REPOSITORY)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_what_fits_is_let_through_and_nothing_is_left(found: dict[str, Any]) -> None:
    assert found["fits"] is None
    assert found["left behind"] == []
    assert found["gpus there"] is None
    assert found["notices"] == []


def test_storage_that_is_not_shared(found: dict[str, Any], folders: dict[str, Path]) -> None:
    told = found["not shared"]
    assert told["kind"] == "StoreError"
    assert "the storage is not shared by the nodes: node " in told["message"]
    assert "does not see what node" in told["message"]
    assert told["place"] == str(folders["private"])
    assert "s3://" in told["remedy"]
    assert list(folders["private"].iterdir()) == []


def test_storage_that_a_node_may_not_write(found: dict[str, Any], folders: dict[str, Path]) -> None:
    told = found["read only"]
    assert told["kind"] == "StoreError"
    assert told["message"].startswith("read-only filesystem")
    assert str(folders["read_only"]) in told["message"]
    assert told["place"].startswith("node ")
    assert list(folders["read_only"].iterdir()) == []


def test_a_key_that_the_nodes_do_not_have(found: dict[str, Any]) -> None:
    told = found["no such key"]
    assert "NO_SUCH_KEY is not set" in told["message"]
    assert told["place"].startswith("node ")


def test_what_does_not_fit_is_named_with_the_room_and_the_setting(found: dict[str, Any]) -> None:
    assert (found["no such gpu"]["kind"], found["no such gpu"]["place"]) == ("ConfigError", "judge.judges.0.execution")
    said = [
        ("no such gpu", "of the GPUs 2 A100", "judge.judges.0.execution.accelerator_type"),
        ("another type", "1 worker of 0.1 CPU, 1 H100 each: there is room for 0", "accelerator_type to what is there"),
        ("another type", "of the GPUs 2 A100", "execution.train.accelerator_type"),
        ("too many gpus", "there is room for 2", "lower execution.train.num_workers to 2"),
        ("too large", "there is room for 0", ""),
        ("gpus elsewhere", "0 GPU on 1 node of 3 labelled ray-subcluster=train", ""),
        ("no such label", "on 0 nodes of 3 labelled ray-subcluster=moon", "execution.train.label_selector"),
        ("no such label", "", "ray-subcluster=annotate, ray-subcluster=train"),
    ]
    wrong = [row for row in said if row[1] not in found[row[0]]["message"] or row[2] not in found[row[0]]["remedy"]]
    assert wrong == []


def test_work_stays_on_the_nodes_with_the_labels(found: dict[str, Any]) -> None:
    assert found["data"] == ["annotate"]
    assert found["group"] == "annotate"
    assert found["training"]["message"] == "trained on annotate"
