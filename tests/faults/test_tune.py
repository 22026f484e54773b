"""kill -9 of a campaign in the middle: the same command goes on, and no trial that had ended is run again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from tests.faults.test_kill import kill_tree
from tests.small import start_from
from tests.tuning.campaigns import write_campaign

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.ray, pytest.mark.timeout(1500)]
TRIALS = 2


def records(root: Path) -> dict[int, dict[str, Any]]:
    found = [json.loads(path.read_text()) for path in root.glob("campaigns/*/trials/*.json")]
    return {one["number"]: one for one in found}


def ended(root: Path) -> set[int]:
    return {number for number, one in records(root).items() if one["status"] != "running"}


def made(root: Path) -> dict[str, int]:
    """When everything that is complete was made, by artifact and trial."""
    finished = [*root.glob("artifacts/*/*/manifest.json")]
    finished += [path for path in root.glob("campaigns/*/trials/*.json") if int(path.stem) in ended(root)]
    return {str(path.relative_to(root)): path.stat().st_mtime_ns for path in finished}


def test_killed_in_the_middle_and_gone_on_with(prepared: Path, small_collection: Path, tmp_path: Path) -> None:
    """Killed while the second trial trains."""
    start_from(prepared, tmp_path / "root", "rate")
    config = write_campaign(tmp_path, small_collection, trials=TRIALS, repeats=0, asha=None)
    command, root = [sys.executable, "-m", "anmi_ray", "tune", str(config)], tmp_path / "root"
    errors = tmp_path / "errors.txt"
    with (
        errors.open("a") as sink,
        subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=sink, text=True, start_new_session=True) as process,
    ):
        deadline = time.monotonic() + 500
        while not ended(root):
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        time.sleep(4.0)
        assert process.poll() is None, "it was over before it could be killed"
        assert kill_tree(process) > 1
    known = ended(root)
    before, chosen = made(root), {number: one["params"] for number, one in records(root).items()}
    assert known == {0}
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    after = made(root)
    assert {path: after[path] for path in before} == before
    assert ended(root) == set(range(TRIALS))
    assert {number: one["params"] for number, one in records(root).items() if number in chosen} == chosen
    assert done.stdout.count("  before  ") == len(known)
    assert (root / "reports" / "tiny" / "campaign.html").exists()
    assert "Traceback" not in done.stderr
