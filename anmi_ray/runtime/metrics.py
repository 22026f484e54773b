"""Metrics of a run for Prometheus, through Ray, from its driver: progress of stages, rows, seconds, training."""

from __future__ import annotations

import time

from ray.util.metrics import Counter, Gauge

from anmi_ray.runtime.reporter import Reporter
from anmi_ray.store import Flow


class Meters(Reporter):
    """Report metrics; needs a started Ray. stage: the running stage."""

    def __init__(self, run: str, stage: str = "") -> None:
        stages = {"tag_keys": ("run", "stage")}
        units = {"tag_keys": ("run", "stage", "unit")}
        runs = {"tag_keys": ("run",)}
        self._done = Gauge("anmi_stage_done", "how much of a stage is done, in its unit", **units)
        self._size = Gauge("anmi_stage_size", "how much there is to do in a stage, in its unit", **units)
        self._seconds = Gauge("anmi_stage_seconds", "running time of a stage in seconds", **stages)
        kinds = (*units["tag_keys"], "kind")
        self._rows = Counter("anmi_rows", "rows that went into stages, came out, or were rejected", tag_keys=kinds)
        self._step = Gauge("anmi_train_step", "step after which dev was measured last", **runs)
        self._share = Gauge("anmi_train_share", "share of training's steps that are done", **runs)
        self._dev = Gauge("anmi_train_dev", "dev measure of the last dev point", **runs)
        self._run, self._stage, self._began = {"run": run}, stage, time.monotonic()
        self._counted: set[str] = set()

    def stage(self, name: str, does: str) -> None:
        """A stage starts."""
        self._stage, self._began = name, time.monotonic()

    def progress(self, done: int, total: int, unit: str = "buckets", note: str = "") -> None:
        """Update the gauges."""
        tags = {**self._run, "stage": self._stage, "unit": unit}
        self._done.set(done, tags=tags)
        self._size.set(total, tags=tags)
        self._seconds.set(time.monotonic() - self._began, tags={**self._run, "stage": self._stage})

    def measured(self, step: int, share: float, dev: float, group: str | None) -> None:
        """Update the training gauges."""
        for gauge, value in ((self._step, step), (self._share, share), (self._dev, dev)):
            gauge.set(value, tags=self._run)

    def counted(self, flows: list[Flow]) -> None:
        """Count the rows of a bucket."""
        self._counted.add(self._stage)
        for flow in flows:
            for kind, rows in (("in", flow.rows_in), ("out", flow.rows_out), ("rejected", flow.rejected)):
                if rows:
                    tags = {**self._run, "stage": self._stage, "unit": flow.unit, "kind": kind}
                    self._rows.inc(rows, tags=tags)

    def finished(self, name: str, seconds: float | None, flows: list[Flow]) -> None:
        """Count the rows of a stage without buckets."""
        if seconds is None:
            return
        self._seconds.set(seconds, tags={**self._run, "stage": name})
        if name not in self._counted:
            self.counted(flows)
