"""What a run is carried out with: versions, git revision, hardware, what Ray's workers start with, what is kept out.

Imports none of the packages it names.
"""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any

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
    """What is imported meanwhile finds no such package, installed or not."""
    loaded = sys.modules.pop(package, None)
    sys.modules[package] = None  # type: ignore[assignment]
    try:
        yield
    finally:
        del sys.modules[package]
        if loaded is not None:
            sys.modules[package] = loaded


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
    folder = Path(__file__).resolve().parents[2]
    if not (folder / ".git").exists():
        return None
    try:
        head = subprocess.run(["git", "rev-parse", "HEAD"], cwd=folder, capture_output=True, text=True, check=True)
        dirty = subprocess.run(["git", "status", "--porcelain"], cwd=folder, capture_output=True, text=True, check=True)
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
