"""Whether a cluster has room for the workers of a training run: said before anything starts, rather than waited for."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import ray
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray._private.state import state
from ray.autoscaler.v2.utils import is_autoscaler_v2
from ray.experimental import internal_kv

from anmi_ray.config.train import TrainExecution
from anmi_ray.errors import ConfigError

_MIRRORED = re.compile("node_[0-9a-f]{56}")  # how an autoscaler that only looks on names a node's type


def needed(execution: TrainExecution) -> dict[str, float]:
    """Ray resources of one worker."""
    asked = dict(execution.resources) | ({"GPU": 1.0} if execution.use_gpu else {})
    return {name: amount for name, amount in asked.items() if amount > 0}


def check_room(execution: TrainExecution, notice: Callable[[str], None], trainings: int = 1) -> None:
    """Raise ConfigError where the workers do not fit on the cluster and it cannot grow; say so where it may.

    Of several `trainings` at once one must fit, and it is said where not all do.
    """
    worker = needed(execution)
    nodes: list[Mapping[str, float]] = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    fitting = room(nodes, worker)
    if fitting >= execution.num_workers:
        if fitting < trainings * execution.num_workers:
            at_once = int(fitting) // execution.num_workers
            notice(f"there is room for {at_once} of {trainings} trainings at once, the others wait for them")
        return
    short = _said(execution, worker, nodes, fitting)
    if may_grow(worker, execution.num_workers):
        notice(f"{short}; training starts when the cluster has grown")
        return
    remedies = [f"lower execution.train.num_workers to {int(fitting)}"] if fitting else []
    remedies.append("lower execution.train.resources")
    if execution.use_gpu and not any(node.get("GPU") for node in nodes):
        remedies = ["set execution.train.use_gpu: false"]
    raise ConfigError(
        short, "execution.train.num_workers", f"{', '.join(remedies)}, or give a larger cluster by execution.address"
    )


def room(nodes: Sequence[Mapping[str, float]], worker: Mapping[str, float]) -> float:
    """How many workers fit on the nodes, each whole on one, where nothing else runs."""
    if not worker:
        return math.inf
    return sum(min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in worker.items()) for node in nodes)


def may_grow(worker: Mapping[str, float], workers: int) -> bool:
    """Whether an autoscaler may yet make room for the workers, as far as Ray can tell."""
    config: Any = state.get_cluster_config()  # as Ray Train and Ray Data ask: there is no public way
    if config is not None and config.node_group_configs:
        groups = [(group.max_count, dict(group.resources)) for group in config.node_group_configs]
        return workers <= largest(groups, worker)
    if is_autoscaler_v2(fetch_from_server=True):
        return True  # this one does not say whether it only looks on
    return scales(internal_kv._internal_kv_get(DEBUG_AUTOSCALING_STATUS))  # pyright: ignore[reportPrivateUsage]


def largest(groups: Sequence[tuple[int, Mapping[str, float]]], worker: Mapping[str, float]) -> float:
    """How many workers fit on a cluster at its largest: groups of n nodes (-1: any number) with what a node has."""
    fitting = [(most, room([resources], worker)) for most, resources in groups]
    return sum(math.inf if most == -1 else most * each for most, each in fitting if each)


def scales(status: bytes | None) -> bool:
    """Whether what Ray's autoscaler last told of itself comes from one that can start nodes.

    One that only looks on, as on a laptop and in a cluster made by hand, gives each node a type of its own.
    """
    if not status:
        return False
    report: dict[str, Any] = json.loads(status).get("autoscaler_report") or {}
    types = {name for kind in ("active_nodes", "idle_nodes", "pending_launches") for name in report.get(kind) or ()}
    return not types or any(_MIRRORED.fullmatch(name) is None for name in types)


def _said(
    execution: TrainExecution, worker: Mapping[str, float], nodes: Sequence[Mapping[str, float]], fitting: float
) -> str:
    each = ", ".join(f"{amount:g} {name}" for name, amount in worker.items())
    there = ", ".join(f"{sum(node.get(name, 0.0) for node in nodes):g} {name}" for name in worker)
    number, nodes_ = execution.num_workers, "node" if len(nodes) == 1 else "nodes"
    count = "1 worker of" if number == 1 else f"{number} workers of"
    return f"{count} {each} each: there is room for {int(fitting)} ({there} on {len(nodes)} {nodes_})"
