"""Whether a cluster has room for what a run asks of it: said before anything starts, rather than waited for."""

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

_MIRRORED = re.compile("node_[0-9a-f]{56}")  # how an autoscaler that only looks on names a node's type


def check_room(need: Need, notice: Callable[[str], None], at_once: int = 1, grows: bool = True) -> None:
    """Raise ConfigError where what is needed does not fit on the cluster and it cannot grow; say so where it may.

    at_once: as many of it are wanted side by side; one must fit, and it is said where not all do. grows: false of a Ray
    started here, whose autoscaler says at first what one that can start nodes may say.
    """
    nodes = alive()
    selected = [node["Resources"] for node in nodes if selects(need.selector, node)]
    fitting = room(selected, need.each)
    if fitting >= need.count:
        if fitting < at_once * need.count:
            there = int(fitting) // need.count
            notice(f"there is room for {there} of {at_once} at once ({need.place}), the others wait for them")
        return
    short = _said(need, selected, len(nodes), fitting)
    if grows and may_grow(need.each, need.count):
        notice(f"{short}; it starts when the cluster has grown")
        return
    remedies = [*_remedies(need, nodes, selected, int(fitting)), "give a larger cluster by execution.address"]
    raise ConfigError(short, need.place, ", or ".join(remedies))


def alive() -> list[dict[str, Any]]:
    """The cluster's nodes that are alive, as Ray describes them."""
    return [node for node in ray.nodes() if node["Alive"]]


def selects(selector: Mapping[str, str], node: Mapping[str, Any]) -> bool:
    """Whether a node has the labels that a selector wants."""
    return node_labels_match_selector(dict(node["Labels"]), dict(selector))


def room(nodes: Sequence[Mapping[str, float]], worker: Mapping[str, float]) -> float:
    """How many workers fit on the nodes, each whole on one, where nothing else runs."""
    if not nodes:
        return 0
    if not worker:
        return math.inf
    return sum(min(int(node.get(name, 0.0) / amount + 1e-9) for name, amount in worker.items()) for node in nodes)


def cpus(execution: ExecutionConfig) -> int:
    """CPUs of the cluster at its largest where that is known, else those that it has now; at least 1."""
    return max(_largest_cpus(execution) or _there("CPU"), 1)


def in_flight(execution: ExecutionConfig, resource: Literal["CPU", "GPU"] = "CPU") -> int:
    """How much of a resource to ask for at once, so that a cluster is busy and one that can grow does.

    That is `cpus` where the largest size is known: demand beyond it would start nodes that are there for their GPUs.
    Else twice what is there now, of which a fixed cluster keeps the second half waiting.
    """
    return (_largest_cpus(execution) if resource == "CPU" else 0) or 2 * _there(resource)


def check_buckets(execution: ExecutionConfig, known: int | None, root: str) -> None:
    """Raise ConfigError if a root has fewer than a quarter of the buckets that the cluster wants.

    known: buckets of the root, None of a new one. The cluster wants as many as are given, else one per CPU. A Ray
    started here takes any root.
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
    """CPUs of the cluster at its largest: as given, else as its autoscaler reports; 0 if neither says.

    Only groups without GPUs may grow for work on CPUs. The autoscaler of open-source Ray 2.60 reports nothing.
    """
    if execution.cpus:
        return execution.cpus
    config: Any = state.get_cluster_config()
    groups = [] if config is None else [(one.max_count, dict(one.resources)) for one in config.node_group_configs]
    most = largest([(count, has) for count, has in groups if not has.get("GPU")], {"CPU": 1.0})
    return max(int(most), _there("CPU")) if 0 < most < math.inf else 0


def may_grow(worker: Mapping[str, float], workers: int) -> bool:
    """Whether an autoscaler may yet make room for the workers, as far as Ray can tell."""
    config: Any = state.get_cluster_config()  # as Ray Train and Ray Data do; no public API
    if config is not None and config.node_group_configs:
        groups = [(group.max_count, dict(group.resources)) for group in config.node_group_configs]
        return workers <= largest(groups, worker)
    connection: Any = global_worker  # what ray.experimental keeps may be of another cluster, or gone with it
    client = connection.gcs_client
    if is_autoscaler_v2(fetch_from_server=True, gcs_client=client):
        return True  # this one does not say whether it only looks on
    return scales(client.internal_kv_get(DEBUG_AUTOSCALING_STATUS.encode(), None))


def largest(groups: Sequence[tuple[int, Mapping[str, float]]], worker: Mapping[str, float]) -> float:
    """How many workers fit on a cluster at its largest: groups of n nodes (-1: any number) with what a node has.

    A group with GPUs that does not say of which type may have the one that is asked for.
    """
    untyped = {name: amount for name, amount in worker.items() if not name.startswith(GPU_TYPE)}
    fitting = [
        (most, room([resources], worker if any(name.startswith(GPU_TYPE) for name in resources) else untyped))
        for most, resources in groups
    ]
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


def _said(need: Need, nodes: Sequence[Mapping[str, float]], of: int, fitting: float) -> str:
    """Resources needed, available and present, on the selected nodes."""
    gpu = next((name.removeprefix(GPU_TYPE) for name in need.each if name.startswith(GPU_TYPE)), None)
    amounts = {name: amount for name, amount in need.each.items() if not name.startswith(GPU_TYPE)}
    each = ", ".join(f"{amount:g} {gpu if gpu and name == 'GPU' else name}" for name, amount in amounts.items())
    there = [f"{sum(node.get(name, 0.0) for node in nodes):g} {name}" for name in amounts]
    if gpu:
        there.append(f"of the GPUs {_kinds(nodes) or 'none'}")
    where = f"{len(nodes)} {'node' if len(nodes) == 1 else 'nodes'}"
    if need.selector:
        where += f" of {of} labelled {selector_text(dict(need.selector))}"
    count = f"1 {need.worker} of" if need.count == 1 else f"{need.count} {need.worker}s of"
    return f"{count} {each} each: there is room for {int(fitting)} ({', '.join(there)} on {where})"


def _kinds(nodes: Sequence[Mapping[str, float]]) -> str:
    """How many GPUs of which type there are, in words, as far as their nodes say."""
    found: Counter[str] = Counter()
    for node in nodes:
        if gpus := node.get("GPU", 0.0):
            names = [name.removeprefix(GPU_TYPE) for name in node if name.startswith(GPU_TYPE)]
            found["/".join(sorted(names)) or "unknown type"] += int(gpus)
    return ", ".join(f"{count} {name}" for name, count in sorted(found.items()))


def _remedies(
    need: Need, nodes: Sequence[Mapping[str, Any]], selected: Sequence[Mapping[str, float]], fitting: int
) -> list[str]:
    """Return the setting to change so that it fits."""
    if need.selector and not selected:
        known = {f"{key}={value}" for node in nodes for key, value in node["Labels"].items() if "ray.io/" not in key}
        said = f"the labels that are there are {', '.join(sorted(known))}" if known else "no node has labels"
        return [f"correct {need.labels} ({said})"]
    if "GPU" in need.each and not any(node.get("GPU") for node in selected):
        return [f"set {need.gpu}"] if need.gpu else []
    wanted = [name for name in need.each if name.startswith(GPU_TYPE)]
    if wanted and not any(node.get(wanted[0]) for node in selected):
        return [f"set {need.kind} to what is there, or leave it out"]
    remedies = [f"lower {need.number} to {fitting}"] if fitting and need.number else []
    return [*remedies, f"lower {need.size}"] if need.size else remedies
