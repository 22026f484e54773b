"""`anmi show RUN --follow`: how far a run is, from the snapshots under its root alone, until it ends.

On a terminal the picture is drawn anew; elsewhere each change is a line. How long ago the driver was heard is counted
on this machine's clock from when a snapshot was first seen, since the driver's may go otherwise.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator, Mapping
from contextlib import nullcontext
from typing import Any

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from anmi_ray.cli.console import rows
from anmi_ray.core.errors import ConfigError
from anmi_ray.pipeline.progress import AT_WORK, BEAT_S, DONE, FINISHED, NOT_YET, RUNNING, place
from anmi_ray.store import Flow, Store, runs

_POLL_S = 2.0  # of the storage: a GET or two
SILENT_S = 3 * BEAT_S  # after which a driver may be gone
_NOTICES = 3  # that are shown at once
_MARKS = {NOT_YET: " ", AT_WORK: "→"}

Snapshot = Mapping[str, Any]


def follow(run: str, root: str, out: Console, poll: float = _POLL_S) -> bool:
    """Show a run until it has ended; whether it finished. Raises ConfigError where the root knows no such run."""
    store = Store(root)
    heard = _Heard(_known(store, run, root))
    lines = Lines()
    with Live(console=out, auto_refresh=False) if out.is_terminal else nullcontext() as live:
        while True:
            if live is not None:
                live.update(drawn(heard.snapshot, heard.ago), refresh=True)
            else:
                for line in lines.fresh(heard.snapshot, heard.ago):
                    out.print(line, highlight=False, markup=False)
            if heard.snapshot["state"] != RUNNING:
                return heard.snapshot["state"] == FINISHED
            time.sleep(poll)
            heard.hear(store.read_json(place(run)))


def _known(store: Store, run: str, root: str) -> Snapshot:
    snapshot = store.read_json(place(run))
    if snapshot is None:
        runs.find_run(run, root)  # raises where there is no such run
        raise ConfigError(
            "nothing says how far this run is: it was carried out by a version that did not",
            store.where(place(run)),
            f"see what it is made of: anmi show {run} --root {shlex.quote(root)}",
        )
    return snapshot


class _Heard:
    """The newest snapshot, and the seconds since its driver was heard."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self._since = time.monotonic() - max(0.0, time.time() - snapshot["heard"])

    @property
    def ago(self) -> float:
        return time.monotonic() - self._since

    def hear(self, snapshot: Snapshot | None) -> None:
        """What the root says now."""
        if snapshot is not None and snapshot["heard"] != self.snapshot["heard"]:
            self.snapshot = snapshot
            self._since = time.monotonic()


class Lines:
    """What of a snapshot was not said before, a line each."""

    def __init__(self) -> None:
        self._printed: dict[str, Any] = {}
        self._driver: Any = None
        self._noticed = 0.0
        self._silent = False

    def fresh(self, snapshot: Snapshot, ago: float) -> Iterator[str]:
        """The lines that are new with this snapshot, heard `ago` seconds before."""
        if (driver := (snapshot["driver"], snapshot["began"])) != self._driver:
            self.__init__()
            self._driver = driver
            yield f"run {snapshot['run']}, by process {snapshot['driver']['process']} on {snapshot['driver']['host']}"
        for stage in snapshot["stages"]:
            line = stage_line(stage, snapshot)
            if stage["state"] != NOT_YET and self._printed.get(stage["name"]) != line:
                self._printed[stage["name"]] = line
                yield line
        for notice in snapshot["notices"]:
            if notice["time"] > self._noticed:
                self._noticed = notice["time"]
                yield f"  {notice['stage']}: {notice['text']}"
        if snapshot["state"] != RUNNING:
            yield ended(snapshot)
        elif (ago >= SILENT_S) != self._silent:
            self._silent = not self._silent
            yield silence(ago) if self._silent else "heard again"


def stage_line(stage: Mapping[str, Any], snapshot: Snapshot) -> str:
    """A stage in a line: its state, and how far it is or what came out."""
    parts = [f"{_MARKS.get(stage['state'], '✓')} {stage['name']:10} {stage['state']:8}"]
    if stage["state"] == AT_WORK:
        parts += work(stage, snapshot)
    else:
        parts.append(f"{stage['seconds']:.1f} s" if "seconds" in stage else "")
        parts.append(rows(Flow(**flow) for flow in stage.get("flows", ())))
        parts.append(_progress(stage["asked"]) if "asked" in stage else "")
    return "   ".join(part for part in parts if part).rstrip()


def work(stage: Mapping[str, Any], snapshot: Snapshot) -> Iterator[str]:
    """How far a stage at work is."""
    progress, asked = stage.get("progress"), stage.get("asked")
    if progress:
        yield _progress(progress)
    if asked and asked != progress:
        yield _progress(asked)
    if stage["name"] == "train" and (training := snapshot["training"]):
        yield f"dev {training['dev']:.4f} after step {training['step']:,} ({training['share']:.0%})"


def _progress(progress: Mapping[str, Any]) -> str:
    note = f", {progress['note']}" if progress["note"] else ""
    return f"{progress['done']:,} of {progress['total']:,} {progress['unit']}{note}"


def silence(ago: float) -> str:
    """What is said of a driver that is not heard."""
    return f"nothing heard for {span(ago)}: its driver was killed, or does not reach the root"


def span(seconds: float) -> str:
    """Seconds in words.

    >>> span(42.3), span(200), span(7300)
    ('42 s', '3 min', '2.0 h')
    """
    if seconds < 120:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def ended(snapshot: Snapshot) -> str:
    """How a run ended."""
    message = f": {snapshot['message']}" if snapshot["message"] else ""
    return f"run {snapshot['run']} {snapshot['state']} after {span(snapshot['heard'] - snapshot['began'])}{message}"


def drawn(snapshot: Snapshot, ago: float) -> Group:
    """The whole picture: stages, newest notices, when the driver was heard."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("", "stage", "state", "seconds", "what"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for stage in snapshot["stages"]:
        at_work = stage["state"] == AT_WORK
        seconds = (
            snapshot["heard"] - stage["began"] + ago * (snapshot["state"] == RUNNING)
            if at_work
            else stage.get("seconds")
        )
        what = "   ".join(work(stage, snapshot)) if at_work else rows(Flow(**flow) for flow in stage.get("flows", ()))
        took = "" if seconds is None else span(max(0.0, seconds))
        style = "bold" if at_work else "green" if stage["state"] == DONE else ""
        mark = _MARKS.get(stage["state"], "✓")
        table.add_row(Text(mark), Text(stage["name"], style), Text(stage["state"]), Text(took), Text(what))
    notices = [Text(f"  {notice['stage']}: {notice['text']}") for notice in snapshot["notices"][-_NOTICES:]]
    if snapshot["state"] != RUNNING:
        last = ended(snapshot)
    else:
        last = silence(ago) if ago >= SILENT_S else f"heard {span(ago)} ago from {snapshot['driver']['host']}"
    return Group(Text(f"run {snapshot['run']}", "bold"), table, *notices, Text(last))
