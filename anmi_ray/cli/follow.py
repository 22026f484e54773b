"""`anmi show RUN --follow`: print a run's progress from the snapshots under its root until it ends.

Silence of the driver is measured on this machine's clock, from when a snapshot was first seen: clocks can differ.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping
from contextlib import closing
from typing import Any

from rich.console import Console

from anmi_ray.cli.console import ConsoleReporter
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline.progress import AT_WORK, BEAT_S, FINISHED, NOT_YET, RUNNING, place
from anmi_ray.store import Flow, Store, runs

SILENT_S = 3 * BEAT_S  # then the driver may be dead
_POLL_S = 2.0

Snapshot = Mapping[str, Any]


def follow(run: str, root: str, out: Console) -> bool:
    """Print the progress of a run until it ends; return True if it finished. Raise ConfigError if it does not exist."""
    store = Store(root)
    snapshot = store.read_json(place(run))
    if snapshot is None:
        runs.find_run(run, root)
        remedy = f"anmi show {run} --root {shlex.quote(root)}"
        raise ConfigError("no progress was recorded for this run", store.where(place(run)), remedy)
    seen = time.monotonic() - max(0.0, time.time() - snapshot["heard"])
    with closing(Followed(out)) as followed:
        while True:
            followed.update(snapshot, time.monotonic() - seen)
            if snapshot["state"] != RUNNING:
                return snapshot["state"] == FINISHED
            time.sleep(_POLL_S)
            newer = store.read_json(place(run))
            if newer is not None and newer["heard"] != snapshot["heard"]:
                snapshot, seen = newer, time.monotonic()


class Followed(ConsoleReporter):
    """Report what is new in each snapshot, as the run itself prints it."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._driver: object = None
        self._begin()

    def _begin(self) -> None:
        """Forget what was reported: another driver starts or resumes the run."""
        self._name, self._printed_s = "", 0.0
        self._states: dict[str, str] = {}
        self._training: object = None
        self._noticed = 0.0
        self._silent = False

    def update(self, snapshot: Snapshot, silence: float) -> None:
        """Report a snapshot that is `silence` seconds old."""
        driver = snapshot["driver"]
        if (driver, snapshot["began"]) != self._driver:
            self.close()
            self._begin()
            self._driver = (driver, snapshot["began"])
            self._line(f"run {snapshot['run']}, by process {driver['process']} on {driver['host']}")
        for stage in snapshot["stages"]:
            self._stage(stage, snapshot["training"])
        for notice in snapshot["notices"]:
            if notice["time"] > self._noticed:
                self._noticed = notice["time"]
                self._line(f"  {notice['stage']}: {notice['text']}")
        if snapshot["state"] != RUNNING:
            self.close()
            message = f": {snapshot['message']}" if snapshot["message"] else ""
            took = span(snapshot["heard"] - snapshot["began"])
            self._line(f"run {snapshot['run']} {snapshot['state']} after {took}{message}")
        elif (silence >= SILENT_S) != self._silent:
            self._silent = not self._silent
            silent = f"no progress for {span(silence)}: the driver was killed, or cannot reach the root"
            self._line(silent if self._silent else "progress again")

    def _stage(self, stage: Mapping[str, Any], training: Mapping[str, Any] | None) -> None:
        name, state = stage["name"], stage["state"]
        changed = self._states.get(name, NOT_YET) != state
        self._states[name] = state
        if state == AT_WORK:
            if changed:
                self.stage(name, "")
            if "progress" in stage:
                self.progress(**stage["progress"])
            if name == "train" and training and training != self._training:
                self._training = training
                step, part = training["step"], training["share"]
                self.notice(f"dev {training['dev']:.4f} after step {step:,} ({part:.0%})")
        elif changed:
            self.finished(name, stage.get("seconds"), [Flow(**flow) for flow in stage.get("flows", ())])

    def _line(self, text: str) -> None:
        self._console.print(text, highlight=False, markup=False)


def span(seconds: float) -> str:
    """Return a duration in words.

    >>> span(42.3), span(200), span(7300)
    ('42 s', '3 min', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"
