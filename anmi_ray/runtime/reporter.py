"""Progress reporters: the command line, the log, the root and Prometheus implement this interface."""

from __future__ import annotations

from anmi_ray.store import Flow


class Reporter:
    """Told what happens; the command line shows it. This one says nothing."""

    def stage(self, name: str, does: str) -> None:
        """A stage has something to do and starts."""

    def progress(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        """Report progress."""

    def notice(self, text: str) -> None:
        """Something that its user should know."""

    def measured(self, step: int, share: float, dev: float, group: str | None) -> None:
        """Training has measured dev after `step` steps, a share of all its steps.

        group: what holds its workers' resources, a placement group of Ray's, by its id in hexadecimal digits.
        """

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """A stage is complete; `seconds` is None when its artifact was there already."""

    def counted(self, flows: list[Flow]) -> None:
        """The rows of a bucket that a stage has just completed."""
