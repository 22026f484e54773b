"""The same run as a Ray job, submitted to a head of this test's own on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from tests.small import write_collection, write_config

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]
REPOSITORY = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@pytest.fixture
def head(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The address of a head that lives in its own process group and goes with it."""
    temp = tempfile.mkdtemp(prefix="anmi-", dir="/tmp")
    port, dashboard = free_port(), free_port()
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", "--num-cpus=4"]
    command += [f"--port={port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--temp-dir={temp}"]
    command += ["--object-store-memory=300000000", "--disable-usage-stats"]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    environment["RAY_AUTH_MODE"] = "disabled"  # a head for one test, on the loopback interface
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment
    )
    yield f"http://127.0.0.1:{dashboard}"
    os.killpg(process.pid, signal.SIGTERM)
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
    shutil.rmtree(temp, ignore_errors=True)


def submit(address: str, entrypoint: str) -> tuple[JobSubmissionClient, str]:
    """Submit as soon as the head takes jobs."""
    environment = {"working_dir": str(REPOSITORY), "excludes": [".git", ".venv", "results", "tests", "*.png"]}
    deadline = time.monotonic() + 240
    while True:
        try:
            client = JobSubmissionClient(address)
            return client, client.submit_job(entrypoint=entrypoint, runtime_env=environment)
        except (ConnectionError, RuntimeError):
            if time.monotonic() > deadline:
                raise
            time.sleep(1)


def test_the_pipeline_as_a_job(head: str, tmp_path: Path) -> None:
    config = write_config(tmp_path / "small.yaml", write_collection(tmp_path / "collection"))
    client, job = submit(head, f"{sys.executable} jobs/pipeline.py {config} --root {tmp_path / 'root'}")
    deadline = time.monotonic() + 700
    while client.get_job_status(job) not in (JobStatus.SUCCEEDED, JobStatus.FAILED, JobStatus.STOPPED):
        assert time.monotonic() < deadline, client.get_job_logs(job)
        time.sleep(2)
    logs = client.get_job_logs(job)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, logs
    assert (tmp_path / "root" / "reports" / "small" / "report.html").exists(), logs
