"""Which figures on held-out queries a page shows, those of labels or else of judges; and the queries that differ."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from anmi_ray.evaluation.significance import by_system
from anmi_ray.reports.data import ReportData


def judges_alone(data: ReportData) -> bool:
    """Whether judges measured and no label did."""
    return not data.metrics.num_rows and data.judged is not None and bool(data.judged.comparisons)


def shown(data: ReportData) -> ReportData:
    """The data as a page shows them: with what judges measured in the place of labels where there are none."""
    if data.judged is None or data.judged_metrics is None or not judges_alone(data):
        return data
    found = data.judged
    return replace(data, metrics=data.judged_metrics, comparisons=found.comparisons, measure=found.measure)


def extremes(
    metrics: pa.Table, measure: str, system: str, baseline: str, each: int = 3
) -> tuple[list[bytes], list[bytes]]:
    """Query ids with the largest gains and with the largest losses of `system`, at most `each`, ties by id."""
    values = by_system(metrics, measure)
    ids, after = values[system]
    difference = after - values[baseline][1]
    order = sorted(range(len(ids)), key=lambda i: (-difference[i], ids[i]))
    gains = [ids[i] for i in order if difference[i] > 0][:each]
    losses = [ids[i] for i in reversed(order) if difference[i] < 0][:each]
    return gains, losses
