"""What docs/tutorials/cluster.md tells a reader to type: files, objects, secrets, images and commands that exist."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys

import pytest

from anmi_ray.config.load import load as load_experiment
from anmi_ray.pipeline.stages import names_of
from cluster.description import load
from tests.cluster.manifests import ROOT, documents, kubernetes_files

TEXT = (ROOT / "docs" / "tutorials" / "cluster.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```bash\n(.*?)```", TEXT, flags=re.DOTALL)
LINES = [
    line.split("  #")[0].strip().removesuffix("&").strip()
    for block in BLOCKS
    for line in block.replace("\\\n", " ").splitlines()
    if line.strip()
]
COMMANDS = [shlex.split(line) for line in LINES]
DESCRIPTION = load()
OBJECTS = {(one["kind"].lower(), one["metadata"]["name"]) for path in kubernetes_files() for one in documents(path)}


def starting(*words: str) -> list[list[str]]:
    """Commands that start with these words; there are some."""
    found = [command for command in COMMANDS if tuple(command[: len(words)]) == words]
    assert found, words
    return found


def value(command: list[str], option: str) -> str:
    """What follows an option."""
    return command[command.index(option) + 1]


def test_files_it_names_are_there() -> None:
    named = set(re.findall(r"(?<![\w/])(?:jobs|cluster)/[\w/.-]*\w", TEXT))
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_every_manifest_is_applied_or_named() -> None:
    assert [path.name for path in kubernetes_files() if f"cluster/kuberay/{path.name}" not in TEXT] == [
        "trial-cluster.yaml"  # for looking around on CPUs: not a part of the way
    ]


def test_what_is_applied_is_deleted_but_for_what_stays() -> None:
    applied = {value(command, "-f") for command in starting("kubectl", "apply")}
    deleted = {value(command, "-f") for command in starting("kubectl", "delete")}
    stays = {f"cluster/kuberay/{name}.yaml" for name in ("namespace", "train-queue", "metrics")}
    assert applied - deleted == stays
    assert deleted <= applied


def test_objects_are_called_as_in_the_manifests() -> None:
    for command in starting("kubectl", "get", "rayjob") + starting("kubectl", "wait"):
        if (kind := command[2] if command[1] == "get" else "raycluster") == "rayjob":
            assert (kind, command[3]) in OBJECTS
    for kind, name in re.findall(r"\b(raycluster)/(\w+)", TEXT):
        assert (kind, name) in OBJECTS
    for name in re.findall(r"logs job/(\w+)", TEXT):
        assert ("rayjob", name) in OBJECTS  # the submitter's job has its name
    for name in re.findall(r"service/(\w+)-head-svc", TEXT) + re.findall(r"ray\.io/cluster=(\w+)", TEXT):
        assert ("raycluster", name) in OBJECTS
    for command in COMMANDS:
        ours = [word for word in command if word == "--namespace"]
        if ours and command[0] == "kubectl":
            assert value(command, "--namespace") in {DESCRIPTION.namespace, "ray-system", "kueue-system", "monitoring"}


def test_secrets_hold_what_the_pods_ask_for() -> None:
    made = {
        command[4]: re.findall(r"--from-literal=(\w+)=", " ".join(command))
        for command in starting("kubectl", "create", "secret")
    }
    storage = DESCRIPTION.storage
    assert made == {storage.secret: [*storage.keys, *storage.optional_keys], DESCRIPTION.token: ["auth_token"]}


def test_images_are_those_of_the_manifests() -> None:
    tags = {DESCRIPTION.tag(image).rpartition(":")[2] for image in ("gpu", "cpu")}  # the registry is the user's
    assert {value(command, "-t").rpartition(":")[2] for command in starting("docker", "build")} == tags
    assert {command[2].rpartition(":")[2] for command in starting("docker", "push")} == tags
    for command in starting("docker", "build"):
        assert value(command, "-t").endswith(value(command, "--target"))


def test_pools_are_those_of_the_nodes() -> None:
    pools = {node.pool for node in DESCRIPTION.nodes.values() if node.pool}
    (sentence,) = re.findall(r"Node pools with the label[^.]*\.", TEXT)
    assert set(re.findall(r"`([a-z]+)`", sentence)) == pools


@pytest.mark.parametrize("command", starting("anmi", "jobs", "submit") + starting("anmi", "plan"), ids=" ".join)
def test_runs_are_of_stages_and_configurations_that_exist(command: list[str]) -> None:
    (config,) = [word for word in command if word.endswith(".yaml")]
    stages = names_of(load_experiment(ROOT / config))
    if "--until" in command:
        assert value(command, "--until") in stages


NAMES = {tuple(one[1 : 3 if one[1] == "jobs" else 2]) for one in COMMANDS if one[0] == "anmi"}


@pytest.mark.parametrize("name", sorted(NAMES), ids=" ".join)
def test_commands_and_their_options_exist(name: tuple[str, ...]) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "anmi_ray", *name, "--help"], capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 0, done.stderr
    used = {word for command in starting("anmi", *name) for word in command if word.startswith("--")}
    assert [option for option in used if option not in done.stdout] == []


def test_there_is_one_root() -> None:
    roots = {value(command, "--root") for command in COMMANDS if "--root" in command}
    assert len(roots) == 1
    assert all(path.startswith(f"{root}/") for root in roots for path in re.findall(r"s3 cp --recursive (\S+)", TEXT))


def test_make_has_the_target() -> None:
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    for command in starting("make"):
        assert re.search(rf"^{command[1]}:", makefile, re.MULTILINE)
