"""kill -9 of a campaign in the middle: the same command goes on, and no trial that had ended is run again."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest

from anmi_ray.config.tune import load
from anmi_ray.reports.campaign import Trial
from anmi_ray.tuning.campaign import open_campaign
from anmi_ray.tuning.study import Trials
from tests.faults.test_kill import kill_tree
from tests.small import start_from
from tests.tuning.campaigns import write_campaign

pytestmark = [pytest.mark.faults, pytest.mark.long, pytest.mark.ray, pytest.mark.timeout(1500)]
TRIALS = 2


def records(config: Path) -> dict[int, Trial]:
    return {one.number: one for one in Trials(open_campaign(load(config))).read()}


def ended(config: Path) -> dict[int, Trial]:
    return {number: one for number, one in records(config).items() if one.status != "running"}


def made(root: Path) -> dict[str, int]:
    """When each complete artifact was made."""
    return {str(path): path.stat().st_mtime_ns for path in root.glob("artifacts/*/*/manifest.json")}


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
        while not ended(config):
            assert process.poll() is None, errors.read_text()
            assert time.monotonic() < deadline
            time.sleep(0.5)
        time.sleep(4.0)
        assert process.poll() is None, "it was over before it could be killed"
        assert kill_tree(process) > 1
    known = ended(config)
    before, chosen = made(root), {number: one.params for number, one in records(config).items()}
    assert list(known) == [0]
    assert list(chosen) == [0, 1]
    done = subprocess.run(command, capture_output=True, text=True, timeout=900)
    assert done.returncode == 0, done.stdout + done.stderr
    after = made(root)
    assert {path: after[path] for path in before} == before
    assert list(ended(config)) == list(range(TRIALS))
    assert ended(config)[0] == known[0]
    assert {number: one.params for number, one in records(config).items()} == chosen
    assert done.stdout.count("  before  ") == len(known)
    assert (root / "reports" / "tiny" / "campaign.html").exists()
    assert "Traceback" not in done.stderr
