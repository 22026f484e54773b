"""Progress reporters: the command line, the log, the root and Prometheus implement this interface."""

from __future__ import annotations

from anmi_ray.store import Flow


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
