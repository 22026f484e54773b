"""Jobs on a cluster: submitting them by its job server, following their logs, resubmitting what failed, cancelling.

The job server keeps a job as long as the cluster lives, under the name that was given; what a job is, and what its end
means, `anmi_ray.pipeline.submission` says.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import requests
from ray.exceptions import AuthenticationError
from ray.job_submission import JobDetails, JobStatus, JobSubmissionClient

from anmi_ray.config.execution import DriverExecution
from anmi_ray.core.errors import ClusterError, ConfigError
from anmi_ray.pipeline.submission import OURS, Submission, exit_status, passing

_CONNECT_S = 10.0  # to open a connection to the job server
_GONE_S = 120.0  # that the job server may be away while a job is followed
_POLL_S = 1.0
_CANCEL_S = 120.0  # that a cancelled job may take to end
_PENDING_S = 10.0  # that one may take that is not running yet
_STARTING = "No available agent"  # what a job server says whose cluster is still starting
_STARTING_S = 60.0  # that it may do so
# They would win over an address that is given.
_OVERRIDES = ("RAY_API_SERVER_ADDRESS", "RAY_ADDRESS")
_TALKATIVE = (
    "ray.dashboard.modules.dashboard_sdk",
    "ray.dashboard.modules.job.sdk",
    "ray._private.runtime_env.packaging",
)


@dataclass
class _Log:
    """A job's log as it is shown: told from its start again, it goes on where it was."""

    write: Callable[[str], None]
    shown: int = 0
    read: int = 0

    def again(self) -> None:
        """It is told from its start."""
        self.read = 0

    def told(self, text: str) -> None:
        """The next piece of it."""
        fresh = text[max(self.shown - self.read, 0) :]
        self.read += len(text)
        if fresh:
            self.write(fresh)
            self.shown = self.read


