"""A run that starts names other runs under its root that are running, and none that are finished or dead."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

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


def test_another_process_at_work_is_named_until_it_is_gone(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with subprocess.Popen([sys.executable, "-c", _AT_WORK, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
        try:
            assert first.stdout is not None
            first.stdout.readline()
            ends = time.monotonic() + 60
            while not (said := list(progress.at_work(store))) and time.monotonic() < ends:
                time.sleep(0.05)  # its snapshots are published by a thread
        finally:
            first.kill()
    assert len(said) == 1
    assert f"run first (host {socket.gethostname()}, process {first.pid}) is running under the same root" in said[0]
    assert list(progress.at_work(store)) == []


@pytest.mark.slow
def test_waiting_ends_with_the_others_and_names_each_once(tmp_path: Path) -> None:
    store, said = Store(str(tmp_path)), list[str]()
    with subprocess.Popen([sys.executable, "-c", _AT_WORK, str(tmp_path)], stdout=subprocess.PIPE, text=True) as first:
        try:
            while not list(progress.at_work(store)):
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
    assert said == [f"waits for run first (host {socket.gethostname()}, process {first.pid})"]


def test_the_later_of_two_is_the_second(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    elsewhere = {"run": "far", "state": progress.RUNNING, "driver": {"host": "elsewhere", "process": os.getpid()}}
    with progress.told(store, "own", ["judge"], Reporter()) as told:
        assert not told.second()
        for began, second in ((time.time() - 5, True), (time.time() + 5, False)):
            store.publish_json("progress/far.json", elsewhere | {"heard": time.time(), "began": began})
            assert told.second() is second


def test_its_own_and_those_not_heard_for_long_are_not_named(tmp_path: Path) -> None:
    store = Store(str(tmp_path))
    with progress.told(store, "own", ["judge"], Reporter()):
        assert list(progress.at_work(store)) == []
    elsewhere = {"run": "far", "state": progress.RUNNING, "driver": {"host": "elsewhere", "process": os.getpid()}}
    store.publish_json("progress/far.json", elsewhere | {"heard": time.time() - 30})
    assert "host elsewhere" in " ".join(progress.at_work(store))
    store.publish_json("progress/far.json", elsewhere | {"heard": time.time() - 600})
    assert list(progress.at_work(store)) == []
