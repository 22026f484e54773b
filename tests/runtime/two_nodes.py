"""A driver on a cluster of two nodes with eight CPUs each: prints how many shards and buckets were in flight at once.

FOLDER: holds the roots, and a file for each task while it runs.
"""

from __future__ import annotations

import json
import sys
import time
import uuid
from pathlib import Path
from typing import Any

import ray
from ray._private.worker import global_worker
from ray.cluster_utils import Cluster
from ray.core.generated.autoscaler_pb2 import ClusterConfig  # pyright: ignore[reportAttributeAccessIssue]

from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.load import load
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline.run import run
from anmi_ray.runtime import capacity
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.runtime.tasks import Context, over_buckets
from anmi_ray.stages.retrieve import search
from anmi_ray.store import Store
from tests.heads import free_port
from tests.models.tiny import write_tiny_bert
from tests.small import write_config, write_topics

NODES, CPUS = 2, 8
SHARDS, BUCKETS = 12, 40
WAIT_S = 120.0


def meet(folder: Path, count: int) -> int:
    """Wait until `count` tasks are running at once, or one has seen that; the most that this task saw."""
    mine = folder / uuid.uuid4().hex
    mine.touch()
    deadline, most = time.monotonic() + WAIT_S, 0
    while most < count and not (folder / "met").exists() and time.monotonic() < deadline:
        most = max(most, len([one for one in folder.iterdir() if one.name != "met"]))
        time.sleep(0.05)
    if most >= count:
        (folder / "met").touch()
    mine.unlink()
    return most


def sleeping(bucket: int, folder: Path, count: int) -> int:
    """Wait for other tasks."""
    return meet(folder, count)


def sleeping_shards(batch: Any, *args: Any) -> Any:
    """Search shards once eight searchers are running."""
    folder = Path(args[0].store.root).parent / "shards"
    (folder.parent / f"found-{uuid.uuid4().hex}").write_text(str(meet(folder, 8)))
    return _search_shards(batch, *args)


_search_shards = search._search_shards  # pyright: ignore[reportPrivateUsage]


def refusal(folder: Path, *overrides: str) -> list[str] | None:
    """Place and remedy of the error that ends a run under a root with two buckets; None if it is not refused."""
    Store(str(folder / "few")).buckets(2)
    try:
        run(load(folder / "settings.yaml", overrides), last="ingest")
    except ConfigError as error:
        return [str(error.place), str(error.remedy)]
    return None


def reported(execution: ExecutionConfig) -> list[int]:
    """CPUs to use and tasks in flight where the cluster's autoscaler reports groups without and with GPUs."""
    config = ClusterConfig()
    for has, most in (({"CPU": 14}, 8), ({"CPU": 6, "GPU": 1}, 16)):
        group = config.node_group_configs.add(max_count=most)
        for name, amount in has.items():
            group.resources[name] = amount
    worker: Any = global_worker
    worker.gcs_client.report_cluster_config(config.SerializeToString())
    return [capacity.cpus(execution), capacity.in_flight(execution)]


def main(folder: Path) -> None:
    for name in ("shards", "buckets"):
        (folder / name).mkdir()
    # no CPUs on the head, as in cluster/sizes.yaml
    head: dict[str, Any] = {"num_cpus": 0, "include_dashboard": False, "dashboard_agent_listen_port": free_port()}
    made = Cluster(initialize_head=True, head_node_args=head)
    try:
        for _ in range(NODES):
            made.add_node(num_cpus=CPUS, memory=32 * 10**9)  # a searcher reserves some; not what this machine has free
        ray.init(address=made.address, log_to_driver=False)
        execution = ExecutionConfig(address=str(made.address), root=str(folder / "root"))
        context = Context(Store(execution.root), execution, BUCKETS, 0, Reporter().progress)
        buckets = over_buckets(context, list(range(BUCKETS)), sleeping, folder / "buckets", NODES * CPUS)
        search._search_shards = sleeping_shards  # pyright: ignore[reportPrivateUsage]
        topics, model = write_topics(folder / "topics"), str(write_tiny_bert(folder / "model"))
        write_config(
            folder / "settings.yaml",
            topics,
            corpus={"reader": "beir", "path": str(topics), "shard_documents": 15},
            retrieve={"depth": 30, "candidates": 14, "random_negatives": 3, "dense": {"model": model}},
            execution={"address": str(made.address), "root": execution.root},
        )
        run(load(folder / "settings.yaml"), last="ingest")
        few = [f"execution.root={folder / 'searched'}", "execution.buckets=4"]  # each embeds its queries in a process
        run(load(folder / "settings.yaml", few), last="retrieve")
        searched = [int(one.read_text()) for one in folder.glob("found-*")]
        found = {
            "cpus": capacity.cpus(execution),
            "window": context.window(),
            "buckets": max(buckets),
            "shards": max(searched),
            "searched": len(searched),
            "root": Store(execution.root).buckets(1),
            "few buckets": refusal(folder, f"execution.root={folder / 'few'}"),
            "few buckets, as given": refusal(folder, f"execution.root={folder / 'few'}", "execution.buckets=2"),
            "reported": reported(execution),
        }
        print(json.dumps(found))
    finally:
        ray.shutdown()
        made.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
