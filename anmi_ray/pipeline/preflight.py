"""Checks before a run starts: room for its needs, and storage that all nodes of a cluster share.

Nodes that join later, as the cluster grows, are not checked.
"""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import ray
from ray.exceptions import RayError
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from anmi_ray.config.experiment import Experiment
from anmi_ray.config.needs import Need
from anmi_ray.core.errors import AnmiError, ConfigError, StoreError, flatten, rebuild
from anmi_ray.judging import kinds
from anmi_ray.judging.kinds.base import ACTOR_CPUS
from anmi_ray.runtime.capacity import alive, check_room, selects
from anmi_ray.runtime.stage import Stage
from anmi_ray.store import Store, public_root, uri

_ANSWER_S = 300.0  # timeout of a node's check


def check(experiment: Experiment, todo: Iterable[Stage], notice: Callable[[str], None]) -> None:
    """Raise ConfigError or StoreError for what would stop the stages `todo` on this cluster or local Ray.

    Temporary problems (a cluster that can grow, a node that does not answer) go to `notice`. Needs a connected Ray.
    """
    todo = list(todo)
    execution = experiment.execution
    for need in needs(experiment, todo):
        check_room(need, notice, grows=execution.address is not None)
    if execution.address is None:
        return
    panels = (stage.config_of(experiment) for stage in todo if stage.asks)
    servers = (kinds.of(judge).server for panel in panels for judge in panel.judges)
    keys = {server.key_env for server in servers if server is not None and server.key_env}
    roots = [execution.root, *([execution.train.storage_path] if execution.train.storage_path else [])]
    for root in roots:
        check_storage(root, notice, keys if root == execution.root else (), execution.judging_on)


def needs(experiment: Experiment, todo: Iterable[Stage]) -> list[Need]:
    """Return the resources that stages need at once, each once."""
    execution = experiment.execution
    threads = 1 if execution.address is None else execution.model_threads
    size = "execution.threads" if threads > 1 else ""
    found = [Need("task", 1, {"CPU": float(threads)}, "execution.address", {}, size=size)]
    for stage in todo:
        found += [need for need in stage.needs(stage, experiment) if need not in found]
    return found


@dataclass(frozen=True)
class _Seen:
    """Result of a node's check: whether it sees the driver's file, missing variables, and a flattened error."""

    sees: bool
    lacking: tuple[str, ...]
    error: str | None = None


def check_storage(
    root: str, notice: Callable[[str], None], keys: Iterable[str] = (), on: Mapping[str, str] | None = None
) -> None:
    """Check that every node can write below `root` and sees what the others write.

    keys: environment variables that nodes with the labels `on` must have.
    Raises StoreError naming the node if one cannot, ConfigError if one lacks a variable.
    """
    token = uuid.uuid4().hex
    folder, store = f"preflight-{token}", Store(root)
    here = ray.get_runtime_context().get_node_id()
    nodes = {node["NodeID"]: node for node in alive()}
    try:
        store.publish_json(f"{folder}/driver.json", token)
    except StoreError as error:
        raise _on(nodes[here], error) from None
    try:
        seen = _looked(root, folder, token, tuple(sorted(keys)), nodes, notice)
        written = store.names(folder)
    finally:
        try:
            uri.remove(uri.below(uri.absolute(root), folder))
        except (OSError, StoreError) as error:
            notice(f"{folder} cannot be removed from {public_root(root)}: {error}")
    for node, found in seen.items():
        if found.error is not None:
            raise _on(nodes[node], rebuild(found.error))
    apart = [node for node, found in seen.items() if not found.sees or f"{node}.json" not in written]
    if apart:
        more = f" (nor do {len(apart) - 1} more)" if len(apart) > 1 else ""
        raise StoreError(
            f"the storage is not shared by the nodes: {_name(nodes[apart[0]])} does not see what "
            f"{_name(nodes[here])}, the driver's, writes there{more}",
            public_root(store.root),
            "give storage that every node reaches: a bucket (--root s3://bucket/folder), or a disk that is mounted "
            "at the same place on all of them",
        )
    for node, found in seen.items():
        if found.lacking and selects(on or {}, nodes[node]) and nodes[node]["Resources"].get("CPU", 0) >= ACTOR_CPUS:
            raise ConfigError(
                f"the environment variable {found.lacking[0]} is not set",
                _name(nodes[node]),
                "give it to the nodes as a secret of the cluster's (in Kubernetes: env of the containers), or see "
                "anmi jobs submit --secret",
            )


def _looked(
    root: str, folder: str, token: str, keys: tuple[str, ...], nodes: Mapping[str, Any], notice: Callable[[str], None]
) -> dict[str, _Seen]:
    """Return the result of each node that is still alive and answers."""
    asked = {
        _look.options(scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)).remote(
            root, folder, token, node, keys
        ): node
        for node in nodes
    }
    ready, waiting = ray.wait(list(asked), num_returns=len(asked), timeout=_ANSWER_S)
    for reference in waiting:
        ray.cancel(reference, force=True)
        notice(f"{_name(nodes[asked[reference]])} has not answered in {_ANSWER_S:.0f} s: its storage is not checked")
    seen: dict[str, _Seen] = {}
    for reference in ready:
        try:
            seen[asked[reference]] = ray.get(reference)
        except RayError as error:
            if asked[reference] in {node["NodeID"] for node in alive()}:
                raise StoreError(
                    f"cannot run a task: {str(error).splitlines()[0]}",
                    _name(nodes[asked[reference]]),
                    "see Ray's logs there (runtime_env_setup and python-core-worker)",
                ) from error
    return seen


@ray.remote(num_cpus=0, max_retries=2)
def _look(root: str, folder: str, token: str, node: str, keys: tuple[str, ...]) -> _Seen:
    lacking = tuple(key for key in keys if not os.environ.get(key))
    store = Store(root)
    try:
        sees = store.read_json(f"{folder}/driver.json") == token
        store.publish_json(f"{folder}/{node}.json", token)
    except StoreError as error:
        return _Seen(False, lacking, flatten(error))
    return _Seen(sees, lacking)


def _on(node: Mapping[str, Any], error: AnmiError) -> StoreError:
    """Add the node to an error of the storage."""
    return StoreError(f"{error.message} ({error.place})", _name(node), error.remedy)


def _name(node: Mapping[str, Any]) -> str:
    return f"node {node['NodeManagerAddress']} ({node['NodeID'][:8]})"
