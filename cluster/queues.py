"""Kueue's objects (API kueue.x-k8s.io/v1beta2 of Kueue 0.15 and newer): a quota that is exactly the clusters described.

Fields: https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from cluster.description import POOL, Cluster, Description, Node, Queue
from cluster.pods import GPU, SUBMITTER

API = "kueue.x-k8s.io/v1beta2"
COVERED = ("cpu", "memory", "ephemeral-storage", GPU)  # what a pod asks for and no quota covers is never admitted
_UNITS = {"cpu": "m", "memory": "Mi", "ephemeral-storage": "Gi"}


def queue(description: Description, name: str) -> list[dict[str, Any]]:
    """Flavors (one for each pool of nodes), the quota of `jobs_at_once` clusters, and the queue in the namespace."""
    cluster = description.clusters[name]
    asked = cluster.queue
    assert asked is not None, f"{name} has a queue"
    totals = _totals(description, cluster)
    flavors = [
        {
            "apiVersion": API,
            "kind": "ResourceFlavor",
            "metadata": {"name": f"{asked.name}-{pool}"},
            "spec": {"nodeLabels": {POOL: pool}},
        }
        for pool in totals
    ]
    return [*flavors, _cluster_queue(description, asked, totals), _local_queue(description, asked)]


def _cluster_queue(description: Description, asked: Queue, totals: dict[str, Counter[str]]) -> dict[str, Any]:
    covered = list(dict.fromkeys([*COVERED, *(resource for total in totals.values() for resource in total)]))
    quotas = [
        {
            "name": f"{asked.name}-{pool}",
            "resources": [
                {"name": resource, "nominalQuota": f"{total[resource] * asked.jobs_at_once}{_UNITS.get(resource, '')}"}
                for resource in covered
            ],
        }
        for pool, total in totals.items()
    ]
    return {
        "apiVersion": API,
        "kind": "ClusterQueue",
        "metadata": {"name": asked.name},
        "spec": {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": description.namespace}},
            "queueingStrategy": "StrictFIFO",  # a small job behind a large one does not keep it waiting for ever
            "resourceGroups": [{"coveredResources": covered, "flavors": quotas}],
        },
    }


def _local_queue(description: Description, asked: Queue) -> dict[str, Any]:
    return {
        "apiVersion": API,
        "kind": "LocalQueue",
        "metadata": {"name": asked.name, "namespace": description.namespace},
        "spec": {"clusterQueue": asked.name},
    }


def _totals(description: Description, cluster: Cluster) -> dict[str, Counter[str]]:
    """What one cluster with its submitter takes of each pool, in _UNITS."""
    kinds = [(cluster.head, 1), *((name, group.max) for name, group in cluster.groups.items())]
    totals: dict[str, Counter[str]] = {}
    for kind, count in kinds:
        node = description.nodes[kind]
        assert node.pool, f"{kind} of a queued cluster has a pool"
        totals.setdefault(node.pool, Counter()).update({key: count * value for key, value in _units(node).items()})
    head = description.nodes[cluster.head].pool
    assert head, "the head has a pool"
    totals[head].update({"cpu": int(SUBMITTER["cpu"].removesuffix("m")), "memory": 1024})
    return totals


def _units(node: Node) -> dict[str, int]:
    gpus = node.gpu.count if node.gpu else 0
    own = {"cpu": node.cpus * 1000, "memory": node.memory_gb * 1024, "ephemeral-storage": node.disk_gb, GPU: gpus}
    return own | node.devices
