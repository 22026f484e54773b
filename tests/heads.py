"""Heads of Ray with a job server, for tests: each lives in a process group of its own and goes with it."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ray.util import get_node_ip_address

REPOSITORY = Path(__file__).resolve().parents[1]
READY_S = 240


@dataclass(frozen=True)
class Head:
    """A head at work: where its job server answers, where drivers connect, where Prometheus would look, and the
    process group of all its parts."""

    jobs: str
    address: str
    metrics: str
    group: int


def free_port() -> int:
    """A port that nothing listens on, below those that outgoing connections take and above Ray's workers'.

    A part of a head binds its port seconds later, and without it the whole head ends.
    """
    while True:
        port = random.SystemRandom().randrange(20_000, 32_000)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def environment(**more: str) -> dict[str, str]:
    """What processes of a test's cluster, and commands about it, are started with: this checkout's code, no password.

    The nodes' image is this environment: its Python comes first, and the package is this checkout's.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    # a head for one test, on the loopback interface
    return {**kept, "PATH": path, "PYTHONPATH": str(REPOSITORY), "RAY_AUTH_MODE": "disabled", **more}


@contextmanager
def head(
    cpus: int = 4, autoscaling: Mapping[str, Any] | None = None, variables: Mapping[str, str] | None = None
) -> Iterator[Head]:
    """A head of so many CPUs, which takes jobs when this is entered.

    autoscaling: the configuration of its autoscaler, whose provider is told where the head is; variables: more
    environment variables of its processes.
    """
    temp = tempfile.mkdtemp(prefix="anmi-", dir="/tmp")
    port, dashboard, agent, metrics, clients = (free_port() for _ in range(5))
    address = f"{get_node_ip_address()}:{port}"
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--num-cpus={cpus}"]
    command += [f"--port={port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--temp-dir={temp}"]
    # another Ray on this machine may hold the port that a node's agent listens on unless told otherwise
    command += [f"--dashboard-agent-listen-port={agent}", "--object-store-memory=300000000", "--disable-usage-stats"]
    # 10001 unless told otherwise: a second head on this machine would end for want of it
    command += [f"--metrics-export-port={metrics}", f"--ray-client-server-port={clients}"]
    patience = {"RAY_health_check_failure_threshold": "10", "RAY_health_check_timeout_ms": "60000"}  # of a busy machine
    if autoscaling is not None:
        patience = {}
        config = {**autoscaling, "provider": {**autoscaling["provider"], "gcs_address": address}}
        (Path(temp) / "autoscaling.yaml").write_text(json.dumps(config), encoding="utf-8")
        command.append(f"--autoscaling-config={temp}/autoscaling.yaml")
    said = Path(temp) / "head.log"
    with said.open("w") as sink:
        process = subprocess.Popen(
            command,
            stdout=sink,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=environment(**patience, **(variables or {})),
        )
    try:
        _await(f"http://127.0.0.1:{dashboard}/api/jobs/", process)
        yield Head(f"http://127.0.0.1:{dashboard}", address, f"http://127.0.0.1:{metrics}/metrics", process.pid)
    finally:
        ended = "" if process.poll() is None else said.read_text()[-3000:] or f"exit status {process.returncode}"
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=15)
        with suppress(ProcessLookupError):  # what did not follow the signal
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        shutil.rmtree(temp, ignore_errors=True)
        assert not ended, f"the head has ended by itself: {ended}"


def _await(url: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + READY_S
    while True:
        try:
            with urllib.request.urlopen(url, timeout=10):
                return
        except (urllib.error.URLError, OSError):
            if process.poll() is not None or time.monotonic() > deadline:
                raise
            time.sleep(0.5)
