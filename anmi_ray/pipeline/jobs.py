"""Jobs on a Ray cluster through Ray's job server: submit, follow, submit again what was lost, list, and cancel."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from anmi_ray.core.errors import ClusterError, ConfigError
from anmi_ray.pipeline.submission import OURS, Submission, exit_status, passing

_CONNECT_S = 10.0  # timeout of the first connection; Ray's client has none
_GONE_S = 120.0  # timeout of the job server while a job is followed
_POLL_S = 1.0
_CANCEL_S = 120.0  # timeout of a cancelled job that runs
_PENDING_S = 10.0  # and of one that does not run yet
_OVERRIDES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")  # Ray's client prefers them to the address it is given
_VERBOSE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)


class Jobs:
    """Jobs of the cluster whose job server (its dashboard) is at `address`.

    Raises ConfigError for another address, ClusterError if no server answers or the request is refused.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        self._check_address()
        for name in _VERBOSE:
            logging.getLogger(name).setLevel(logging.WARNING)
        variables = {name: os.environ.pop(name) for name in _OVERRIDES if name in os.environ}
        try:
            with self._errors():
                self._client = JobSubmissionClient(self.address)
        finally:
            os.environ.update(variables)

    def ours(self) -> list[JobDetails]:
        """Return the jobs that `anmi jobs submit` started, oldest first."""
        return sorted((job for job in self._all() if OURS in (job.metadata or {})), key=lambda job: job.start_time or 0)

    def details(self, name: str) -> JobDetails:
        """Return one of these jobs. Raises ConfigError for another name."""
        for job in self.ours():
            if job.submission_id == name:
                return job
        raise ConfigError(
            "expected the id of a job that `anmi jobs submit` started",
            f"job {name}",
            f"anmi jobs list --address {self.address} lists them; for other jobs use `ray job`",
        )

    def newest(self, submission: Submission) -> tuple[int, JobDetails | None]:
        """Return the number and details of the newest attempt of a job; 0 and None before the first.

        Raises ConfigError if one of its names belongs to another job.
        """
        known, attempt = {job.submission_id: job for job in self._all()}, 0
        newest: JobDetails | None = None
        while (job := known.get(submission.id_of(attempt + 1))) is not None:
            attempt, newest = attempt + 1, job
            if (job.metadata or {}).get("fingerprint") != submission.fingerprint:
                raise ConfigError(
                    f"the submission id is in use by another job: {job.entrypoint}",
                    str(job.submission_id),
                    "give this run another name (name=…), or remove that job when it has ended: ray job delete",
                )
        return attempt, newest

    def submit(self, submission: Submission, attempt: int, variables: Mapping[str, str]) -> None:
        """Submit an attempt, unless another process did so at the same time."""
        driver = submission.experiment.execution.driver
        with tempfile.TemporaryDirectory(prefix="anmi-") as folder, self._errors():
            submission.write(Path(folder))
            try:
                self._client.submit_job(
                    entrypoint=submission.entrypoint,
                    submission_id=submission.id_of(attempt),
                    runtime_env=submission.runtime_env(Path(folder), variables),
                    metadata=submission.metadata(attempt),
                    entrypoint_num_cpus=driver.num_cpus,
                    entrypoint_label_selector=dict(driver.label_selector) or None,
                )
            except RuntimeError:
                if self.newest(submission)[0] < attempt:
                    raise

    def follow(self, name: str, write: Callable[[str], None], say: Callable[[str], None]) -> JobDetails:
        """Write a job's log from its start until it has ended; return its details then.

        say: called with Ray's messages while the job waits for a node.
        """
        message = ""
        while (job := self._details(name)).status == JobStatus.PENDING:
            if job.message and job.message != message:
                message = job.message
                say(f"{name}: {message}")
            time.sleep(_POLL_S)
        written = 0

        async def tail() -> None:
            nonlocal written
            read = 0  # a new connection reads the log from its start
            async for text in self._client.tail_job_logs(name):
                if new := text[max(written - read, 0) :]:
                    write(new)
                read += len(text)
                written = max(written, read)

        until = time.monotonic() + _GONE_S
        while True:
            with suppress(RuntimeError, aiohttp.ClientError, OSError):  # connect again
                asyncio.run(tail())
            try:
                job = self._details(name)
            except ClusterError:
                if time.monotonic() > until:
                    raise
            else:
                if job.status.is_terminal():
                    return job
                until = time.monotonic() + _GONE_S
            time.sleep(_POLL_S)

    def cancel(self, name: str, say: Callable[[str], None]) -> JobDetails:
        """Stop a job, wait until it has ended, and return its details.

        A job whose driver has no node yet ends once it has one. Raises ClusterError if a running job does not end.
        """
        job = self.details(name)
        if job.status.is_terminal():
            return job
        with self._errors():
            self._client.stop_job(name)
        begun = time.monotonic()
        while not (job := self._details(name)).status.is_terminal():
            waited = time.monotonic() - begun
            if job.status == JobStatus.PENDING and waited > _PENDING_S:
                say(f"{name}: is not running yet, and ends as soon as it does, or when Ray gives up on its start")
                return job
            if waited > _CANCEL_S:
                raise ClusterError("did not end after the cancellation", f"job {name}", "give the same command again")
            time.sleep(_POLL_S)
        return job

    def _all(self) -> list[JobDetails]:
        with self._errors():
            return [job for job in self._client.list_jobs() if job.submission_id is not None]

    def _details(self, name: str) -> JobDetails:
        with self._errors():
            return self._client.get_job_info(name)

    def _check_address(self) -> None:
        parts = urlsplit(self.address)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"'{self.address}' is not the address of a job server",
                "--address",
                "give the dashboard's, such as http://head:8265 (or set RAY_API_SERVER_ADDRESS)",
            )
        with self._errors():
            try:
                port = parts.port or (443 if parts.scheme == "https" else 80)
                socket.create_connection((parts.hostname, port), timeout=_CONNECT_S).close()
            except (OSError, ValueError) as error:
                raise ConnectionError(error) from None

    @contextmanager
    def _errors(self) -> Iterator[None]:
        """Turn errors of the job server's client into errors for the user."""
        try:
            yield
        except AuthenticationError as error:
            raise ClusterError(
                f"the job server refuses this user: {str(error).splitlines()[0]}",
                self.address,
                "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as the cluster's owner says",
            ) from None
        except (ConnectionError, requests.ConnectionError, requests.Timeout) as error:
            raise ClusterError(
                f"no job server answers: {error}",
                self.address,
                "see that the cluster runs, with its dashboard, and that this machine reaches it (kubectl "
                "port-forward, ray dashboard)",
            ) from None
        except (RuntimeError, requests.RequestException, ValueError, KeyError) as error:
            lines = str(error).strip().splitlines() or [type(error).__name__]
            raise ClusterError(
                f"the job server refuses: {lines[-1][:400]}",
                self.address,
                "see that this is a Ray dashboard; the head has its logs (dashboard.log, dashboard_agent.log)",
            ) from error


