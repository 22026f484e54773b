"""The environment of a run: versions, git revision, hardware, and the environment of Ray's workers.

Imports none of the packages it names.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from anmi_ray.core.errors import ConfigError

ROOT = Path(__file__).resolve().parents[2]  # of a clone
GIB = 1024**3
LEAST_DISK = 2 * GIB  # free space below which no run starts
_PACKAGES = (
    "anmi_ray",
    "ray",
    "torch",
    "transformers",
    "sentence-transformers",
    "deepspeed",
    "pyarrow",
    "numpy",
    "numba",
    "bm25s",
    "faiss-cpu",
    "pyserini",
    "ir-measures",
)
# What Ray's worker processes are started with. One thread per process unless a task asks for more: processes, not
# threads, share the cores.
WORKERS = {
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "RAY_DATA_DISABLE_PROGRESS_BARS": "1",
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
}


@contextmanager
def without(package: str) -> Iterator[None]:
    """Hide a package from imports inside the context."""
    loaded = sys.modules.pop(package, None)
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
        if loaded is not None:
            sys.modules[package] = loaded


def requirements() -> Iterator[tuple[str | None, Requirement]]:
    """(extra or None, requirement) of this project: a clone's pyproject.toml, or the installed package's metadata."""
    if (file := ROOT / "pyproject.toml").is_file():
        project = tomllib.loads(file.read_text(encoding="utf-8"))["project"]
        parts = {None: project["dependencies"], **project["optional-dependencies"]}
        yield from ((extra, Requirement(text)) for extra, texts in parts.items() for text in texts)
        return
    for text in metadata.requires("anmi-ray") or ():
        requirement = Requirement(text)
        extra = re.search(r'extra == "([^"]+)"', str(requirement.marker or ""))
        yield (extra.group(1) if extra else None), requirement


def install(extra: str | None, package: str | None = None) -> str:
    """The command that installs what `extra` of pyproject.toml adds here (None: what is always needed), or one package.

    In a clone's own environment that is `make env`. Elsewhere pip is given the packages themselves: this project is in
    no package index, and the wheel or folder that it was installed from may be gone.
    """
    if Path(sys.prefix).resolve() == ROOT / ".venv":
        extras = {None: "", "gpu": " EXTRAS=gpu,deepspeed,dev"}.get(extra, f" EXTRAS=deepspeed,dev,{extra}")
        return f"make env{extras}"
    wanted = [requirement for of, requirement in requirements() if of == extra and package in (None, requirement.name)]
    names = (
        f"{requirement.name}[{','.join(sorted(requirement.extras))}]" if requirement.extras else requirement.name
        for requirement in wanted
    )
    packages = [f"{name}{requirement.specifier}" for name, requirement in zip(names, wanted, strict=True)]
    return shlex.join([sys.executable, "-m", "pip", "install", *packages])


def need(module: str, place: str, remedy: str) -> None:
    """Raise ConfigError if a module is not installed. Imports nothing."""
    if find_spec(module) is None:
        raise ConfigError(f"needs the package {module}, which is not installed", place, remedy)


def free_disk(path: Path) -> tuple[Path, int]:
    """The nearest folder above or at `path` that exists, and the free bytes there."""
    while not path.exists():
        path = path.parent
    return path, shutil.disk_usage(path).free


def versions() -> dict[str, str]:
    """Installed version of each package that a result may depend on."""
    found: dict[str, str] = {}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found


@lru_cache(maxsize=1)
def git_revision() -> str | None:
    """Revision of the source tree this package runs from, with a mark when it has changes; None outside a checkout."""
    if not (ROOT / ".git").exists():
        return None
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True)
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=ROOT, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return head.stdout.strip() + ("+changes" if dirty.stdout.strip() else "")


def hardware() -> dict[str, Any]:
    """Processor, cores and memory of this machine."""
    return {"processor": _processor(), "cores": cores(), "memory_gb": round(_memory() / 2**30, 1)}


def cores() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else (os.cpu_count() or 1)


def _memory() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError, AttributeError):
        return 0


def _processor() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def describe() -> dict[str, Any]:
    """Everything above, for a run's record."""
    return {
        "python": platform.python_version(),
        "platform": platform.platform(),
        "versions": versions(),
        "git": git_revision(),
        **hardware(),
    }
