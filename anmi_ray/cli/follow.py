"""`anmi show RUN --follow`: how far a run is, from the snapshots under its root alone, until it ends.

On a terminal the picture is drawn anew; elsewhere each change is a line. How long ago the driver was heard is counted
on this machine's clock from when a snapshot was first seen, since the driver's may go otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
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
    if out.is_terminal:
        with Live(console=out, auto_refresh=False) as live:
            while True:
                live.update(drawn(heard.said, heard.ago), refresh=True)
                if heard.said["state"] != RUNNING:
                    return _finished(heard.said)
                time.sleep(poll)
                heard.hear(store.read_json(place(run)))
    lines = Lines()
    while True:
        for line in lines.fresh(heard.said, heard.ago):
            out.print(line, highlight=False, markup=False)
        if heard.said["state"] != RUNNING:
            return _finished(heard.said)
        time.sleep(poll)
        heard.hear(store.read_json(place(run)))


def _known(store: Store, run: str, root: str) -> Snapshot:
    found = store.read_json(place(run))
    if found is None:
        runs.find_run(run, root)  # raises where there is no such run
        raise ConfigError(
            "nothing says how far this run is: it was carried out by a version that did not",
            store.where(place(run)),
            f"anmi show {run} tells what it is made of",
        )
    return found


def _finished(said: Snapshot) -> bool:
    return said["state"] == FINISHED


class _Heard:
    """The newest snapshot, and the seconds since its driver was heard."""

    def __init__(self, said: Snapshot) -> None:
        self.said = said
        self._since = time.monotonic() - max(0.0, time.time() - said["heard"])

    @property
    def ago(self) -> float:
        return time.monotonic() - self._since

    def hear(self, said: Snapshot | None) -> None:
        """What the root says now."""
        if said is not None and said["heard"] != self.said["heard"]:
            self.said, self._since = said, time.monotonic()


class Lines:
    """What of a snapshot was not said before, a line each."""

    def __init__(self) -> None:
        self._said: dict[str, Any] = {}
        self._driver: Any = None
        self._noticed, self._silent = 0.0, False

    def fresh(self, said: Snapshot, ago: float) -> Iterator[str]:
        """The lines that are new with this snapshot, heard `ago` seconds before."""
        if (driver := (said["driver"], said["began"])) != self._driver:
            self.__init__()
            self._driver = driver
            yield f"run {said['run']}, by process {said['driver']['process']} on {said['driver']['host']}"
        for stage in said["stages"]:
            line = stage_line(stage, said)
            if stage["state"] != NOT_YET and self._said.get(stage["name"]) != line:
                self._said[stage["name"]] = line
                yield line
        for notice in said["notices"]:
            if notice["time"] > self._noticed:
                self._noticed = notice["time"]
                yield f"  {notice['stage']}: {notice['text']}"
        if said["state"] != RUNNING:
            yield ended(said)
        elif (ago >= SILENT_S) != self._silent:
            self._silent = not self._silent
            yield silence(ago) if self._silent else "heard again"


def stage_line(stage: Mapping[str, Any], said: Snapshot) -> str:
    """A stage in a line: its state, and how far it is or what came out."""
    parts = [f"{_MARKS.get(stage['state'], '✓')} {stage['name']:10} {stage['state']:8}"]
    if stage["state"] == AT_WORK:
        parts += work(stage, said)
    else:
        parts.append(f"{stage['seconds']:.1f} s" if "seconds" in stage else "")
        parts.append(rows(Flow(**flow) for flow in stage.get("flows", ())))
        parts.append(_progress(stage["asked"]) if "asked" in stage else "")
    return "   ".join(part for part in parts if part).rstrip()


def work(stage: Mapping[str, Any], said: Snapshot) -> Iterator[str]:
    """How far a stage at work is."""
    progress, asked = stage.get("progress"), stage.get("asked")
    if progress:
        yield _progress(progress)
    if asked and asked != progress:
        yield _progress(asked)
    if stage["name"] == "train" and (training := said["training"]):
        yield f"dev {training['dev']:.4f} after step {training['step']:,} ({training['share']:.0%})"


def _progress(known: Mapping[str, Any]) -> str:
    note = f", {known['note']}" if known["note"] else ""
    return f"{known['done']:,} of {known['total']:,} {known['unit']}{note}"


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


def ended(said: Snapshot) -> str:
    """How a run ended."""
    message = f": {said['message']}" if said["message"] else ""
    return f"run {said['run']} {said['state']} after {span(said['heard'] - said['began'])}{message}"


def drawn(said: Snapshot, ago: float) -> Group:
    """The whole picture: stages, newest notices, when the driver was heard."""
    table = Table(box=None, pad_edge=False, show_header=False)
    for column in ("", "stage", "state", "seconds", "what"):
        table.add_column(column, justify="right" if column == "seconds" else "left", overflow="fold")
    for stage in said["stages"]:
        at_work = stage["state"] == AT_WORK
        seconds = said["heard"] - stage["began"] + ago * (said["state"] == RUNNING) if at_work else stage.get("seconds")
        what = "   ".join(work(stage, said)) if at_work else rows(Flow(**flow) for flow in stage.get("flows", ()))
        took = "" if seconds is None else span(max(0.0, seconds))
        style = "bold" if at_work else "green" if stage["state"] == DONE else ""
        mark = _MARKS.get(stage["state"], "✓")
        table.add_row(Text(mark), Text(stage["name"], style), Text(stage["state"]), Text(took), Text(what))
    notices = [Text(f"  {one['stage']}: {one['text']}") for one in said["notices"][-_NOTICES:]]
    if said["state"] != RUNNING:
        last = ended(said)
    else:
        last = silence(ago) if ago >= SILENT_S else f"heard {span(ago)} ago from {said['driver']['host']}"
    return Group(Text(f"run {said['run']}", "bold"), table, *notices, Text(last))
