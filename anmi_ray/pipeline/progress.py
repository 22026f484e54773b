"""Progress of a run, reported to several receivers: its reporter, the log, the root, Prometheus.

A snapshot is published every few seconds at `progress/<run>.json` of the root, so that others can follow the run
(`anmi show RUN --follow`). A killed driver leaves its last one; its `heard` grows old.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from types import TracebackType
from typing import Any

from anmi_ray.core.errors import StoreError
from anmi_ray.core.logs import Span
from anmi_ray.core.redaction import scrub
from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Flow, Store, add_flows

VERSION = 1
BEAT_S = 10.0  # longest time between two snapshots
_SILENT_S = 60.0  # age of the last snapshot of a dead driver, by clocks that may differ
# A change of stage is published after the former, all else after the latter, so many reused stages are one snapshot.
_STAGE_S, _PROGRESS_S = 1.0, 5.0
_WAIT_S = 2.0  # between two checks for other runs
_NOTICES = 20  # newest notices in a snapshot
_END_S = 30.0  # timeout of a pending snapshot when the run ends
NOT_YET, AT_WORK, DONE, REUSED = "not yet", "at work", "done", "reused"  # a stage
RUNNING, FINISHED, FAILED, INTERRUPTED = "running", "finished", "failed", "interrupted"  # a run
_LOG = logging.getLogger(__name__)


def place(run: str) -> str:
    """Return the path of a run's snapshot under the root."""
    return f"progress/{run}.json"


def at_work(store: Store) -> Iterator[str]:
    """Return a message for each run that another process is running under the root."""
    for known in _others(store):
        yield (
            f"{_named(known)} is running under the same root: what both ask in the same seconds is bought twice, and a "
            "budget may be overrun by that; --wait starts after it"
        )


def wait(store: Store, notice: Callable[[str], None]) -> None:
    """Wait until no other process is running a run under the root; report each one once."""
    said: set[str] = set()
    while others := [_named(known) for known in _others(store)]:
        for name in sorted(set(others) - said):
            notice(f"waits for {name}")
        said.update(others)
        time.sleep(_WAIT_S)


def _others(store: Store) -> Iterator[dict[str, Any]]:
    """Return the snapshots of runs active in other processes under the root, judged by recent heartbeats."""
    for name in store.names("progress"):
        known = store.read_json(f"progress/{name}")
        if not isinstance(known, dict) or known.get("state") != RUNNING or time.time() - known["heard"] > _SILENT_S:
            continue
        host, process = known["driver"]["host"], known["driver"]["process"]
        if host != socket.gethostname() or (process != os.getpid() and _lives(process)):
            yield known


def _named(known: Mapping[str, Any]) -> str:
    return f"run {known['run']} (host {known['driver']['host']}, process {known['driver']['process']})"


