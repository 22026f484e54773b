"""Many small runs on one machine: a process per core, each pinned to its core with a Ray of its own, takes one by one.

Two trainings of one thread each finish sooner than one after the other with two threads: nothing waits for the other
core. What runs share must be complete before, or two processes would compute it at once.
"""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from typing import Any

from anmi_ray.config.experiment import Experiment
from anmi_ray.core.errors import AnmiError, StoreError
from anmi_ray.pipeline import run

_START_S, _END_S = 180.0, 30.0


@dataclass(frozen=True)
class Done:
    """A run that is complete: its record, and the seconds that it took here."""

    experiment: Experiment
    record: dict[str, Any]
    seconds: float


@dataclass
class _Worker:
    process: Any
    pipe: Connection
    under_way: Experiment | None = None


def run_all(experiments: Sequence[Experiment], last: str, workers: int) -> Iterator[Done]:
    """Run every experiment up to stage `last`, `workers` at once; yields each as it is complete, in any order.

    An experiment starts when a worker is free, in the order given. Raises the first AnmiError of any, StoreError where
    a process died; the others are ended then, as they are when the caller stops or dies. Running again resumes.
    """
    waiting, team = iter(experiments), []
    try:
        for core in _cores(min(workers, len(experiments))):
            team.append(_start(core))
            _hand(team[-1], waiting, last)
        while busy := [worker for worker in team if worker.under_way is not None]:
            ready = wait([worker.pipe for worker in busy])
            for worker in busy:
                if worker.pipe in ready:
                    done = _answer(worker)
                    _hand(worker, waiting, last)
                    yield done
    finally:
        _end(team)


def _cores(count: int) -> list[int | None]:
    """A core for each of `count` processes; None where this system pins none."""
    if not hasattr(os, "sched_getaffinity"):
        return [None] * count
    return list(itertools.islice(itertools.cycle(sorted(os.sched_getaffinity(0))), count))


def _start(core: int | None) -> _Worker:
    spawn = multiprocessing.get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=_work, args=(theirs, core), name=f"core-{core}")
    process.start()
    theirs.close()
    return _Worker(process, ours)


def _hand(worker: _Worker, waiting: Iterator[Experiment], last: str) -> None:
    """Give a worker the next experiment, if there is one, and wait until it starts.

    A new worker's Ray starts with its first: one after another, for two at once may take the same ports.
    """
    worker.under_way = next(waiting, None)
    if worker.under_way is None:
        return
    worker.pipe.send((worker.under_way, last))
    if not worker.pipe.poll(_START_S):
        raise StoreError(f"no Ray started within {_START_S:.0f} s", worker.process.name, "run the same command again")
    _receive(worker)


def _answer(worker: _Worker) -> Done:
    record, seconds = _receive(worker)
    assert worker.under_way is not None
    return Done(worker.under_way, record, seconds)


def _receive(worker: _Worker) -> Any:
    try:
        said = worker.pipe.recv()
    except EOFError:
        name = worker.under_way.name if worker.under_way is not None else worker.process.name
        raise StoreError(
            "its process died", f"run {name}", "run the same command again; it may have been short of memory"
        ) from None
    if isinstance(said, AnmiError):
        raise said
    return said


def _end(team: Sequence[_Worker]) -> None:
    """Close the pipes, which ends who waits; end who works by a signal, then by force."""
    for worker in team:
        worker.pipe.close()
        if worker.under_way is not None and worker.process.is_alive():
            with suppress(ProcessLookupError):
                os.kill(worker.process.pid, signal.SIGINT)
    until = time.monotonic() + _END_S
    for worker in team:
        worker.process.join(max(until - time.monotonic(), 0.1))
        worker.process.kill()
        with suppress(ProcessLookupError):  # whoever of its Ray is left: agents may be a minute in noticing
            os.killpg(worker.process.pid, signal.SIGKILL)
        worker.process.join()


def _work(pipe: Connection, core: int | None) -> None:
    """A worker: says that its Ray is up, runs, answers with the record; ends with the pipe or with its parent."""
    os.setsid()  # Ctrl-C reaches the parent alone, which then ends us once
    if core is not None:
        os.sched_setaffinity(0, {core})  # before Ray starts: its processes inherit it
    threading.Thread(target=_end_with_parent, daemon=True).start()
    from anmi_ray.runtime.tasks import ray_session

    with suppress(EOFError, BrokenPipeError, KeyboardInterrupt):
        first, last = pipe.recv()
        try:
            with ray_session(first.execution):
                for given in itertools.chain([(first, last)], _received(pipe)):
                    pipe.send("ready")
                    start = time.monotonic()
                    record = run.run(given[0], last=given[1])
                    pipe.send((record, time.monotonic() - start))
        except AnmiError as error:
            pipe.send(error)


def _received(pipe: Connection) -> Iterator[tuple[Experiment, str]]:
    while True:
        yield pipe.recv()


def _end_with_parent() -> None:
    """kill -9 of the parent: whoever starts the command again must not find this at work on the same run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os.killpg(0, signal.SIGKILL)  # Ray's own processes too: its agents would be a minute in noticing
