"""What Ray's own autoscaler makes of the manifests in cluster/: what it reads of each group, what it starts for whom.

Ray's private modules, in this process; nodes are real only where a test says so. An upgrade of Ray that reads the
manifests otherwise fails here.
"""

from __future__ import annotations

import copy
import itertools
import json
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from ray.autoscaler._private.kuberay import autoscaling_config as kuberay
from ray.autoscaler._private.util import prepare_config, validate_config
from ray.autoscaler.v2.instance_manager.config import AutoscalingConfig
from ray.autoscaler.v2.scheduler import ResourceDemandScheduler, SchedulingRequest
from ray.autoscaler.v2.utils import ResourceRequestUtil
from ray.scripts.scripts import start
from ray.util.accelerators import accelerators

from cluster.description import load

FOLDER = Path(__file__).parents[2] / "cluster"
DESCRIPTION = load()
JUDGE = {"CPU": 1.0, "GPU": 1.0, "accelerator_type:L40S": 0.001}  # an engine of jobs/configs/cluster.yaml
TRAINER = {"CPU": 8.0, "GPU": 1.0, "train": 1.0}  # and a training worker


def cluster(name: str) -> dict[str, Any]:
    """A RayCluster as the operator makes it: that of a RayJob has the job's name."""
    read = yaml.safe_load((FOLDER / "kuberay" / f"{name}.yaml").read_text(encoding="utf-8"))
    return {"metadata": read["metadata"], "spec": read["spec"].get("rayClusterSpec", read["spec"])}


def machines() -> dict[str, Any]:
    """The file of virtual machines."""
    return yaml.safe_load((FOLDER / "vm" / "aws.yaml").read_text(encoding="utf-8"))


def read(name: str) -> dict[str, Any]:
    """The autoscaler's configuration, as it derives it from a manifest; `aws` for the virtual machines."""
    if name == "aws":
        return prepare_config(machines())
    return kuberay._derive_autoscaling_config_from_ray_cr(cluster(name))


def started(name: str, demand: dict[str, float], count: int) -> dict[str, int]:
    """Nodes that the autoscaler starts on an empty cluster for `count` workers, less those that are always there."""
    config = AutoscalingConfig(read(name), skip_content_hash=True)
    kinds = config.get_node_type_configs()
    request = SchedulingRequest(
        disable_launch_config_check=True,
        node_type_configs=kinds,
        max_num_nodes=config.get_max_num_nodes(),
        resource_requests=ResourceRequestUtil.group_by_count([ResourceRequestUtil.make(demand)] * count),
    )
    launched = {one.instance_type: one.count for one in ResourceDemandScheduler().schedule(request).to_launch}
    least = {kind: kinds[kind].min_worker_nodes for kind in launched}
    return {kind: number - least[kind] for kind, number in launched.items() if number > least[kind]}


@pytest.mark.parametrize("name", ["annotate-cluster", "annotate-job", "train-job", "trial-cluster", "trial-job"])
def test_ray_reads_each_group_as_it_is_described(name: str) -> None:
    described = DESCRIPTION.clusters[name.partition("-")[0]]
    found = read(name)["available_node_types"]
    assert found.pop("headgroup")["resources"]["CPU"] == 0
    assert set(found) == set(described.groups)
    for kind, group in described.groups.items():
        node, seen = DESCRIPTION.nodes[kind], found[kind]
        expected = {"CPU": node.cpus, "memory": node.memory_gb * 2**30, **node.resources}
        assert seen["resources"] == expected | ({"GPU": node.gpu.count} if node.gpu else {})
        assert seen["labels"] == node.labels
        assert (seen["min_workers"], seen["max_workers"]) == (group.min, group.max)
        assert (seen.get("idle_timeout_s"), seen.get("priority", 0)) == (group.idle_s, group.priority)


@pytest.mark.parametrize("name", ["annotate-cluster", "aws"])
def test_judges_start_from_none_and_stop_at_the_most(name: str) -> None:
    assert started(name, JUDGE, 3) == {"judge": 3}
    most = DESCRIPTION.clusters["annotate"].groups["judge"].max
    assert started(name, JUDGE, most + 24) == {"judge": most}


def test_without_the_resource_of_the_gpus_type_no_judge_would_start(monkeypatch: pytest.MonkeyPatch) -> None:
    """Why the groups declare it: Ray finds a GPU's type on nodes that are there, and there are none."""
    bare = cluster("annotate-cluster")
    for group in bare["spec"]["workerGroupSpecs"]:
        group.get("resources", {}).pop("accelerator_type:L40S", None)
    monkeypatch.setitem(globals(), "cluster", lambda _: bare)
    assert started("annotate-cluster", JUDGE, 3) == {}


