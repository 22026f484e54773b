"""A Ray of a run's own that does not come up in time: three tries, one message, exit code 75, no process left over."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.small import write_config

pytestmark = [pytest.mark.faults, pytest.mark.ray, pytest.mark.timeout(300)]
# The command, and what it has started that is alive when it would exit.
_CARRIED_OUT = """
import json, sys
from anmi_ray.cli import main
try:
    main(sys.argv[1:])
except SystemExit as end:
    import psutil
    left = [child.name() for child in psutil.Process().children(recursive=True)]
    print(json.dumps({"code": end.code, "left": left}))
"""


def test_a_ray_that_does_not_come_up_in_time(small_collection: Path, short_temp: Path, tmp_path: Path) -> None:
    config = write_config(tmp_path / "small.yaml", small_collection)
    temp = short_temp / "busy"
    temp.mkdir()
    late = {"TMPDIR": str(temp), "RAY_gcs_server_port_wait_time_s": "0"}  # no head has a port as soon as it starts
    arguments = ["run", str(config), "--root", str(tmp_path / "root"), "--until", "ingest"]
    done = subprocess.run(
        [sys.executable, "-c", _CARRIED_OUT, *arguments],
        capture_output=True,
        text=True,
        timeout=240,
        env=os.environ | late,
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.splitlines()[-1]) == {"code": 75, "left": []}
    assert done.stderr.startswith("anmi: this machine: Ray did not start in 3 tries: ")
    assert "remedy: run the same command again" in done.stderr
    assert len(done.stderr.splitlines()) == 2, done.stderr  # no traceback, and nothing of Ray's own
    assert len(list(temp.glob("anmi-*/session_2*"))) == 3


def taken(temp: Path) -> None:
    temp.mkdir()
    (temp / f"anmi-{os.getuid()}").write_text("")


@pytest.mark.parametrize(
    ("name", "make", "said"),
    [
        ("taken", taken, "expected a folder, got a file"),
        ("long" * 25, Path.mkdir, "is too long for Ray's sockets below it\n  remedy: set TMPDIR=/tmp"),
    ],
)
def test_a_folder_that_ray_cannot_use_is_named_at_once(
    name: str, make: Callable[[Path], None], said: str, small_collection: Path, short_temp: Path, tmp_path: Path
) -> None:
    config = write_config(tmp_path / "small.yaml", small_collection)
    temp = short_temp / name
    make(temp)
    arguments = ["run", str(config), "--root", str(tmp_path / "root"), "--until", "ingest"]
    done = subprocess.run(
        [sys.executable, "-m", "anmi_ray", *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        env=os.environ | {"TMPDIR": str(temp)},
    )
    assert done.returncode == 2, done.stderr
    assert said in done.stderr
    assert str(temp) in done.stderr
    assert "Traceback" not in done.stderr
