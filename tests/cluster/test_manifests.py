"""Every manifest against typed field lists: unknown fields fail, wrong types fail, wherever they stand."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from ray.serve.schema import ServeDeploySchema

from anmi_ray.core import environment
from anmi_ray.serving.app import build
from anmi_ray.serving.settings import validated
from cluster import render
from cluster.description import Description, load
from tests.cluster.manifests import KINDS, ROOT, at, documents, kubernetes_files, mappings, of, scalars, validate

FILES = kubernetes_files()
ALL = [(f"{path.stem}/{place}", document) for path in FILES for place, document in enumerate(documents(path))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_every_document_has_the_fields_of_its_kind(path: Path) -> None:
    for document in documents(path):
        validate(document)


def test_there_is_one_of_each_kind() -> None:
    assert {document["kind"] for _, document in ALL} == set(KINDS)


@pytest.mark.parametrize("document", [document for _, document in ALL], ids=[name for name, _ in ALL])
def test_an_unknown_field_fails_wherever_it_stands(document: dict[str, Any]) -> None:
    for place in mappings(document):
        changed = copy.deepcopy(document)
        at(changed, place)["unheardOf"] = 1  # where names are free (labels, resources) values are texts
        with pytest.raises(ValidationError):
            validate(changed)


@settings(max_examples=300)
@given(st.data())
def test_a_value_of_another_type_fails_wherever_it_stands(data: st.DataObject) -> None:
    name, document = data.draw(st.sampled_from(ALL))
    places = [place for place in scalars(document) if place != ("kind",)]
    place = data.draw(st.sampled_from(places), label=name)
    changed = copy.deepcopy(document)
    at(changed, place[:-1])[place[-1]] = data.draw(st.sampled_from([[1], {"a": 1}, -1]))
    with pytest.raises(ValidationError):
        validate(changed)


@pytest.mark.parametrize(
    ("place", "value"),
    [
        (("spec", "rayClusterSpec", "workerGroupSpecs", 1, "minReplicas"), 3),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 1, "idleTimeoutSeconds"), 60),
        (("spec", "rayClusterSpec", "workerGroupSpecs", 1, "groupName"), "cpu"),
        (("spec", "rayClusterSpec", "enableInTreeAutoscaling"), True),
        (("spec", "shutdownAfterJobFinishes"), False),
        (("spec", "suspend"), False),
        (("metadata", "labels"), {}),
    ],
)
def test_what_the_operators_refuse_fails(place: tuple[str | int, ...], value: Any) -> None:
    document = of("train-job")
    at(document, place[:-1])[place[-1]] = value
    with pytest.raises(ValidationError):
        validate(document)


def test_a_request_above_its_limit_fails() -> None:
    document = of("annotate-cluster")
    group = document["spec"]["workerGroupSpecs"][0]
    group["template"]["spec"]["containers"][0]["resources"]["requests"]["memory"] = "57Gi"
    with pytest.raises(ValidationError, match="above limit"):
        validate(document)


def test_committed_files_are_what_the_description_renders() -> None:
    assert render.differences(render.render(load()), ROOT / "cluster") == []
    assert render.main(["--check"]) == 0


def test_the_check_names_what_differs(tmp_path: Path) -> None:
    files = render.render(load())
    assert render.write(files, tmp_path) == sorted(files)
    assert render.differences(files, tmp_path) == []
    (tmp_path / "vm" / "aws.yaml").write_text("cluster_name: other\n")
    (tmp_path / "kuberay" / "old-job.yaml").write_text("kind: RayJob\n")
    (tmp_path / "kuberay" / "train-job.yaml").unlink()
    wrong = ["kuberay/old-job.yaml", "kuberay/train-job.yaml", "vm/aws.yaml"]
    assert render.differences(files, tmp_path) == wrong
    assert render.write(files, tmp_path) == wrong
    assert render.differences(files, tmp_path) == []


def test_workers_have_the_variables_of_a_submitted_job_and_their_nodes_own() -> None:
    content = load().model_dump()
    content["nodes"]["trainer"] |= {"devices": {"rdma/ib": 8}, "variables": {"NCCL_DEBUG": "INFO"}}
    files = render.render(Description.model_validate(content))
    job = yaml.safe_load(files["kuberay/train-job.yaml"])["spec"]["rayClusterSpec"]
    for group in job["workerGroupSpecs"]:
        (container,) = group["template"]["spec"]["containers"]
        variables = {one["name"]: one.get("value") for one in container["env"]}
        assert environment.WORKERS.items() <= variables.items()
        is_trainer = group["groupName"] == "trainer"
        assert variables.get("NCCL_DEBUG") == ("INFO" if is_trainer else None)
        assert container["resources"]["limits"].get("rdma/ib") == ("8" if is_trainer else None)
    assert "rdma/ib" in files["kuberay/train-queue.yaml"]


def test_the_service_is_an_application_that_serve_and_we_read() -> None:
    spec = of("serve")["spec"]
    config = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"]))
    (application,) = config.applications
    service = validated(application.args)
    assert application.import_path == f"{build.__module__}:{build.__name__}"
    assert service.key_env in {one["name"] for one in containers(spec["rayClusterConfig"])[0]["env"]}
    for container in containers(spec["rayClusterConfig"]):
        assert {"name": "serve", "containerPort": config.http_options.port} in container["ports"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    cpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"])
    assert service.most <= group["maxReplicas"] * (cpus // service.threads_each)


def test_a_service_on_gpus_has_nodes_with_them() -> None:
    content = load().model_dump()
    groups = {"judge": {"min": 1, "max": 2, "idle_s": 300}}
    content["service"] |= {"image": "gpu", "groups": groups, "gpus": 0.5, "precision": "bfloat16", "most_replicas": 4}
    (document,) = yaml.safe_load_all(render.render(Description.model_validate(content))["kuberay/serve.yaml"])
    validate(document)
    spec = document["spec"]
    (application,) = ServeDeploySchema.model_validate(yaml.safe_load(spec["serveConfigV2"])).applications
    service = validated(application.args)
    assert [service.device, service.precision] == ["cuda", "bfloat16"]
    (group,) = spec["rayClusterConfig"]["workerGroupSpecs"]
    gpus = int(group["template"]["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"])
    assert service.most * service.gpus <= group["maxReplicas"] * gpus


def containers(cluster: dict[str, Any]) -> list[dict[str, Any]]:
    groups = [cluster["headGroupSpec"], *cluster["workerGroupSpecs"]]
    return [container for group in groups for container in group["template"]["spec"]["containers"]]