def test_buckets_start_no_gpus() -> None:
    group = DESCRIPTION.clusters["annotate"].groups["cpu"]
    tasks = DESCRIPTION.nodes["cpu"].cpus * group.max
    assert started("annotate-cluster", {"CPU": 1.0}, tasks) == {"cpu": group.max - group.min}


def test_annotation_and_training_keep_to_their_nodes_on_one_cluster() -> None:
    gpu = DESCRIPTION.nodes["trainer"].gpu
    assert gpu is not None
    assert started("aws", TRAINER, 2 * gpu.count) == {"trainer": 2}
    assert started("annotate-cluster", TRAINER, 16) == {}


@pytest.mark.parametrize("name", ["annotate-cluster", "annotate-job", "train-job", "trial-cluster", "trial-job"])
def test_parameters_are_options_of_ray_start(name: str) -> None:
    options = {option for parameter in start.params for option in parameter.opts}
    spec = cluster(name)["spec"]
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
        words = [f"--{key}={value}" for key, value in group["rayStartParams"].items()]
        assert {word.partition("=")[0] for word in words} <= options
        start.make_context("start", words)  # types as well: click parses and does not run


@pytest.mark.parametrize("whose", ["head", "worker"])
def test_commands_of_the_machines_are_ray_starts(whose: str) -> None:
    stop, command = machines()[f"{whose}_start_ray_commands"]
    assert stop == "ray stop"
    words = shlex.split(command)
    variables = list(itertools.takewhile(lambda word: "=" in word, words))
    assert f"RAY_DEFAULT_OBJECT_STORE_MEMORY_PROPORTION={DESCRIPTION.object_store}" in variables
    words = words[len(variables) :]
    assert words[:2] == ["ray", "start"]
    parsed = start.make_context("start", words[2:]).params
    assert parsed["head"] == (whose == "head")
    assert parsed["num_cpus"] == (0 if whose == "head" else None)


def test_ray_up_takes_the_file_and_installs_nothing() -> None:
    filled = prepare_config(machines())
    validate_config(filled)
    assert [filled[f"{whose}setup_commands"] for whose in ("", "head_", "worker_")] == [[], [], []]


@given(st.data())
def test_rays_schema_refuses_an_unknown_field(data: st.DataObject) -> None:
    changed = copy.deepcopy(machines())
    node = data.draw(st.sampled_from(sorted(changed["available_node_types"])))
    place = data.draw(st.sampled_from([(), ("auth",), ("docker",), ("available_node_types", node)]))
    inner = changed
    for key in place:
        inner = inner[key]
    inner["unheard_of"] = 1
    with pytest.raises(jsonschema.ValidationError):
        validate_config(changed)


# a node with a group's resources and labels, and a task that asks as that group's work does
_NODE = """
import json, sys, ray
asked = json.loads(sys.argv[1])
ray.init(address="local", include_dashboard=False, object_store_memory=80 << 20, _temp_dir=sys.argv[2], **asked["node"])
task = ray.remote(lambda: ray.get_runtime_context().get_assigned_resources()).options(**asked["task"])
print(json.dumps(ray.get(task.remote(), timeout=180)))
"""


@pytest.mark.ray
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "task"),
    [
        ("annotate-cluster", "judge", {"num_gpus": 1, "accelerator_type": "L40S"}),
        ("train-job", "trainer", {"num_gpus": 1, "resources": {"train": 1}}),
    ],
)
def test_a_node_of_the_group_takes_its_work(name: str, kind: str, task: dict[str, Any], short_temp: Path) -> None:
    groups = {group["groupName"]: group for group in cluster(name)["spec"]["workerGroupSpecs"]}
    group, node = groups[kind], DESCRIPTION.nodes[kind]
    assert node.gpu is not None
    resources = {key: int(value) for key, value in group["resources"].items()}
    # one CPU: Ray starts a process for each
    started_as = {"num_cpus": 1, "num_gpus": node.gpu.count, "resources": resources, "labels": group["labels"]}
    selector = {"ray-subcluster": group["labels"]["ray-subcluster"]}
    asked = json.dumps({"node": started_as, "task": task | {"label_selector": selector}})
    command = [sys.executable, "-W", "ignore", "-c", _NODE, asked, str(short_temp / kind)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    given = json.loads(done.stdout.splitlines()[-1])
    assert given["GPU"] == 1.0


def test_gpus_are_named_as_ray_names_them() -> None:
    known = {value for name, value in vars(accelerators).items() if name.startswith("NVIDIA_")}
    assert {node.gpu.type for node in DESCRIPTION.nodes.values() if node.gpu} <= known
