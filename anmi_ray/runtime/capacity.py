"""Whether a cluster has room for a run's needs, checked before anything starts."""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal

import ray
from ray._private.ray_constants import DEBUG_AUTOSCALING_STATUS
from ray._private.state import state
from ray._private.worker import global_worker
from ray._raylet import node_labels_match_selector  # pyright: ignore[reportAttributeAccessIssue]
from ray.autoscaler.v2.utils import is_autoscaler_v2

from anmi_ray.config.base import selector_text
from anmi_ray.config.execution import ExecutionConfig
from anmi_ray.config.needs import GPU_TYPE, Need
from anmi_ray.core.errors import ConfigError

_MIRRORED = re.compile("node_[0-9a-f]{56}")  # node types of an autoscaler that cannot start nodes


def check_room(need: Need, notice: Callable[[str], None], at_once: int = 1, grows: bool = True) -> None:
    """Raise ConfigError if a need does not fit on the cluster and it cannot grow; give a notice if it may grow.

    at_once: number wanted at the same time; one must fit, and a notice says if not all do.
    grows: False for a local Ray, whose autoscaler looks at first like one that can start nodes.
    """
    nodes = alive()
    selected = [node["Resources"] for node in nodes if selects(need.selector, node)]
    fitting = room(selected, need.each)
    if fitting >= need.count:
        if fitting < at_once * need.count:
            fit = int(fitting) // need.count
            notice(f"there is room for {fit} of {at_once} at once ({need.place}), the others wait for them")
        return
    short = _said(need, selected, len(nodes), fitting)
    if grows and may_grow(need.each, need.count):
        notice(f"{short}; it starts when the cluster has grown")
        return
    remedies = [*_remedies(need, nodes, selected, int(fitting)), "give a larger cluster by execution.address"]
    raise ConfigError(short, need.place, ", or ".join(remedies))


def alive() -> list[dict[str, Any]]:
    """Return the cluster's live nodes, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def selects(selector: Mapping[str, str], node: Mapping[str, Any]) -> bool:
    """Return whether a node has the labels of a selector."""
    return node_labels_match_selector(dict(node["Labels"]), dict(selector))


def room(nodes: Sequence[Mapping[str, float]], worker: Mapping[str, float]) -> float:
    """Return how many workers fit on the empty nodes."""
    if not nodes:
        return 0
    if not worker:
        return math.inf
    return sum(min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in worker.items()) for node in nodes)


def cpus(execution: ExecutionConfig) -> int:
    """Return the CPUs of the cluster at its largest if known, else its current CPUs; at least 1."""
    return max(_largest_cpus(execution) or _there("CPU"), 1)


def in_flight(execution: ExecutionConfig, resource: Literal["CPU", "GPU"] = "CPU") -> int:
    """Return how much of a resource to request at once, so that a cluster is busy and grows if it can.

    That is `cpus` if the largest size is known: more demand would start nodes meant for GPU work. Else twice the
    current amount, of which a fixed cluster keeps the second half waiting.
    """
    return (_largest_cpus(execution) if resource == "CPU" else 0) or 2 * _there(resource)


def check_buckets(execution: ExecutionConfig, known: int | None, root: str) -> None:
    """Raise ConfigError if a root has fewer than a quarter of the buckets that the cluster wants.

    The cluster wants as many as are configured, else one per CPU; a local Ray takes any root.

    known: buckets of the root; None for a new one.
    """
    if execution.address is None or known is None:
        return
    given = "buckets" in execution.model_fields_set
    wanted = execution.buckets if given else cpus(execution)
    if 4 * known < wanted:
        by = "execution.buckets" if given else "CPUs of the cluster"
        raise ConfigError(
            f"expected at least {-(-wanted // 4):,} query buckets for {wanted:,} {by}, got {known:,}: a bucket is one "
            "task, so most of the cluster would idle",
            f"root {root}",
            f"give another root with --root, or keep this one with execution.buckets={known}",
        )


def _there(resource: str) -> int:
    return int(ray.cluster_resources().get(resource, 0.0))


def _largest_cpus(execution: ExecutionConfig) -> int:
    """Return the CPUs of the cluster at its largest, as configured, else by its autoscaler; 0 if unknown.

    Groups with GPUs do not count. The autoscaler of open-source Ray 2.60 reports nothing.
    """
    if execution.cpus:
        return execution.cpus
    most = largest([(count, has) for count, has in _groups() if not has.get("GPU")], {"CPU": 1.0})
    return max(int(most), _there("CPU")) if 0 < most < math.inf else 0


def may_grow(worker: Mapping[str, float], workers: int) -> bool:
    """Return whether an autoscaler may make room for the workers, as far as Ray knows."""
    if groups := _groups():
        return workers <= largest(groups, worker)
    connection: Any = global_worker  # the client of ray.experimental may be of another cluster
    client = connection.gcs_client
    if is_autoscaler_v2(fetch_from_server=True, gcs_client=client):
        return True  # it does not report whether it can start nodes
    return scales(client.internal_kv_get(DEBUG_AUTOSCALING_STATUS.encode(), None))


def _groups() -> list[tuple[int, dict[str, float]]]:
    """Return the groups of nodes that the autoscaler reports: their maximum number (-1: unlimited) and resources."""
    config: Any = state.get_cluster_config()  # as Ray Train and Ray Data do; no public API
    return [] if config is None else [(group.max_count, dict(group.resources)) for group in config.node_group_configs]


def largest(groups: Sequence[tuple[int, Mapping[str, float]]], worker: Mapping[str, float]) -> float:
    """Return how many workers fit on a cluster at its largest: groups of n nodes (-1: unlimited) and their resources.

    A group with GPUs of unknown type may have the requested one.
    """
    untyped = {name: amount for name, amount in worker.items() if not name.startswith(GPU_TYPE)}
    fitting = [
        (most, room([resources], worker if any(name.startswith(GPU_TYPE) for name in resources) else untyped))
        for most, resources in groups
    ]
    return sum(math.inf if most == -1 else most * each for most, each in fitting if each)


def scales(status: bytes | None) -> bool:
    """Return whether Ray's autoscaler can start nodes; one that cannot gives each node its own type."""
    if not status:
        return False
    report: dict[str, Any] = json.loads(status).get("autoscaler_report") or {}
    types = {name for kind in ("active_nodes", "idle_nodes", "pending_launches") for name in report.get(kind) or ()}
    return not types or any(_MIRRORED.fullmatch(name) is None for name in types)


