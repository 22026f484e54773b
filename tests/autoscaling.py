"""A cluster on this machine that starts and ends nodes by itself, and what was seen of it while something ran on it.

The head is Ray's own, with its autoscaler (v2) over the provider that Ray tests itself with: a node is a raylet more.
All of it lives in a process group of its own, and goes with it.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import ray

from tests.heads import Head, head

PROVIDER = "ray.autoscaler._private.fake_multi_node.node_provider.FakeMultiNodeProvider"
HEAD_ID = "f" * 51 + "00000"  # the name by which that provider knows the head
HEAD_TYPE = "ray.head.default"
# what an autoscaler's file must have, and this provider does not read
COMMANDS = ("initialization", "setup", "head_setup", "worker_setup", "head_start_ray", "worker_start_ray")


@contextmanager
def scaling(groups: Mapping[str, Mapping[str, Any]], idle_s: float = 10.0, head_cpus: int = 2) -> Iterator[Head]:
    """A head whose autoscaler starts nodes of `groups` (by name, their resources, min_workers, max_workers, labels)."""
    kinds = {name: {"node_config": {}, "min_workers": 0, **group} for name, group in groups.items()}
    config: dict[str, Any] = {
        "cluster_name": "anmi",
        "max_workers": sum(kind["max_workers"] for kind in kinds.values()),
        "provider": {"type": "external", "module": PROVIDER, "launch_multiple": True, "head_node_id": HEAD_ID},
        "available_node_types": {
            HEAD_TYPE: {"resources": {"CPU": head_cpus}, "node_config": {}, "max_workers": 0},
            **kinds,
        },
        "head_node_type": HEAD_TYPE,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": idle_s / 60,
        "auth": {},
        "file_mounts": {},
        "cluster_synced_files": [],
        **{f"{name}_commands": [] for name in COMMANDS},
    }
    variables = {
        "AUTOSCALER_UPDATE_INTERVAL_S": "1",
        "RAY_FAKE_CLUSTER": "1",
        "RAY_enable_autoscaler_v2": "1",
        "RAY_CLOUD_INSTANCE_ID": HEAD_ID,
        "RAY_OVERRIDE_NODE_ID_FOR_TESTING": HEAD_ID,
    }
    with head(head_cpus, config, variables) as made:
        yield made


@dataclass(frozen=True)
class Seen:
    """At so many seconds: the nodes that were there, by group, and how many questions waited."""

    seconds: float
    nodes: Mapping[str, int]
    backlog: int


@dataclass
class Watch:
    """Sees nodes and backlog twice a second. This process must be connected to the cluster."""

    backlog: Callable[[], int]
    label: str = "ray-subcluster"
    seen: list[Seen] = field(default_factory=list)
    over: threading.Event = field(default_factory=threading.Event)

    def __enter__(self) -> Watch:
        self._began = time.monotonic()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self.over.wait(0.5):
            groups = Counter(node["Labels"].get(self.label, "head") for node in ray.nodes() if node["Alive"])
            self.seen.append(Seen(time.monotonic() - self._began, dict(groups), self.backlog()))

    def until(self, found: Callable[[Seen], bool], timeout_s: float) -> Seen:
        """The first sight from now on of which something is true."""
        first, deadline = len(self.seen), time.monotonic() + timeout_s
        while True:
            for one in self.seen[first:]:
                if found(one):
                    return one
            assert time.monotonic() < deadline, self.seen[-3:]
            time.sleep(0.1)


def raylets(made: Head) -> list[psutil.Process]:
    """The raylets of nodes that the autoscaler started, the newest last."""
    found = []
    for process in psutil.process_iter():
        try:
            if os.getpgid(process.pid) == made.group and process.name() == "raylet":
                found.append(process)
        except (psutil.Error, ProcessLookupError):
            continue
    return sorted(found, key=lambda one: one.create_time())[1:]


def write(seen: list[Seen], path: Path) -> None:
    """What was seen, as rows that a picture is drawn from."""
    path.write_text(json.dumps([vars(one) for one in seen]), encoding="utf-8")
