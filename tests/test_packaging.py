"""What a user installs holds what the program reads at run time; Makefile, CI and pyproject.toml hang together."""

from __future__ import annotations

import re
import subprocess
import tomllib
import zipfile
from importlib import metadata
from pathlib import Path

import pytest

from tests.test_installed import build_wheel

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Names inside a wheel built from a copy of the tree."""
    wheel = build_wheel(tmp_path_factory.mktemp("wheel") / "tree")
    with zipfile.ZipFile(wheel) as archive:
        return archive.namelist()


def test_wheel_holds_every_file_of_the_package(wheel_names: list[str]) -> None:
    files = [path for path in (ROOT / "anmi_ray").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert any(path.suffix == ".j2" for path in files)
    assert len(files) > 60
    assert sorted(str(path.relative_to(ROOT)) for path in files if str(path.relative_to(ROOT)) not in wheel_names) == []


def test_wheel_holds_the_example_configurations(wheel_names: list[str]) -> None:
    names = {path.name for path in (ROOT / "jobs" / "configs").glob("*.yaml")}
    assert {Path(name).name for name in wheel_names if name.startswith("anmi_ray/api/configs/")} == names


def test_wheel_holds_the_licence_and_no_tests(wheel_names: list[str]) -> None:
    assert any(name.endswith("licenses/LICENSE") for name in wheel_names)
    assert [name for name in wheel_names if name.startswith(("tests/", "jobs/"))] == []


def test_the_command_is_declared() -> None:
    (command,) = metadata.entry_points(group="console_scripts", name="anmi")
    assert command.value == "anmi_ray.cli:main"
    assert callable(command.load())


def test_extras_named_by_the_makefile_exist() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    default = re.search(r"^EXTRAS \?= (.*)$", makefile, re.MULTILINE)
    assert default is not None
    assert set(default.group(1).split(",")) <= set(project["optional-dependencies"])
    offered = re.search(r"of pyproject.toml \(([^)]*)\)", makefile)
    assert offered is not None
    assert set(re.findall(r"[\w-]+", offered.group(1))) == set(project["optional-dependencies"])


def test_ci_ends_with_tests() -> None:
    script = ROOT / ".ci" / "run"
    subprocess.run(["bash", "-n", str(script)], check=True, timeout=30)
    lines = [line for line in script.read_text(encoding="utf-8").splitlines() if line]
    assert lines[-2:] == ['  tests "$lane"', "done"]
    assert "set -euo pipefail" in lines