class Jobs:
    """The jobs of the cluster whose job server (the dashboard's address) is at `address`.

    Raises ConfigError where that is no address of one, ClusterError where nobody answers or who answers refuses.
    """

    def __init__(self, address: str) -> None:
        self.address = address.rstrip("/")
        _check_address(self.address)
        for name in _TALKATIVE:
            logging.getLogger(name).setLevel(logging.WARNING)
        with self._answers(), _without(_OVERRIDES):
            self._client = JobSubmissionClient(self.address)

    def ours(self) -> list[JobDetails]:
        """The jobs that were submitted here, oldest first."""
        found = [job for job in self.all() if OURS in (job.metadata or {})]
        return sorted(found, key=lambda job: job.start_time or 0)

    def all(self) -> list[JobDetails]:
        """Every job that was submitted to the cluster, by whomever."""
        with self._answers():
            return [job for job in self._client.list_jobs() if job.submission_id is not None]

    def details(self, name: str) -> JobDetails:
        """What is known of a job of ours. Raises ConfigError where there is none of that name."""
        known = self.all()
        for job in known:
            if job.submission_id == name and OURS in (job.metadata or {}):
                return job
        other = "is not one that `anmi submit` has submitted" if name in {job.submission_id for job in known} else ""
        remedy = "use `ray job` for it" if other else f"anmi jobs --address {self.address} lists those that are there"
        raise ConfigError(other or "there is no such job on this cluster", f"job {name}", remedy)

    def newest(self, submission: Submission) -> tuple[int, JobDetails | None]:
        """The newest attempt of a job, counted from 1, and what is known of it; 0 and None before the first.

        Raises ConfigError where one of its names belongs to another job.
        """
        known, attempt = {job.submission_id: job for job in self.all()}, 0
        while (job := known.get(submission.id_of(attempt + 1))) is not None:
            attempt += 1
            if (job.metadata or {}).get("fingerprint") != submission.fingerprint:
                raise ConfigError(
                    f"the submission id is in use by another job: {job.entrypoint}",
                    str(job.submission_id),
                    "give this run another name (name=…), or remove that job when it has ended: ray job delete",
                )
        return attempt, known.get(submission.id_of(attempt)) if attempt else None

    def submit(self, submission: Submission, attempt: int, variables: Mapping[str, str]) -> None:
        """Submit an attempt. Somebody who submits the same at the same time does so for both."""
        until = time.monotonic() + _STARTING_S
        with tempfile.TemporaryDirectory(prefix="anmi-") as folder, self._answers():
            submission.write(Path(folder))
            while True:
                try:
                    self._client.submit_job(
                        entrypoint=submission.entrypoint,
                        submission_id=submission.id_of(attempt),
                        runtime_env=submission.runtime_env(Path(folder), variables),
                        metadata=submission.metadata(attempt),
                        **_driver(submission.experiment.execution.driver),
                    )
                    return
                except RuntimeError as error:
                    if self.newest(submission)[0] >= attempt:
                        return
                    if _STARTING not in str(error) or time.monotonic() > until:
                        raise
                time.sleep(_POLL_S)

    def follow(self, name: str, write: Callable[[str], None], say: Callable[[str], None]) -> JobDetails:
        """Write a job's log as it comes, from its start, until the job has ended; what is known of it then."""
        self._await_start(name, say)
        log, since = _Log(write), time.monotonic()
        while True:
            log.again()
            with suppress(RuntimeError, aiohttp.ClientError, OSError):  # the job server goes on without us; so do we
                asyncio.run(self._tail(name, log))
            try:
                job = self._details(name)
                since = time.monotonic()
            except ClusterError:
                if time.monotonic() - since > _GONE_S:
                    raise
                job = None
            if job is not None and job.status.is_terminal():
                return job
            time.sleep(_POLL_S)

    def cancel(self, name: str, say: Callable[[str], None]) -> JobDetails:
        """Stop a job and wait until it has ended; what is known of it then.

        One whose driver has no node yet cannot be stopped at once: it ends as soon as it has one. Raises ClusterError
        where one that runs goes on.
        """
        job = self.details(name)
        if job.status.is_terminal():
            return job
        with self._answers():
            self._client.stop_job(name)
        begun = time.monotonic()
        while not (job := self._details(name)).status.is_terminal():
            waited = time.monotonic() - begun
            if job.status == JobStatus.PENDING and waited > _PENDING_S:
                say(f"{name}: is not running yet, and ends as soon as it does, or when Ray gives up on its start")
                return job
            if waited > _CANCEL_S:
                raise ClusterError("goes on though it was told to end", f"job {name}", "give the same command again")
            time.sleep(_POLL_S)
        return job

    def _await_start(self, name: str, say: Callable[[str], None]) -> None:
        """Wait until a job's driver is there, and say what Ray says of the wait."""
        told = ""
        while (job := self._details(name)).status == JobStatus.PENDING:
            if job.message and job.message != told:
                told = job.message
                say(f"{name}: {told}")
            time.sleep(_POLL_S)

    def _details(self, name: str) -> JobDetails:
        with self._answers():
            return self._client.get_job_info(name)

    async def _tail(self, name: str, log: _Log) -> None:
        async for text in self._client.tail_job_logs(name):
            log.told(text)

    @contextmanager
    def _answers(self) -> Iterator[None]:
        """What the job server's client raises, as an error for the user."""
        try:
            yield
        except (ConnectionError, requests.ConnectionError, requests.Timeout) as error:
            raise _silent(self.address, error) from None
        except AuthenticationError as error:
            raise ClusterError(
                f"the job server refuses this user: {str(error).splitlines()[0]}",
                self.address,
                "set RAY_AUTH_MODE=token and RAY_AUTH_TOKEN (or RAY_AUTH_TOKEN_PATH) as the cluster's owner says",
            ) from None
        except (RuntimeError, requests.RequestException, ValueError, KeyError) as error:  # an answer, but no such
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
    """See that a job is carried out, at most `attempts` times from here on; the exit status that its end means.

    A job that is there, running or succeeded, is followed; one that succeeded is carried out anew only where `again`
    says so. What fails and may pass is submitted again, as everything resumes. Without `follow` the end is not waited
    for, and nothing is submitted again.
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
        say(f"{name}: {job.status.lower()}{_why(job)}")
        if job.status != JobStatus.FAILED or not left or not passing(job.driver_exit_code, job.error_type):
            return exit_status(job.status, job.driver_exit_code)
        attempt, job = attempt + 1, None
    raise AssertionError("a job has at least one attempt")


def _why(job: JobDetails) -> str:
    """What became of a job that failed, in a few words: its log has said the rest."""
    if job.status != JobStatus.FAILED:
        return ""
    if job.driver_exit_code is not None:
        return f" with exit status {exit_status(job.status, job.driver_exit_code)}"
    return f": {(job.message or str(job.error_type)).strip().splitlines()[0]}"


def _driver(execution: DriverExecution) -> dict[str, Any]:
    """Where a job's driver runs, as Ray is told."""
    return {
        "entrypoint_num_cpus": execution.num_cpus,
        "entrypoint_memory": None if execution.memory_gb is None else int(execution.memory_gb * 1e9),
        "entrypoint_resources": dict(execution.resources) or None,
        "entrypoint_label_selector": dict(execution.label_selector) or None,
    }


def _check_address(address: str) -> None:
    """See that somebody is there: Ray's own client would wait for minutes where packets are dropped."""
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigError(
            f"'{address}' is not the address of a job server",
            "--address",
            "give the dashboard's, such as http://head:8265 (or set RAY_API_SERVER_ADDRESS)",
        )
    try:
        port = parts.port or (443 if parts.scheme == "https" else 80)
        socket.create_connection((parts.hostname, port), timeout=_CONNECT_S).close()
    except (OSError, ValueError) as error:
        raise _silent(address, error) from None


def _silent(address: str, error: Exception) -> ClusterError:
    return ClusterError(
        f"no job server answers: {error}",
        address,
        "see that the cluster runs, with its dashboard, and that this machine reaches it (kubectl port-forward, ray "
        "dashboard)",
    )


@contextmanager
def _without(names: tuple[str, ...]) -> Iterator[None]:
    """The environment without some variables."""
    held = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(held)
