"""KubeRay's objects (API ray.io/v1 of KubeRay 1.7): RayClusters that stay, RayJobs with their own, a RayService.

Fields: https://ray-project.github.io/kuberay/reference/api/
"""

from __future__ import annotations

import shlex
from typing import Any

import yaml

from anmi_ray.core import environment
from cluster.description import POOL, SERVED, USER, Cluster, Description, Group, Grown, Node, ray_version

QUEUE_LABEL = "kueue.x-k8s.io/queue-name"
GPU = "nvidia.com/gpu"
HERE = "/opt/anmi"  # of the image: jobs/ and its configurations
# what clouds taint the nodes with that they may take away: GKE, AKS; EKS taints none
SPOT_TAINTS = ("cloud.google.com/gke-spot", "kubernetes.azure.com/scalesetpriority")
SUBMITTER = {"cpu": "500m", "memory": "1Gi"}  # `ray job submit`, which follows the logs
METRICS = {"metrics": 8080}  # of every node
HEAD_METRICS = {"as-metrics": 44217, "dash-metrics": 44227}  # of the autoscaler and the dashboard
HEAD_PORTS = {"gcs": 6379, "dashboard": 8265, "client": 10001}
_CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}


def ray_cluster(description: Description, name: str) -> dict[str, Any]:
    """A RayCluster that stays until it is deleted, and takes jobs."""
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {"name": name, "namespace": description.namespace},
        "spec": _cluster_spec(description, description.clusters[name]),
    }


def ray_job(description: Description, name: str) -> dict[str, Any]:
    """A RayJob: its cluster, its run, the end of both. With a queue it is created suspended: Kueue lets it start."""
    cluster = description.clusters[name]
    job = cluster.job
    metadata: dict[str, Any] = {"name": name, "namespace": description.namespace}
    if cluster.queue:
        metadata["labels"] = {QUEUE_LABEL: cluster.queue.name}
    words = ["python", f"{HERE}/jobs/pipeline.py", f"{HERE}/jobs/configs/{job.config}"]
    for option, given in (("--root", description.root_of(name)), ("--from", job.first), ("--until", job.last)):
        words += [option, given] if given else []
    spec: dict[str, Any] = {
        "entrypoint": shlex.join(words),
        "entrypointNumCpus": 1,  # the head has none: the driver runs on a worker
        "submissionMode": "K8sJobMode",
        "backoffLimit": job.retries,
        "activeDeadlineSeconds": job.hours * 3600,
        "shutdownAfterJobFinishes": True,  # Kueue refuses jobs that would keep their quota
        "ttlSecondsAfterFinished": job.keep_s,
        **({"suspend": True} if cluster.queue else {}),
        "submitterPodTemplate": _submitter(description, cluster),
        "rayClusterSpec": _cluster_spec(description, cluster),
    }
    return {"apiVersion": "ray.io/v1", "kind": "RayJob", "metadata": metadata, "spec": spec}


def ray_service(description: Description) -> dict[str, Any]:
    """A RayService: a cluster with the application of `anmi serve`. A changed cluster is made beside the old one."""
    service = description.service
    arguments = {
        "model": service.model,
        "root": description.storage.root,
        "replicas": service.replicas,
        "most_replicas": service.most_replicas,
        "threads": service.threads,
        **({"gpus": service.gpus} if service.gpus else {}),
        **({"precision": service.precision} if service.precision != "float32" else {}),
        "key_env": service.key,
    }
    application = {"name": "reranker", "import_path": "anmi_ray.serving.app:build", "args": arguments}
    serve = {"http_options": {"host": "0.0.0.0", "port": SERVED}, "applications": [application]}
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {"name": "reranker", "namespace": description.namespace},
        "spec": {
            "serveConfigV2": yaml.safe_dump(serve, sort_keys=False),
            "rayClusterConfig": _cluster_spec(description, service),
        },
    }


