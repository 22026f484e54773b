"""Heads of Ray with a job server, for tests: each lives in a process group of its own and goes with it."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
READY_S = 240


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def environment(**more: str) -> dict[str, str]:
    """What processes of a test's cluster, and commands about it, are started with: this checkout's code, no password.

    The nodes' image is this environment: its Python comes first, and the package is this checkout's.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    path = f"{Path(sys.executable).parent}:{kept['PATH']}"
    # a head for one test, on the loopback interface
    return {**kept, "PATH": path, "PYTHONPATH": str(REPOSITORY), "RAY_AUTH_MODE": "disabled", **more}


@contextmanager
def head(cpus: int = 4) -> Iterator[str]:
    """The address of a head's job server, which takes jobs when this is entered."""
    temp = tempfile.mkdtemp(prefix="anmi-", dir="/tmp")
    port, dashboard, agent = free_port(), free_port(), free_port()
    command = [str(Path(sys.executable).parent / "ray"), "start", "--head", "--block", f"--num-cpus={cpus}"]
    command += [f"--port={port}", "--dashboard-host=127.0.0.1", f"--dashboard-port={dashboard}", f"--temp-dir={temp}"]
    # another Ray on this machine may hold the port that a node's agent listens on unless told otherwise
    command += [f"--dashboard-agent-listen-port={agent}", "--object-store-memory=300000000", "--disable-usage-stats"]
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True, env=environment()
    )
    try:
        _await(f"http://127.0.0.1:{dashboard}/api/jobs/", process)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        shutil.rmtree(temp, ignore_errors=True)


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
