"""`anmi jobs`: what was submitted to a cluster."""

from __future__ import annotations

import time
from typing import Any

from anmi_ray.cli.flags import AddressOption


def jobs(address: AddressOption = "") -> None:
    """List the jobs that were submitted to a cluster, the newest last."""
    from anmi_ray.cli import console
    from anmi_ray.pipeline.jobs import Jobs

    table = console.table("id", "status", "job", "run", "attempt", "started", "took", right=("attempt", "took"))
    for job in Jobs(address).ours():
        table.add_row(*_cells(job))
    console.stdout().print(table)


def _cells(job: Any) -> list[str]:
    """A row of the table, of Ray's JobDetails."""
    from anmi_ray.pipeline.submission import OURS

    metadata = job.metadata
    begun = (job.start_time or 0) / 1000
    ended = job.end_time / 1000 if job.end_time else time.time()
    return [
        job.submission_id,
        job.status.lower(),
        metadata[OURS],
        metadata["run"],
        metadata["attempt"],
        time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun)),
        f"{max(ended - begun, 0.0):,.0f} s",
    ]
