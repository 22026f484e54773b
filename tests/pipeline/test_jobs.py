"""Jobs on a real head with a job server: followed, found again, resubmitted, cancelled, and refused in words."""

from __future__ import annotations

import http.server
import json
import signal
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest
from ray.job_submission import JobStatus

from anmi_ray.config import load
from anmi_ray.core.errors import ClusterError, ConfigError
from anmi_ray.pipeline.jobs import Jobs, submit
from anmi_ray.pipeline.submission import Submission, for_cluster
from tests import commands
from tests.commands import Done
from tests.heads import REPOSITORY, Head, environment, free_port, head
from tests.interrupts import heeding
from tests.servers import listening
from tests.small import write_collection, write_config
from tests.tuning.campaigns import write_campaign

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]
WAIT_S = 120


@pytest.fixture(scope="module")
def made() -> Iterator[Head]:
    with head() as started:
        yield started


@pytest.fixture(scope="module")
def address(made: Head) -> str:
    return made.jobs


@pytest.fixture(scope="module")
def config(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("jobs")
    return write_config(
        folder / "small.yaml", write_collection(folder / "collection", train=8, dev=2, test=4, others=20)
    )


@pytest.fixture
def jobs(address: str, monkeypatch: pytest.MonkeyPatch) -> Jobs:
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_ADDRESS", "http://127.0.0.1:1")  # the address that is given wins
    return Jobs(address)


def job(config: Path, root: Path, *overrides: str, until: str = "ingest", code: tuple[Path, ...] = ()) -> Submission:
    settings, _ = for_cluster(load.load(config, [*overrides, f"execution.root={root}"]))
    return Submission("pipeline", settings, ("--until", until), code)


def carried_out(jobs: Jobs, submission: Submission, attempts: int = 3, **options: bool) -> tuple[int, str, list[str]]:
    """The exit status, the log, and what was said."""
    log: list[str] = []
    said: list[str] = []
    given = {"again": False, "follow": True, **options}
    status = submit(jobs, submission, {}, attempts, write=log.append, say=said.append, **given)
    return status, "".join(log), said


@dataclass(frozen=True)
class First:
    """A job that a command of its own process submitted and followed to its end, and what the command said."""

    root: Path
    command: tuple[str | Path, ...]
    done: subprocess.CompletedProcess[str]


@pytest.fixture(scope="module")
def first(address: str, config: Path, tmp_path_factory: pytest.TempPathFactory) -> First:
    root = tmp_path_factory.mktemp("first")
    command = (
        "jobs",
        "submit",
        "pipeline",
        config,
        f"execution.root={root}",
        "--until",
        "ingest",
        "--address",
        address,
    )
    process = [sys.executable, "-m", "anmi_ray", *map(str, command)]
    done = subprocess.run(process, capture_output=True, text=True, timeout=300, env=environment())
    return First(root, command, done)


def anmi(*arguments: str | Path) -> Done:
    """A command about jobs, in this process, without a password."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("RAY_AUTH_MODE", "disabled")
        patch.delenv("RAY_ADDRESS", raising=False)
        return commands.anmi(*arguments)


def until(found: Callable[[], object]) -> None:
    deadline = time.monotonic() + WAIT_S
    while not found():
        assert time.monotonic() < deadline
        time.sleep(0.05)


def driver(submission: Submission, attempt: int) -> psutil.Process | None:
    """The process of an attempt's driver: its environment names the job."""
    for process in psutil.process_iter():
        try:
            told = process.environ().get("RAY_JOB_CONFIG_JSON_ENV_VAR", "{}")
            name = json.loads(told).get("metadata", {}).get("job_submission_id")
            if name == submission.id_of(attempt) and "anmi_ray" in process.cmdline():
                return process
        except psutil.Error:
            continue
    return None


def test_a_job_is_followed_and_found_again(address: str, first: First) -> None:
    done = first.done
    assert done.returncode == 0, done.stdout + done.stderr
    assert "✓ ingest" in done.stdout
    assert (first.root / "runs" / "small.json").exists()
    assert not [path for path in first.root.iterdir() if path.name.startswith("preflight")]
    again = anmi(*first.command)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "is there already, succeeded" in again.stderr
    assert again.stdout == done.stdout  # its log, once more
    name = done.stderr.partition(":")[0]
    listed = anmi("jobs", "list", "--address", address).stdout.splitlines()
    assert [line.split()[1:5] for line in listed if line.startswith(name)] == [["succeeded", "pipeline", "small", "1"]]


def test_the_script_is_a_job_too(jobs: Jobs, config: Path, first: First) -> None:
    """As KubeRay's RayJobs and `ray job submit` start it: jobs/pipeline.py, which is `anmi run`."""
    words = f"python {REPOSITORY}/jobs/pipeline.py {config} --root {first.root} --until ingest"
    jobs._client.submit_job(entrypoint=words, submission_id="script")
    until(lambda: jobs._client.get_job_status("script").is_terminal())
    log = jobs._client.get_job_logs("script")
    assert jobs._client.get_job_status("script") == JobStatus.SUCCEEDED, log
    assert "✓ ingest       reused" in log


def test_prometheus_sees_its_rows(made: Head, first: First) -> None:
    (manifest,) = first.root.glob("artifacts/ingest/*/manifest.json")
    expected = {flow["unit"]: float(flow["rows_in"]) for flow in json.loads(manifest.read_text())["flows"]}

    def metered() -> dict[str, float]:
        with urllib.request.urlopen(made.metrics, timeout=30) as response:
            lines = response.read().decode().splitlines()
        of_run = [line for line in lines if line.startswith("ray_anmi_rows_total{") and 'run="small"' in line]
        return {
            line.split('unit="')[1].split('"')[0]: float(line.split()[-1]) for line in of_run if 'kind="in"' in line
        }

    until(lambda: metered() == expected)


def test_what_succeeded_is_carried_out_anew_when_asked(jobs: Jobs, config: Path, first: First) -> None:
    submission = job(config, first.root)
    status, log, _ = carried_out(jobs, submission, again=True)
    assert status == 0
    assert "reused" in log
    assert jobs.newest(submission)[0] == 2


def test_the_users_mistake_is_not_tried_again(jobs: Jobs, config: Path, tmp_path: Path) -> None:
    submission = job(config, tmp_path, f"corpus.path={tmp_path / 'absent'}")
    status, log, said = carried_out(jobs, submission)
    assert status == 2
    assert "absent" in log
    assert "Traceback" not in log
    assert "failed with exit status 2" in said[-1]
    assert jobs.newest(submission)[0] == 1
    # mended, the same command tries once more
    assert carried_out(jobs, submission, follow=False)[2] == [f"{submission.id_of(2)}: submitted"]
    jobs.cancel(submission.id_of(2), lambda _: None)


def test_a_driver_that_is_killed_goes_on_in_another_attempt(jobs: Jobs, config: Path, tmp_path: Path) -> None:
    submission, killed = job(config, tmp_path, "name=killed", until="retrieve"), []

    def kill() -> None:
        until(lambda: list(tmp_path.glob("artifacts/ingest/*/manifest.json")))
        until(lambda: driver(submission, 1))
        process = driver(submission, 1)
        assert process is not None
        process.kill()
        killed.append(process.pid)

    killer = threading.Thread(target=kill)
    killer.start()
    status, log, said = carried_out(jobs, submission)
    killer.join()
    assert killed
    assert status == 0, log
    ends = [line for line in said if "failed" in line or "succeeded" in line]
    assert ends == [
        f"{submission.id_of(1)}: failed with exit status 137",
        f"{submission.id_of(2)}: succeeded",
    ]
    assert "✓ ingest       reused" in log


def test_ctrl_c_leaves_the_job_at_work_and_cancel_ends_it(
    jobs: Jobs, address: str, config: Path, tmp_path: Path
) -> None:
    submission = job(config, tmp_path, "name=left", until="rate")
    words = ["jobs", "submit", "pipeline", str(config), "name=left", "--until", "rate", "--root", str(tmp_path)]
    command = heeding([sys.executable, "-m", "anmi_ray", *words, "--address", address])
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdout=pipe, stderr=pipe, text=True, env=environment()) as process:
        assert process.stdout is not None
        for line in process.stdout:
            if "run left" in line:
                break
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert process.returncode == 130, errors
    assert "stops it" in errors
    assert "Traceback" not in errors
    name = submission.id_of(1)
    assert jobs.details(name).status == JobStatus.RUNNING
    done = anmi("jobs", "cancel", name, "--address", address)
    assert done.returncode == 0, done.stderr
    assert f"{name}: stopped" in done.stdout
    assert str(tmp_path) in done.stdout
    assert jobs.details(name).status == JobStatus.STOPPED
    until(lambda: driver(submission, 1) is None)
    assert "stopped" in anmi("jobs", "cancel", name, "--address", address).stdout  # again: it is what it is


