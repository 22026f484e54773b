"""A run that starts names other runs under its root that are running, and none that are finished or dead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from anmi_ray.pipeline import progress
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Store

_AT_WORK = """
import sys, time
from anmi_ray.pipeline import progress
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Store
with progress.told(Store(sys.argv[1]), "first", ["judge"], Reporter()):
    print("at work", flush=True)
    time.sleep(600)
"""


def test_another_running_process_is_named_and_waited_for(tmp_path: Path) -> None:
    store, said = Store(str(tmp_path)), list[str]()
    with subprocess.Popen([sys.executable, "-c", _AT_WORK, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
        try:
            named = f"run first (host {socket.gethostname()}, process {first.pid})"
            while not (running := list(progress.at_work(store))):  # its snapshots are published by a thread
                assert first.poll() is None
                time.sleep(0.05)
            with ThreadPoolExecutor(1) as pool:
                waiting = pool.submit(progress.wait, store, said.append)
                while not said:
                    time.sleep(0.05)
                assert not waiting.done()
                first.kill()
                first.wait()
                waiting.result(timeout=60)
        finally:
            first.kill()
    assert [text.startswith(f"{named} is running under the same root") for text in running] == [True]
    assert said == [f"waits for {named}"]
    assert list(progress.at_work(store)) == []


def test_runs_elsewhere_are_named_while_they_are_heard_of_and_the_later_is_the_second(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    elsewhere = {"run": "far", "state": progress.RUNNING, "driver": {"host": "elsewhere", "process": os.getpid()}}
    with progress.told(store, "own", ["judge"], Reporter()) as told:
        assert list(progress.at_work(store)) == []  # not itself
        assert not told.second()
        for began, second in ((time.time() - 5, True), (time.time() + 5, False)):
            store.publish_json("progress/far.json", elsewhere | {"heard": time.time() - 30, "began": began})
            assert "host elsewhere" in " ".join(progress.at_work(store))
            assert told.second() is second
        store.publish_json("progress/far.json", elsewhere | {"heard": time.time() - 600})
        assert list(progress.at_work(store)) == []
