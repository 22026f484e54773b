"""`anmi cancel`: a job's end."""

from __future__ import annotations

from typing import Annotated

import typer

from anmi_ray.cli.flags import AddressOption


def cancel(
    name: Annotated[str, typer.Argument(metavar="ID", help="submission id of the job, as anmi jobs lists it")],
    address: AddressOption = "",
) -> None:
    """End a job on a cluster. What it has done is kept: the same anmi submit goes on from there."""
    from anmi_ray.cli.console import note
    from anmi_ray.pipeline.jobs import Jobs

    job = Jobs(address).cancel(name, note)
    about = dict(job.metadata or {})
    print(f"{name}: {job.status.lower()}")
    print(f"kept under {about['root']}: finished buckets, answers, checkpoints; submitting run {about['run']} goes on")