@pytest.mark.long
def test_a_campaign_is_a_job(address: str, config: Path, tmp_path: Path) -> None:
    written = write_campaign(tmp_path, config.parent / "collection", trials=1, random=1, repeats=0, asha=None)
    command = ("jobs", "submit", "tune", written, "--address", address)
    first = anmi(*command)
    assert first.returncode == 0, first.stdout + first.stderr
    assert "trials: 1 complete" in first.stdout
    (trial,) = (tmp_path / "root").glob("campaigns/*/trials/*.json")
    assert json.loads(trial.read_text())["status"] == "complete"
    again = anmi(*command, "trials=2", "--no-follow")  # more trials are the same campaign
    assert "is there already, succeeded" in again.stderr
    name = first.stderr.partition(":")[0]
    listed = anmi("jobs", "list", "--address", address).stdout.splitlines()
    assert [line.split()[1:5] for line in listed if line.startswith(name)] == [["succeeded", "tune", "tiny", "1"]]


def test_shipped_code_runs_in_the_place_of_the_images(jobs: Jobs, config: Path, tmp_path: Path) -> None:
    parts = (REPOSITORY / "anmi_ray", REPOSITORY / "jobs")
    status, log, _ = carried_out(jobs, job(config, tmp_path, "name=shipped", code=parts))
    assert status == 0, log
    record = json.loads((tmp_path / "runs" / "shipped.json").read_text())
    assert record["environment"]["git"] is None  # not this checkout