def submit(
    jobs: Jobs,
    submission: Submission,
    variables: Mapping[str, str],
    attempts: int,
    again: bool,
    follow: bool,
    write: Callable[[str], None],
    say: Callable[[str], None],
) -> int:
    """Submit a job unless it exists, follow it, and return its exit status.

    A job that is running or has succeeded is followed; a successful one is only submitted again if `again`. A lost job
    is submitted again, up to `attempts` times in all. Without `follow`, return at once.
    """
    attempt, job = jobs.newest(submission)
    if job is None or job.status in (JobStatus.FAILED, JobStatus.STOPPED) or (again and job.status.is_terminal()):
        attempt, job = attempt + 1, None
    for left in reversed(range(attempts)):
        name = submission.id_of(attempt)
        if job is None:
            jobs.submit(submission, attempt, variables)
        say(f"{name}: {'submitted' if job is None else 'is there already, ' + job.status.lower()}")
        if not follow:
            return 0
        job = jobs.follow(name, write, say)
        why = ""
        if job.status == JobStatus.FAILED and job.driver_exit_code is not None:
            why = f" with exit status {exit_status(job.status, job.driver_exit_code)}"
        elif job.status == JobStatus.FAILED:
            why = f": {(job.message or str(job.error_type)).strip().splitlines()[0]}"
        say(f"{name}: {job.status.lower()}{why}")
        if job.status != JobStatus.FAILED or not left or not passing(job.driver_exit_code, job.error_type):
            return exit_status(job.status, job.driver_exit_code)
        attempt, job = attempt + 1, None
    raise AssertionError("a job has at least one attempt")