def _lives(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def _to_all(event: str) -> Any:
    """Return a method that forwards an event to several reporters."""

    def forward(self: Reporters, *args: Any, **options: Any) -> None:
        for one in self.all:
            getattr(one, event)(*args, **options)

    return forward


class Reporters(Reporter):
    """Forward each event to several reporters.

    second: tells whether another active run under the root started earlier.
    current: the running stage.
    """

    def __init__(self, *reporters: Reporter, second: Callable[[], bool] = lambda: False) -> None:
        self.all = list(reporters)
        self.second = second
        self.current = ""

    def stage(self, name: str, does: str) -> None:
        """A stage starts."""
        self.current = name
        for one in self.all:
            one.stage(name, does)

    progress = _to_all("progress")
    notice = _to_all("notice")
    measured = _to_all("measured")
    counted = _to_all("counted")
    finished = _to_all("finished")


class Snapshots(Reporter):
    """Log a run's events, and publish its snapshots from a separate thread.

    A snapshot that cannot be published is skipped: the run's own writes report problems of the storage.
    """

    def __init__(self, store: Store, run: str, stages: Sequence[str]) -> None:
        now = time.time()
        self._store, self._path = store, place(run)
        self._stages: dict[str, dict[str, Any]] = {name: {"name": name, "state": NOT_YET} for name in stages}
        self._said: dict[str, Any] = {
            "version": VERSION,
            "run": run,
            "state": RUNNING,
            "message": None,
            "began": now,
            "driver": {"host": socket.gethostname(), "process": os.getpid()},
            "training": None,
        }
        self._notices: list[dict[str, Any]] = []
        self._stage = ""
        self._changed = threading.Condition()
        self._due, self._over = 0.0, False  # when the next one is due, on the monotonic clock
        self._last = float("-inf")
        self._thread = threading.Thread(target=self._publish_all, name="snapshots", daemon=True)

    def stage(self, name: str, does: str) -> None:
        """A stage starts."""
        with self._changed:
            self._stage = name
            self._stages[name] = {"name": name, "state": AT_WORK, "began": time.time()}
            self._wanted(_STAGE_S)

    def progress(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        """Report progress."""
        with self._changed:
            if (known := self._stages.get(self._stage)) is not None:
                known["progress"] = {"done": done, "total": total, "unit": unit, "note": note}
                if unit == "questions":  # still shown while answers become judgments
                    known["asked"] = known["progress"]
            self._wanted(_PROGRESS_S)

    def notice(self, text: str) -> None:
        """Give the user a notice."""
        _LOG.info("notice", extra={"text": text})
        with self._changed:
            self._notices = [*self._notices, {"time": time.time(), "stage": self._stage, "text": scrub(text)}]
            self._notices = self._notices[-_NOTICES:]
            self._wanted(_PROGRESS_S)

    def measured(self, step: int, share: float, dev: float, group: str | None) -> None:
        """Report a dev measure of training."""
        _LOG.info("dev measured", extra={"step": step, "share": round(share, 4), "dev": dev})
        with self._changed:
            self._said["training"] = {"step": step, "share": share, "dev": dev}
            self._wanted(_PROGRESS_S)

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """A stage is complete."""
        rows = [asdict(flow) for flow in add_flows(flows)]
        if seconds is None:
            _LOG.info("stage is reused", extra={"stage": name, "rows": rows})
        with self._changed:
            known = self._stages.setdefault(name, {"name": name})
            known |= {"state": REUSED if seconds is None else DONE, "flows": rows}
            known |= {} if seconds is None else {"seconds": round(seconds, 3)}
            self._wanted(_STAGE_S)

    def second(self) -> bool:
        """Return whether another active run under the root started before this one."""
        return any(known["began"] < self._said["began"] for known in _others(self._store))

    def __enter__(self) -> Snapshots:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Publish that the run is finished, failed or interrupted (Ctrl-C, an exit)."""
        failed = isinstance(error, Exception)
        with self._changed:
            self._said["state"] = FAILED if failed else FINISHED if error is None else INTERRUPTED
            self._said["message"] = scrub(str(error) or type(error).__name__) if failed else None
            self._over = True
            self._changed.notify()
        self._thread.join(_END_S)
        self._publish()

    def _wanted(self, within: float) -> None:
        """Publish a snapshot within these seconds after the last one."""
        if self._last + within < self._due:
            self._due = self._last + within
            self._changed.notify()

    def _publish_all(self) -> None:
        while True:
            with self._changed:
                while not self._over and (left := self._due - time.monotonic()) > 0:
                    self._changed.wait(left)
                if self._over:
                    return
                self._last = time.monotonic()
                self._due = self._last + BEAT_S
            self._publish()

    def _publish(self) -> None:
        with self._changed:
            content = {**self._said, "heard": time.time(), "stages": [dict(one) for one in self._stages.values()]}
            content["notices"] = list(self._notices)
        with suppress(StoreError):
            self._store.publish_json(self._path, content)


@contextmanager
def told(store: Store, run: str, stages: Sequence[str], reporter: Reporter) -> Iterator[Reporters]:
    """Report a run's progress inside the context, and its outcome at the end."""
    with Span(_LOG, "run", run=run), Snapshots(store, run, stages) as snapshots:
        yield Reporters(reporter, snapshots, second=snapshots.second)
