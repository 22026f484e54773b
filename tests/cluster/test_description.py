"""The description: its own rules, and that the rest of the repository agrees with it."""

from __future__ import annotations

import re
import tomllib
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

import anmi_ray
from anmi_ray.config.experiment import Experiment
from anmi_ray.config.load import load as load_experiment
from anmi_ray.config.vllm import VllmJudgeConfig
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline.stages import names_of, stage_name
from cluster import render
from cluster.description import POOL, ROOT, SIZES, USER, Description, Grown, load
from tests.cluster.manifests import documents, of, validate
from tests.cluster.schema import amount
from tests.shipped import EXPERIMENTS

DESCRIPTION = load()
DOCKERFILE = (ROOT / "cluster" / "images" / "Dockerfile").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda all: all.update(regstry="x"), "regstry: Extra inputs"),
        (lambda all: all["nodes"]["cpu"].update(cpus="many"), "nodes.cpu.cpus"),
        (lambda all: all["nodes"]["judge"]["gpu"].update(type="L40"), "nodes.judge.gpu.type"),
        (lambda all: all["nodes"]["trainer"].update(spot=True), "train on demand"),
        (lambda all: all["nodes"]["head"].update(spot=True), "ends with its head"),
        (lambda all: all["clusters"]["annotate"].update(head="hed"), "no node 'hed'; there are head, cpu"),
        (lambda all: all["clusters"]["annotate"].update(image="cpu"), "no use for the GPUs of 'judge'"),
        (lambda all: all["clusters"]["annotate"]["groups"]["judge"].update(min=17), "min must not be above max"),
        (lambda all: all["clusters"]["annotate"]["groups"]["judge"].pop("idle_s"), "idle_s is for groups that grow"),
        (lambda all: all["clusters"]["train"]["groups"]["cpu"].update(max=2, idle_s=60), "admits a cluster whole"),
        (lambda all: all["clusters"]["train"]["job"].update(config="../x.yaml"), "clusters.train.job.config"),
        (lambda all: all["storage"].update(root="s3://key:secret@bucket/x"), "storage.root"),
        (lambda all: all["storage"].update(root="s3://bucket/$(id)"), "storage.root"),
        (lambda all: all["service"].update(replicas=13), "replicas must not be above most_replicas"),
        (lambda all: all["service"].update(gpus=0.5), "no group has nodes with one"),
        (lambda all: all["aws"].update(zones=["us-east-1a"]), "zones outside us-west-2: us-east-1a"),
        (lambda all: all["aws"]["groups"].update(small={"min": 0, "max": 1, "idle_s": 60}), "names no instance"),
    ],
)
def test_mistakes_are_said_with_their_place(
    change: Callable[[dict[str, Any]], object], said: str, tmp_path: Path
) -> None:
    content = yaml.safe_load(SIZES.read_text(encoding="utf-8"))
    change(content)
    wrong = tmp_path / "sizes.yaml"
    wrong.write_text(yaml.safe_dump(content, sort_keys=False), encoding="utf-8")
    with pytest.raises(ConfigError, match=re.escape(said)) as raised:
        load(wrong)
    assert raised.value.place == str(wrong)


@pytest.mark.parametrize("text", ["nodes: [", "- a list"])
def test_what_is_no_description_is_one_message(text: str, tmp_path: Path) -> None:
    wrong = tmp_path / "sizes.yaml"
    wrong.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError):
        load(wrong)
    with pytest.raises(ConfigError, match="cannot be read"):
        load(tmp_path / "none.yaml")


def test_images_carry_the_versions_of_the_package_and_of_ray() -> None:
    pinned = re.search(r"^ray==(.*)$", (ROOT / "constraints.txt").read_text(encoding="utf-8"), re.MULTILINE)
    assert pinned
    for name in ("annotate-cluster", "train-job", "trial-cluster"):
        spec = of(name)["spec"]
        cluster = spec.get("rayClusterSpec", spec)
        assert cluster["rayVersion"] == pinned[1]
        for group in (cluster["headGroupSpec"], *cluster["workerGroupSpecs"]):
            image = group["template"]["spec"]["containers"][0]["image"]
            tag = f"{anmi_ray.__version__}-ray{pinned[1]}-{'cpu' if name.startswith('trial') else 'gpu'}"
            assert image.rpartition(":")[2] == tag


def test_annotation_and_training_share_no_gpu() -> None:
    kinds = {name: node for name, node in DESCRIPTION.nodes.items() if node.gpu}
    assert {node.subcluster for node in kinds.values()} == {"annotate", "train"}
    types = [node.gpu.type for node in kinds.values() if node.gpu]
    assert len(set(types)) == len(types), "accelerator_type alone keeps a judge off a trainer"
    assert kinds["judge"].spot
    assert kinds["judge"].labels["ray-subcluster"] == "annotate"


