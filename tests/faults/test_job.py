"""A part of the path as a Ray job of its own script, on a head of this test's own on this machine."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import requests
from ray.job_submission import JobStatus, JobSubmissionClient

from tests.heads import REPOSITORY, head
from tests.small import start_from, write_config

pytestmark = [pytest.mark.faults, pytest.mark.timeout(900)]


def carried_out(client: JobSubmissionClient, entrypoint: str) -> str:
    """The log of a job that has ended well."""
    environment = {"working_dir": str(REPOSITORY), "excludes": [".git", ".venv", "results", "tests", "*.png"]}
    deadline, job = time.monotonic() + 700, "the-path"
    while True:
        try:
            if job in {known.submission_id for known in client.list_jobs()}:
                break
            client.submit_job(entrypoint=entrypoint, runtime_env=environment, submission_id=job)
        except (RuntimeError, requests.ConnectionError) as error:  # the head is still starting
            starting = isinstance(error, requests.ConnectionError) or "No available agent" in str(error)
            if not starting or time.monotonic() > deadline:
                raise
            time.sleep(1)
    while not client.get_job_status(job).is_terminal():
        assert time.monotonic() < deadline, client.get_job_logs(job)
        time.sleep(2)
    logs = client.get_job_logs(job)
    assert client.get_job_status(job) == JobStatus.SUCCEEDED, logs
    return logs


def test_the_pipeline_as_a_job(
    prepared: Path, small_collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As far as the ratings: `test_cluster.py` has a job of the whole path."""
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    config = write_config(tmp_path / "small.yaml", small_collection)
    root = start_from(prepared, tmp_path / "root", "compare")
    with head() as made:
        client = JobSubmissionClient(made.jobs)
        said = carried_out(client, f"python jobs/pipeline.py {config} --root {root} --from judge --until rate")
    assert "✓ judge" in said
    assert "✓ rate" in said
    assert "✓ mine" not in said
    assert list((root / "artifacts" / "rate").glob("*/manifest.json")), said
