"""The main path as a Ray job of its own script, in two parts, on a head of this test's own on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
from ray.job_submission import JobStatus, JobSubmissionClient

from tests.heads import REPOSITORY, head
from tests.models.tiny import write_tiny_bert
from tests.small import start_from, write_config

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def carried_out(client: JobSubmissionClient, entrypoint: str) -> str:
    """The log of a job that has ended well."""
    environment = {"working_dir": str(REPOSITORY), "excludes": [".git", ".venv", "results", "tests", "*.png"]}
    deadline, job = time.monotonic() + 700, None
    while job is None:
        try:
            job = client.submit_job(entrypoint=entrypoint, runtime_env=environment)
        except RuntimeError as error:  # the head is still starting
            if "No available agent" not in str(error) or time.monotonic() > deadline:
                raise
    while not client.get_job_status(job).is_terminal():
        assert time.monotonic() < deadline, client.get_job_logs(job)
        time.sleep(2)
    logs = client.get_job_logs(job)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, logs
    return logs


def test_the_pipeline_as_a_job(
    prepared: Path, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    trained = {"model": str(write_tiny_bert(tmp_path / "tiny")), "max_steps": 4, "max_tokens": 48}
    config = write_config(tmp_path / "small.yaml", small_collection, train=trained)
    root = start_from(prepared, tmp_path / "root", "judge")
    script = f"python jobs/pipeline.py {config} --root {root}"
    with head() as made:
        client = JobSubmissionClient(made.jobs)
        first = carried_out(client, f"{script} --until rate")
        assert "✓ rate" in first
        assert "✓ mine" not in first
        rest = carried_out(client, f"{script} --from mine")
    assert "✓ evaluate" in rest
    assert (tmp_path / "root" / "reports" / "small" / "report.html").exists(), rest