def test_the_quota_is_what_the_gang_asks_for() -> None:
    """Summed from the manifests alone, over pods, the submitter's included."""
    spec = of("train-job")["spec"]
    cluster = spec["rayClusterSpec"]
    pods = [(spec["submitterPodTemplate"]["spec"], 1), (cluster["headGroupSpec"]["template"]["spec"], 1)]
    pods += [(group["template"]["spec"], group["replicas"]) for group in cluster["workerGroupSpecs"]]
    asked: dict[str, Counter[str]] = {}
    for pod, count in pods:
        pool = asked.setdefault(pod["nodeSelector"][POOL], Counter())
        for resource, quantity in pod["containers"][0]["resources"]["requests"].items():
            pool[resource] += count * amount(quantity)  # pyright: ignore[reportArgumentType]
    *flavors, queue, local = documents(ROOT / "cluster" / "kuberay" / "train-queue.yaml")
    pools = {flavor["metadata"]["name"]: flavor["spec"]["nodeLabels"][POOL] for flavor in flavors}
    granted = {
        pools[flavor["name"]]: {one["name"]: amount(one["nominalQuota"]) for one in flavor["resources"]}
        for flavor in queue["spec"]["resourceGroups"][0]["flavors"]
    }
    at_once = DESCRIPTION.clusters["train"].queue
    assert at_once
    assert set(granted) == set(asked)
    for pool, quota in granted.items():
        for resource, amount_ in quota.items():
            assert amount_ == pytest.approx(asked[pool][resource] * at_once.jobs_at_once), (pool, resource)
        assert set(asked[pool]) <= set(quota), "a resource without a quota is never admitted"
    assert local["spec"]["clusterQueue"] == queue["metadata"]["name"]
    assert of("train-job")["metadata"]["labels"]["kueue.x-k8s.io/queue-name"] == local["metadata"]["name"]


@pytest.mark.parametrize("name", ["train-job", "annotate-job", "trial-job"])
def test_a_jobs_words_are_a_run(name: str) -> None:
    python, script, config, root, where, *rest = of(name)["spec"]["entrypoint"].split()
    assert (python, root, where) == ("python", "--root", DESCRIPTION.root_of(name.removesuffix("-job")))
    here = [ROOT / path.removeprefix("/opt/anmi/") for path in (script, config)]
    settings = load_experiment(here[1])
    assert here[0].is_file()
    names = names_of(settings)
    assert rest in ([], ["--from", "train"], ["--until", "mine"])
    assert [stage_name(stage, names) for stage in rest[1::2]] == rest[1::2]


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_what_configurations_ask_for_is_on_some_node(path: Path) -> None:
    settings = load_experiment(path)
    gpus = {node.gpu.type for node in DESCRIPTION.nodes.values() if node.gpu}
    named = {judge.execution.accelerator_type for judge in _vllm(settings)} - {None}
    assert named <= gpus
    train = settings.execution.train
    custom = set(train.resources) - {"CPU", "GPU", "memory"}
    assert custom <= {name for node in DESCRIPTION.nodes.values() for name in node.resources}


SELECTORS = ("judge_on", "label_selector", "on")  # settings that name labels of nodes


def selectors(content: Any) -> list[dict[str, str]]:
    """All label selectors in a configuration, wherever they stand."""
    if isinstance(content, dict):
        here = [value for key, value in content.items() if key in SELECTORS and value]
        return here + [one for value in content.values() for one in selectors(value)]
    return [one for value in content for one in selectors(value)] if isinstance(content, list) else []


@pytest.mark.parametrize("path", EXPERIMENTS, ids=lambda path: path.stem)
def test_labels_that_configurations_select_are_on_some_node(path: Path) -> None:
    nodes = [node.labels for node in DESCRIPTION.nodes.values()]
    for selector in selectors(yaml.load(path.read_text(encoding="utf-8"), yaml.BaseLoader)):  # on: is a name
        assert any(selector.items() <= labels.items() for labels in nodes), selector


def test_selectors_are_found() -> None:
    content = {"execution": {"judge_on": {"ray-subcluster": "annotate"}, "train": [{"label_selector": {"a": "b"}}]}}
    assert selectors(content) == [{"ray-subcluster": "annotate"}, {"a": "b"}]


@pytest.mark.parametrize("name", ["annotate", "train", "aws"])
def test_the_clusters_configuration_fits_each_cluster_that_it_is_for(name: str) -> None:
    settings = load_experiment(ROOT / "jobs" / "configs" / "cluster.yaml")
    cluster: Grown = DESCRIPTION.aws if name == "aws" else DESCRIPTION.clusters[name]
    if name != "train":
        for judge in _vllm(settings):
            assert judge.execution.accelerator_type, "without it a judge may take a trainer's GPU"
            asked = {f"accelerator_type:{judge.execution.accelerator_type}": 0.001, "GPU": 1.0}
            assert judge.execution.engines[1] <= _places(cluster, asked)
    if name != "annotate":
        train = settings.execution.train
        assert train.use_gpu
        assert "train" in train.resources, "without it a worker may take a judge's GPU"
        assert _places(cluster, {"GPU": 1.0, **train.resources}) >= train.num_workers
        assert settings.execution.score.on == train.label_selector, "without it a scorer may take a judge's GPU"


