"""The installed packages are those of constraints.txt, and nothing is there that breaks them."""

from __future__ import annotations

import re
import sysconfig
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement

ROOT = Path(__file__).resolve().parents[2]


def _name(text: str) -> str:
    return re.sub(r"[-_.]+", "-", text).lower()


def _pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    return {_name(name): version for name, version in pairs}


def _installed() -> dict[str, str]:
    # not along sys.path: setuptools puts the copies of other packages that it carries there when it is imported
    here = metadata.distributions(path=[sysconfig.get_path("purelib")])
    return {_name(dist.metadata["Name"]): dist.version for dist in here if dist.metadata["Name"]}


def test_installed_versions_are_the_pinned_ones() -> None:
    pins, installed = _pins(), _installed()
    assert len(pins) > 100
    other = {
        name: (installed[name], pin)
        for name, pin in pins.items()
        if name in installed and installed[name].partition("+")[0] != pin
    }
    assert other == {}, "run `make env`, or renew constraints.txt (how: its head)"


def test_every_declared_core_dependency_is_pinned_inside_its_range() -> None:
    pins = _pins()
    core = [Requirement(text) for text in metadata.requires("anmi-ray") or []]
    core = [one for one in core if one.marker is None]
    assert len(core) > 15
    assert [str(one) for one in core if _name(one.name) not in pins] == []
    assert [str(one) for one in core if not one.specifier.contains(pins[_name(one.name)])] == []


def test_constraints_name_versions_only() -> None:
    text = (ROOT / "constraints.txt").read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    assert [line for line in lines if not re.fullmatch(r"[A-Za-z0-9._-]+==[0-9][A-Za-z0-9.!]*", line)] == []


@pytest.mark.parametrize("name", ["torchvision", "torchaudio", "torchcodec"])
def test_nothing_of_ours_needs_what_breaks_transformers(name: str) -> None:
    needing = [
        dist.metadata["Name"]
        for dist in metadata.distributions()
        for text in dist.requires or []
        if "extra ==" not in text and _name(Requirement(text).name) == name
    ]
    assert [one for one in needing if not one.startswith("vllm")] == []