def pod_monitor(description: Description) -> dict[str, Any]:
    """What the Prometheus operator scrapes (monitoring.coreos.com/v1): all of Ray's pods in the namespace."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": {"name": "ray", "namespace": description.namespace},
        "spec": {
            "selector": {"matchLabels": {"ray.io/is-ray-node": "yes"}},
            "podTargetLabels": ["ray.io/cluster", "ray.io/group"],
            "podMetricsEndpoints": [{"port": port, "interval": "30s"} for port in (*METRICS, *HEAD_METRICS)],
        },
    }


def requests(node: Node) -> dict[str, str]:
    """What a pod of this kind asks of Kubernetes, and may not exceed."""
    asked = {"cpu": str(node.cpus), "memory": f"{node.memory_gb}Gi", "ephemeral-storage": f"{node.disk_gb}Gi"}
    asked |= {GPU: str(node.gpu.count)} if node.gpu else {}
    return asked | {name: str(count) for name, count in node.devices.items()}


def _cluster_spec(description: Description, cluster: Grown) -> dict[str, Any]:
    spec: dict[str, Any] = {
        "rayVersion": ray_version(),
        # whoever reaches the dashboard of a cluster without it runs any code there
        "authOptions": {"mode": "token", "secretName": description.token},
        "enableInTreeAutoscaling": cluster.autoscales,
    }
    if cluster.autoscales:
        spec["autoscalerOptions"] = {
            "version": "v2",
            "upscalingMode": "Default",
            "idleTimeoutSeconds": max(group.idle_s or 0 for group in cluster.groups.values()),
            "imagePullPolicy": "IfNotPresent",
            "securityContext": _CONFINED,
            "resources": {kind: {"cpu": "500m", "memory": "1Gi"} for kind in ("requests", "limits")},
        }
    head = description.nodes[cluster.head]
    spec["headGroupSpec"] = {
        # no task and no driver here: what ends the head ends the cluster
        "rayStartParams": {"num-cpus": "0", "dashboard-host": "0.0.0.0", **_store(description, head)},
        "template": _pod(description, cluster, head, "ray-head", HEAD_PORTS | METRICS | HEAD_METRICS),
    }
    spec["workerGroupSpecs"] = [_group(description, cluster, name, group) for name, group in cluster.groups.items()]
    return spec


def _group(description: Description, cluster: Grown, name: str, group: Group) -> dict[str, Any]:
    node = description.nodes[name]
    spec: dict[str, Any] = {
        "groupName": name,
        "replicas": group.min,
        "minReplicas": group.min,
        "maxReplicas": group.max,
        **({"idleTimeoutSeconds": group.idle_s} if group.idle_s else {}),
        **({"priority": group.priority} if group.priority else {}),
        "labels": node.labels,
        **({"resources": {key: str(count) for key, count in node.resources.items()}} if node.resources else {}),
        "rayStartParams": _store(description, node),
        "template": _pod(description, cluster, node, "ray-worker", METRICS),
    }
    return spec


def _store(description: Description, node: Node) -> dict[str, str]:
    return {"object-store-memory": str(description.object_store_bytes(node))}


def _pod(description: Description, cluster: Grown, node: Node, name: str, ports: dict[str, int]) -> dict[str, Any]:
    container = {
        "name": name,
        "image": description.tag(cluster.image),
        "imagePullPolicy": "IfNotPresent",
        "ports": [{"name": port, "containerPort": number} for port, number in (ports | cluster.ports).items()],
        "env": _environment(description, cluster, node),
        "resources": {"requests": requests(node), "limits": requests(node)},
        "securityContext": _CONFINED,
    }
    # a pod that started again would be another node under an old name
    return {"spec": {"restartPolicy": "Never", **_common(description, node), "containers": [container]}}


def _submitter(description: Description, cluster: Cluster) -> dict[str, Any]:
    container = {
        "name": "ray-job-submitter",
        "image": description.tag(cluster.image),
        "imagePullPolicy": "IfNotPresent",
        "resources": {"requests": SUBMITTER, "limits": SUBMITTER},
        "securityContext": _CONFINED,
    }
    common = _common(description, description.nodes[cluster.head])
    return {"spec": {"restartPolicy": "Never", **common, "containers": [container]}}


def _common(description: Description, node: Node) -> dict[str, Any]:
    """Where a pod may be, as whom it runs, and how its image is had."""
    taints = ([GPU] if node.gpu else []) + (list(SPOT_TAINTS) if node.spot else [])
    tolerations = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in taints]
    return {
        **({"nodeSelector": {POOL: node.pool}} if node.pool else {}),
        **({"tolerations": tolerations} if tolerations else {}),
        **({"imagePullSecrets": [{"name": description.pull_secret}]} if description.pull_secret else {}),
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": USER,
            "runAsGroup": USER,
            "fsGroup": USER,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _environment(description: Description, cluster: Grown, node: Node) -> list[dict[str, Any]]:
    """What workers need, as `anmi jobs submit` sets it for a job's, and the secrets."""
    storage = description.storage
    secrets = dict.fromkeys((*storage.keys, *storage.optional_keys), storage.secret) | cluster.secrets
    plain = environment.WORKERS | node.variables
    found: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in plain.items()]
    for key, secret in secrets.items():
        reference: dict[str, Any] = {"name": secret, "key": key}
        if key in storage.optional_keys:
            reference["optional"] = True
        found.append({"name": key, "valueFrom": {"secretKeyRef": reference}})
    return found
