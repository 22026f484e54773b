"""The file of virtual machines against EC2's own description of its calls, as botocore carries it.

What Ray makes of the file is in tests/canaries/test_manifests.py.
"""

from __future__ import annotations

import copy
from typing import Any

import botocore.session
import pytest
from botocore.validate import ParamValidator

from cluster.description import load
from tests.cluster.manifests import ROOT, documents

(CLUSTER,) = documents(ROOT / "cluster" / "vm" / "aws.yaml")
NODES = sorted(CLUSTER["available_node_types"])


@pytest.fixture(scope="module")
def run_instances() -> Any:
    """EC2's RunInstances: the shape of what it takes."""
    return botocore.session.get_session().get_service_model("ec2").operation_model("RunInstances").input_shape


def mistakes(node_config: dict[str, Any], shape: Any) -> str:
    """What EC2's client would refuse; the counts are Ray's to give."""
    return ParamValidator().validate(node_config | {"MinCount": 1, "MaxCount": 1}, shape).generate_report()


@pytest.mark.parametrize("name", NODES)
def test_ec2_takes_the_node(name: str, run_instances: Any) -> None:
    config = CLUSTER["available_node_types"][name]["node_config"]
    assert mistakes(config, run_instances) == ""
    assert config["InstanceType"] in run_instances.members["InstanceType"].enum


def test_ec2_refuses_fields_that_it_does_not_know(run_instances: Any) -> None:
    config = CLUSTER["available_node_types"]["judge"]["node_config"]
    for place in ([], ["IamInstanceProfile"], ["InstanceMarketOptions"], ["BlockDeviceMappings", 0, "Ebs"]):
        changed = copy.deepcopy(config)
        inner: Any = changed
        for key in place:
            inner = inner[key]
        inner["UnheardOf"] = 1
        assert "UnheardOf" in mistakes(changed, run_instances)


def test_the_region_is_one() -> None:
    assert CLUSTER["provider"]["region"] in botocore.session.get_session().get_available_regions("ec2")


def test_only_the_judges_are_on_spot() -> None:
    spot = [name for name in NODES if "InstanceMarketOptions" in CLUSTER["available_node_types"][name]["node_config"]]
    assert spot == ["judge"]


def test_labels_and_resources_are_those_of_the_pods() -> None:
    description = load()
    (pods,) = documents(ROOT / "cluster" / "kuberay" / "annotate-cluster.yaml")
    for group in pods["spec"]["workerGroupSpecs"]:
        machine = CLUSTER["available_node_types"][group["groupName"]]
        assert machine["labels"] == group["labels"]
        custom = {key: int(value) for key, value in group.get("resources", {}).items()}
        assert custom.items() <= machine["resources"].items()
        assert machine["resources"]["CPU"] == description.nodes[group["groupName"]].cpus
