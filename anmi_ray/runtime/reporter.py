"""Progress reporters: the command line, the log, the root and Prometheus implement this interface."""

from __future__ import annotations

import time
from collections.abc import Iterable

from anmi_ray.core.errors import visible
from anmi_ray.core.redaction import shown
from anmi_ray.store import Flow

_QUIET_S = 15.0  # minimum time between two lines about the progress of a stage


class Reporter:
    """Receives the events of a run; this one ignores them."""

    def stage(self, name: str, does: str) -> None:
        """A stage starts, since it is not complete."""

    def progress(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        """Report progress."""

    def notice(self, text: str) -> None:
        """Give the user a notice."""

    def measured(self, step: int, share: float, dev: float, group: str | None) -> None:
        """Training has measured dev; group: id of the workers' placement group, in hexadecimal digits."""

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """A stage is complete; `seconds` is None when its artifact existed already."""

    def counted(self, flows: list[Flow]) -> None:
        """The rows of a bucket that a stage has just completed."""


class LineReporter(Reporter):
    """Prints a line when a stage starts, ends, or has run for a while: for notebooks and files."""

    def __init__(self) -> None:
        self._name = ""
        self._printed_s = 0.0

    def say(self, text: str, lead: int = 0) -> None:
        """Print a line, of which a console emphasizes the first `lead` characters."""
        print(visible(text), flush=True)

    def stage(self, name: str, does: str) -> None:
        self._name = name
        self.say(f"{name}  {does}", len(name))

    def progress(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        if time.monotonic() - self._printed_s > _QUIET_S:
            self._printed_s = time.monotonic()
            self.say(f"  {self._name}: {done:,} of {total:,} {unit}" + (f", {note}" if note else ""))

    def notice(self, text: str) -> None:
        place = f"{self._name}: " if self._name else ""
        self.say(f"  {place}{shown(text)}")

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        took = "reused" if seconds is None else f"{seconds:.1f} s"
        self.say(f"✓ {name:10} {took:>8}   {rows(flows)}", 1)
        self._name = ""  # notices before the next stage belong to none


def rows(flows: Iterable[Flow]) -> str:
    """Return the rows that came in, went out, and were rejected, in words."""
    counts: list[str] = []
    for flow in flows:
        rejected = f" = {flow.rows_out:,} + {flow.rejected:,} rejected" if flow.rejected else ""
        counts.append(f"{flow.unit} {flow.rows_in:,}{rejected}")
    return ", ".join(counts)