@pytest.mark.parametrize("root", ["s3://anmi-ray/results", "s3://anmi-ray/results/", "s3://anmi-ray", "hdfs://a:1/b/c"])
def test_the_trial_has_a_root_of_its_own_in_the_same_bucket(root: str) -> None:
    content = DESCRIPTION.model_dump()
    content["storage"]["root"] = root
    changed = Description.model_validate(content)
    trial = changed.root_of("trial")
    assert changed.root_of("annotate") == changed.root_of("train") == root
    assert trial.startswith(root.rstrip("/"))
    assert trial.rstrip("/") != root.rstrip("/")
    assert trial.split("/")[2] == root.split("/")[2]


def test_the_clusters_configuration_names_the_cpus_of_its_largest_size() -> None:
    execution = load_experiment(ROOT / "jobs" / "configs" / "cluster.yaml").execution
    group = DESCRIPTION.clusters["annotate"].groups["cpu"]
    assert execution.cpus == group.max * DESCRIPTION.nodes["cpu"].cpus
    assert execution.buckets >= 2 * execution.cpus


def _vllm(settings: Experiment) -> list[VllmJudgeConfig]:
    return [judge for judge in settings.judge.judges if isinstance(judge, VllmJudgeConfig)]


def _places(cluster: Grown, asked: dict[str, float]) -> int:
    """How many of such a worker fit on the cluster at its largest."""
    total = 0
    for name, group in cluster.groups.items():
        node = DESCRIPTION.nodes[name]
        has = {"CPU": node.cpus, "GPU": node.gpu.count if node.gpu else 0, **node.resources}
        total += group.max * min(int(has.get(resource, 0) / amount) for resource, amount in asked.items())
    return total


# vCPUs, GiB and GPUs of AWS's machines: https://aws.amazon.com/ec2/instance-types/
MACHINES = {
    "m7i.2xlarge": (8, 32, None),
    "m7i.4xlarge": (16, 64, None),
    "g6e.2xlarge": (8, 64, ("L40S", 1)),
    "p5.48xlarge": (192, 2048, ("H100", 8)),
}


def test_nodes_fit_into_their_machines_with_room_to_spare() -> None:
    for name, node in DESCRIPTION.nodes.items():
        if node.instance is None:
            continue
        cpus, memory_gb, gpus = MACHINES[node.instance]
        assert node.cpus <= cpus - 2, name
        assert node.memory_gb <= 0.9 * memory_gb, name
        assert gpus == ((node.gpu.type, node.gpu.count) if node.gpu else None), name


def test_there_is_room_for_every_nodes_object_store() -> None:
    for node in DESCRIPTION.nodes.values():
        assert 0 < DESCRIPTION.object_store_bytes(node) < node.memory_gb * 2**30


def test_the_image_is_made_of_what_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    stages = re.split(r"^FROM ", DOCKERFILE, flags=re.MULTILINE)
    targets = {found[1]: stage for stage in stages if (found := re.match(r".* AS (gpu|cpu)\n", stage))}
    assert set(targets) == {"gpu", "cpu"}
    ignored = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    for target, stage in targets.items():
        assert set(re.findall(r"--extra ([\w-]+)", stage)) <= set(extras)
        assert f"--extra {target} " in stage
        assert "--constraint constraints.txt" in stage
        assert f"\nUSER {USER}\n" in stage
        for copied in re.findall(r"^COPY (.*) \S+$", stage, re.MULTILINE):
            for source in copied.split():
                assert (ROOT / source).exists()
                assert f"!{source}" in ignored
    assert "-devel-" in targets["gpu"] or "FROM nvidia/cuda:${CUDA}-devel" in DOCKERFILE
    system = (ROOT / "cluster" / "images" / "system.sh").read_text(encoding="utf-8")
    assert f"--uid {USER} " in system


def test_a_private_registry_is_logged_in_to() -> None:
    content = yaml.safe_load(SIZES.read_text(encoding="utf-8")) | {"pull_secret": "registry"}
    content["aws"]["login"] = "docker login registry.example.com"
    files = render.render(Description.model_validate(content))
    job = yaml.safe_load(files["kuberay/train-job.yaml"])
    validate(job)
    for pod in (job["spec"]["submitterPodTemplate"], job["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]):
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
    assert yaml.safe_load(files["vm/aws.yaml"])["initialization_commands"] == ["docker login registry.example.com"]


def test_the_description_is_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        DESCRIPTION.namespace = "other"  # pyright: ignore[reportAttributeAccessIssue]
    assert Description.model_validate(DESCRIPTION.model_dump()) == DESCRIPTION
