"""A node is removed while judges are asked: the run ends as if nothing had been, on the nodes that are left."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pyarrow as pa
import pytest
from ray.cluster_utils import Cluster

from anmi_ray.core.records import COMPARISON, JUDGMENT
from anmi_ray.pipeline.resolve import resolve
from anmi_ray.store import Artifact, Store
from tests.faults.test_judging import IN_FLIGHT, PUBLISHED, Campaign
from tests.faults.test_kill import command
from tests.judging.serving import Chat, serving
from tests.small import start_from, write_config

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(900)]
ASKERS, FAULTS = 3, {"429:0": 0.08, "500": 0.08, "reset": 0.06, "invalid": 0.05, "empty": 0.03}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    """A head that holds the driver, with room for one asker, and a node with room for the others."""
    # agents of its nodes may still be writing their logs when it is removed
    with tempfile.TemporaryDirectory(prefix="anmi-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        monkeypatch.setenv("RAY_TMPDIR", folder)
        (Path(folder) / "ray").mkdir()
        made = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
        made.add_node(num_cpus=2)
        yield made
        made.shutdown()


def askers(parent: int) -> list[psutil.Process]:
    """The processes below `parent` that hold a judge's engine."""
    found = []
    for child in psutil.Process(parent).children(recursive=True):
        try:
            if "MapWorker" in " ".join(child.cmdline()):
                found.append(child)
        except psutil.Error:
            continue
    return found


def test_a_node_goes_while_judges_are_asked(
    prepared: Path, small_collection: Path, cluster: Cluster, tmp_path: Path
) -> None:
    root = start_from(prepared, tmp_path / "root", "retrieve")
    with serving() as port:
        chat = Chat(port, "nodes")
        chat.setup(faults=FAULTS, latency_s=0.01)
        endpoint = chat.config(concurrency=ASKERS * IN_FLIGHT, retries=4).model_dump()
        config = write_config(
            tmp_path / "nodes.yaml",
            small_collection,
            judge={"judges": [{"kind": "api", "name": "llm", "endpoint": endpoint, "prompt": {"template": "letters"}}]},
            compare={"degree": 4},
            execution={"buckets": 4, "askers": ASKERS, "chunk": 1024, "address": cluster.address},
        )
        campaign = Campaign(config, root, chat)
        run = command(config, campaign.root)
        (node,) = cluster.worker_nodes
        raylet = node.all_processes["raylet"][0].process.pid
        with subprocess.Popen(
            [*run, "--until", "judge"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=os.environ
        ) as process:
            while process.poll() is None and not (askers(raylet) and len(chat.log()) > 1000):
                time.sleep(0.1)
            assert process.poll() is None, process.communicate()[0]
            lost = len(askers(raylet))
            cluster.remove_node(node, allow_graceful=False)
            said, _ = process.communicate(timeout=600)
        assert process.returncode == 0, said
        told = chat.log()
    assert lost
    judge = Artifact(Store(str(campaign.root)), "judge", resolve(campaign.experiment)["judge"].fingerprint)
    judgments = pa.concat_tables([judge.read_part("judgments", bucket, JUDGMENT) for bucket in range(4)])
    compare = campaign.artifact("compare")
    pairs = sum(compare.read_part("comparisons", bucket, COMPARISON).num_rows for bucket in range(4))
    assert judgments.num_rows == 2 * pairs
    assert not judgments["error"].drop_null().to_pylist()
    delivered = Counter(entry["question"] for entry in told if entry["action"] == "ok")
    doubled = sum(delivered.values()) - len(delivered)
    assert doubled <= lost * (PUBLISHED + IN_FLIGHT)
    spent = (judge.manifest() or {})["spent"]["llm"]
    assert spent["calls"] + spent["calls_uncounted"] >= len(told)
    print(f"{len(delivered):,} questions, {lost} askers lost with their node, {doubled} bought twice")