def _said(need: Need, nodes: Sequence[Mapping[str, float]], of: int, fitting: float) -> str:
    """Describe the resources needed and available on the selected nodes."""
    gpu = next((name.removeprefix(GPU_TYPE) for name in need.each if name.startswith(GPU_TYPE)), None)
    amounts = {name: amount for name, amount in need.each.items() if not name.startswith(GPU_TYPE)}
    each = ", ".join(f"{amount:g} {gpu if gpu and name == 'GPU' else name}" for name, amount in amounts.items())
    available = [f"{sum(node.get(name, 0.0) for node in nodes):g} {name}" for name in amounts]
    if gpu:
        available.append(f"of the GPUs {_kinds(nodes) or 'none'}")
    where = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
    if need.selector:
        where += f" of {of} labelled {selector_text(dict(need.selector))}"
    count = f"1 {need.worker} of" if need.count == 1 else f"{need.count} {need.worker}s of"
    return f"{count} {each} each: there is room for {int(fitting)} ({', '.join(available)} on {where})"


def _kinds(nodes: Sequence[Mapping[str, float]]) -> str:
    """Describe the GPUs by type."""
    counts: Counter[str] = Counter()
    for node in nodes:
        if gpus := node.get("GPU", 0.0):
            names = [name.removeprefix(GPU_TYPE) for name in node if name.startswith(GPU_TYPE)]
            counts["/".join(sorted(names)) or "unknown type"] += int(gpus)
    return ", ".join(f"{count} {name}" for name, count in sorted(counts.items()))


def _remedies(
    need: Need, nodes: Sequence[Mapping[str, Any]], selected: Sequence[Mapping[str, float]], fitting: int
) -> list[str]:
    """Return the setting to change so that it fits."""
    if need.selector and not selected:
        labels = {f"{key}={value}" for node in nodes for key, value in node["Labels"].items() if "ray.io/" not in key}
        explanation = f"the labels that are there are {', '.join(sorted(labels))}" if labels else "no node has labels"
        return [f"correct {need.labels} ({explanation})"]
    if "GPU" in need.each and not any(node.get("GPU") for node in selected):
        return [f"set {need.gpu}"] if need.gpu else []
    gpu_types = [name for name in need.each if name.startswith(GPU_TYPE)]
    if gpu_types and not any(node.get(gpu_types[0]) for node in selected):
        return [f"set {need.kind} to what is there, or leave it out"]
    remedies = [f"lower {need.number} to {fitting}"] if fitting and need.number else []
    return [*remedies, f"lower {need.size}"] if need.size else remedies
