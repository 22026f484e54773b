"""The doctor tells what is there, what is missing, and what would break, without importing it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from anmi_ray.api import doctor
from anmi_ray.core import environment
from anmi_ray.retrieval import jvm
from tests.commands import printed
from tests.small import write_config


def _check(name: str, state: doctor.State = "ok", remedy: str = "pip install 'a[b]'") -> doctor.Check:
    return doctor.Check(name, state, "1.0 [x]", "gives", remedy)


def test_report_covers_the_environment_and_every_gap_has_a_remedy() -> None:
    checks = {check.name: check for check in doctor.report()}
    wanted = {"Python", "ray", "torch", "faiss-cpu", "pyserini", "vllm", "C++ compiler", "JDK", "GPU", "CPU cores"}
    assert wanted | {"memory", "disk"} <= set(checks)
    assert checks["Python"].state == checks["ray"].state == checks["torch"].state == "ok"
    assert checks["ray"].found.startswith("2.60")
    for check in checks.values():
        assert check.gives, check.name
        assert check.state == "ok" or check.remedy, check.name


def test_missing_required_package_fails_and_missing_optional_does_not(monkeypatch: pytest.MonkeyPatch) -> None:
    installed = doctor.version_of
    monkeypatch.setattr(doctor, "version_of", lambda name: None if name in ("scipy", "pyserini") else installed(name))
    checks = {check.name: check for check in doctor.report()}
    assert checks["scipy"].state == "missing"
    assert checks["scipy"].remedy == environment.install(None, "scipy")
    assert checks["pyserini"].state == "optional"
    assert checks["pyserini"].remedy == environment.install("lucene")
    assert not doctor.healthy(checks.values())
    assert doctor.healthy(check for check in checks.values() if check.name != "scipy")


def test_a_compiler_is_optional_and_an_unusable_package_broken(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("CXX", raising=False)
    with environment.without("faiss"):
        checks = {check.name: check for check in doctor.report()}
    assert checks["C++ compiler"].state == "optional"
    assert checks["faiss-cpu"].state == "broken"
    assert "--force-reinstall" in checks["faiss-cpu"].remedy
    monkeypatch.setattr(doctor, "version_of", lambda name: "1.0" if name == "ray" else None)
    ray = next(check for check in doctor.report() if check.name == "ray")
    assert (ray.state, ">=2.60" in ray.found) == ("broken", True)


def test_the_jdk_is_named_with_its_fault(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    good, old = jvm.Jdk(25, tmp_path / "good"), jvm.Jdk(17, tmp_path / "old")
    (good.home / "lib" / "server").mkdir(parents=True)
    for name in ("libjvm.so", "libjvm.dylib"):
        (good.home / "lib" / "server" / name).touch()
    for found, state, said in (
        (good, "ok", f"JDK 25 in {good.home}"),
        (old, "optional", f"JDK 17 in {old.home} (too old)"),
        (None, "optional", "not found"),
    ):
        monkeypatch.setattr(jvm, "installed", lambda found=found: found)
        check = next(check for check in doctor.report() if check.name == "JDK")
        assert (check.state, check.found) == (state, said)


def test_servers_of_a_configuration_are_checked(small_collection: Path, tmp_path: Path) -> None:
    endpoint = {"base_url": "http://127.0.0.1:9/v1", "model": "m"}
    judges = {"judges": [{"kind": "api", "endpoint": endpoint}]}
    config = write_config(tmp_path / "small.yaml", small_collection, judge=judges)
    server = doctor.report(str(config))[-1]
    assert (server.state, "127.0.0.1:9" in server.name) == ("broken", True)
    assert server.remedy


def test_what_is_missing_stands_first_and_a_command_for_several_packages_once(monkeypatch: pytest.MonkeyPatch) -> None:
    optional = [_check(name, "optional", f"{sys.executable} -m pip install c") for name in ("onnx", "onnxruntime")]
    checks = [_check("fine", remedy="do not show"), _check("gone", "missing"), *optional]
    monkeypatch.setattr(doctor, "report", lambda config: checks)
    lines = printed("doctor").splitlines()
    assert "something required is missing" in lines[0]
    assert "gone: 1.0 [x]; pip install 'a[b]'" in lines[1]
    assert "do not show" not in "".join(lines)
    assert "onnx, onnxruntime" in lines[-1]
    assert "pip install c" in lines[-1]