def test_an_id_that_another_job_has_is_named(jobs: Jobs, config: Path, tmp_path: Path) -> None:
    submission = job(config, tmp_path, "name=taken")
    jobs._client.submit_job(entrypoint="true", submission_id=submission.id_of(1))
    with pytest.raises(ConfigError, match="in use by another job: true") as caught:
        carried_out(jobs, submission)
    assert caught.value.place == submission.id_of(1)
    assert "name=" in str(caught.value.remedy)
    with pytest.raises(ConfigError, match="expected the id of a job"):
        jobs.cancel(submission.id_of(1), lambda _: None)
    with pytest.raises(ConfigError, match="expected the id of a job"):
        jobs.cancel("anmi-pipeline-none-1", lambda _: None)


def test_a_driver_that_fits_nowhere_waits_and_can_be_cancelled(jobs: Jobs, config: Path, tmp_path: Path) -> None:
    submission = job(config, tmp_path, "name=waits", "execution.driver.label_selector={zone: moon}")
    said: list[str] = []
    jobs.submit(submission, 1, {})
    assert jobs.cancel(submission.id_of(1), said.append).status == JobStatus.PENDING
    assert "ends as soon as it does" in said[-1]


def test_nobody_at_the_address() -> None:
    done = anmi("jobs", "list", "--address", f"http://127.0.0.1:{free_port()}")
    assert done.returncode == 2
    assert "no job server answers" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("address", ["", "auto", "127.0.0.1:6379", "ray://127.0.0.1:10001", "http://"])
def test_what_is_no_address(address: str) -> None:
    with pytest.raises(ConfigError, match="is not the address of a job server"):
        Jobs(address)


def test_another_server_at_the_address() -> None:
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    with listening(server), pytest.raises(ClusterError, match="the job server refuses"):
        Jobs(f"http://127.0.0.1:{server.server_port}")
