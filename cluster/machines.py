"""The same groups as virtual machines: what `ray up` reads (Ray's ray-schema.json), for AWS."""

from __future__ import annotations

from typing import Any

from anmi_ray.core import environment
from cluster.description import Description, Node

HEAD = "head"


def aws(description: Description) -> dict[str, Any]:
    """The cluster's YAML. Ray's own commands are given whole, for its defaults would start a head that takes tasks."""
    asked = description.aws
    groups = {
        name: {
            **_node(description, description.nodes[name]),
            "min_workers": group.min,
            "max_workers": group.max,
            **({"idle_timeout_s": group.idle_s} if group.idle_s else {}),
            **({"priority": group.priority} if group.priority else {}),
        }
        for name, group in asked.groups.items()
    }
    head = _node(description, description.nodes[asked.head])
    return {
        "cluster_name": description.namespace,
        "provider": {
            "type": "aws",
            "region": asked.region,
            "availability_zone": ",".join(asked.zones),
            "cache_stopped_nodes": False,  # a stopped node keeps its disk, and its bill
        },
        "auth": {"ssh_user": asked.ssh_user},
        "docker": {
            "image": description.tag(asked.image),
            "container_name": "anmi",
            "run_options": ["--ulimit nofile=65536:65536"],
        },
        "max_workers": sum(group.max for group in asked.groups.values()),
        "idle_timeout_minutes": max(group.idle_s or 0 for group in asked.groups.values()) / 60,
        "available_node_types": {
            HEAD: {**head, "resources": head["resources"] | {"CPU": 0}, "min_workers": 0, "max_workers": 0},
            **groups,
        },
        "head_node_type": HEAD,
        **({"initialization_commands": [asked.login]} if asked.login else {}),
        # all of it is in the image, and its user may install nothing; left out, Ray's defaults would
        **{f"{whose}setup_commands": [] for whose in ("", "head_", "worker_")},
        "head_start_ray_commands": [
            "ray stop",
            f"{_environment(description)} ray start --head --num-cpus=0 --port=6379 --object-manager-port=8076 "
            "--autoscaling-config=~/ray_bootstrap_config.yaml --dashboard-host=127.0.0.1",
        ],
        "worker_start_ray_commands": [
            "ray stop",
            f"{_environment(description)} ray start --address=$RAY_HEAD_IP:6379 --object-manager-port=8076",
        ],
    }


def _environment(description: Description) -> str:
    """The object store's share as a variable: the commands are the same for nodes of every size."""
    variables = environment.WORKERS | {"RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION": str(description.object_store)}
    return " ".join(f"{name}={value}" for name, value in variables.items())


def _node(description: Description, node: Node) -> dict[str, Any]:
    gpus = {"GPU": node.gpu.count} if node.gpu else {}
    config: dict[str, Any] = {
        "InstanceType": node.instance,
        "IamInstanceProfile": {"Name": description.aws.instance_profile},
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": node.disk_gb + 100, "VolumeType": "gp3"}}
        ],
    }
    if node.spot:
        config["InstanceMarketOptions"] = {"MarketType": "spot"}
    resources = {"CPU": node.cpus, **gpus, "memory": node.memory_gb * 2**30, **node.resources}
    return {"resources": resources, "labels": node.labels, "node_config": config}
