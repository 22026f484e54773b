"""`anmi jobs`: experiments and campaigns as jobs on a Ray cluster."""

from __future__ import annotations

import sys
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, Any

import typer

from anmi_ray.cli.flags import (
    COMMAND_LINE,
    AddressOption,
    ConfigArg,
    FromOption,
    OverrideArg,
    RootOption,
    UntilOption,
    load,
    overriding,
)
from anmi_ray.core.errors import ConfigError

if TYPE_CHECKING:
    from anmi_ray.pipeline import submission as submitting

jobs = typer.Typer(name="jobs", help="Submit jobs to a Ray cluster, list them, and cancel one.", no_args_is_help=True)


@jobs.command()
def submit(
    job: Annotated[str, typer.Argument(metavar="JOB", help="pipeline: as anmi run; tune: as anmi tune")],
    config: ConfigArg,
    overrides: OverrideArg = None,
    address: AddressOption = "",
    root: RootOption = None,
    first: FromOption = "",
    last: UntilOption = "",
    attempts: Annotated[
        int,
        typer.Option("--attempts", min=1, max=100, help="times it is carried out at most, when it fails in passing"),
    ] = 3,
    again: Annotated[bool, typer.Option("--again", help="carry out anew what has succeeded on this cluster")] = False,
    follow: Annotated[
        bool, typer.Option("--follow/--no-follow", help="show its log and wait for its end, or leave it to itself")
    ] = True,
    env: Annotated[
        list[str] | None, typer.Option("--env", metavar="NAME", help="give it this environment variable of yours")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(
            "--secret", metavar="NAME", help="the same of a secret: whoever reaches the job server can read it there"
        ),
    ] = None,
    ship_code: Annotated[
        bool, typer.Option("--ship-code", help="bring this checkout's code along, in the place of the image's")
    ] = False,
) -> None:
    """Run an experiment or a campaign as a job on a cluster, and show its log; the exit code is the job's.

    The same command again follows the job that is there, running or succeeded. A job whose driver or node is lost is
    submitted again, and goes on where it was; one that ends with exit code 2, a mistake to fix, is not. Ctrl-C leaves
    the job running. The root must be storage that every node reaches. A campaign with more trials is the same job:
    --again.
    """
    from anmi_ray.cli.console import note
    from anmi_ray.pipeline import submission as submitting

    if job not in submitting.JOBS:
        raise ConfigError(f"no job is called '{job}'", COMMAND_LINE, f"the jobs are {', '.join(submitting.JOBS)}")
    submission, remarks = _submission(job, config, overriding(overrides, root), first, last)
    submission = replace(submission, code=submitting.checkout() if ship_code else ())
    variables = submitting.variables(env or (), secret or ())
    for remark in remarks:
        note(remark)
    from anmi_ray.pipeline import jobs as cluster

    server = cluster.Jobs(address)
    try:
        code = cluster.submit(server, submission, variables, attempts, again, follow, _write, note)
    except KeyboardInterrupt:
        note(
            f"\ndetached, the job goes on: see anmi jobs list --address {server.address}; end it with anmi jobs cancel "
            f"ID --address {server.address}"
        )
        raise
    raise typer.Exit(code)


@jobs.command("list")
def list_(address: AddressOption = "") -> None:
    """List the jobs that were submitted to a cluster, the newest last."""
    from anmi_ray.cli import console
    from anmi_ray.pipeline.jobs import Jobs

    table = console.table("id", "status", "job", "run", "attempt", "started", "took", right=("attempt", "took"))
    for job in Jobs(address).ours():
        table.add_row(*_cells(job))
    console.stdout().print(table)


@jobs.command()
def cancel(
    name: Annotated[str, typer.Argument(metavar="ID", help="submission id of the job, as anmi jobs list shows it")],
    address: AddressOption = "",
) -> None:
    """End a job on a cluster. What it has done is kept: the same anmi jobs submit goes on from there."""
    from anmi_ray.cli.console import note
    from anmi_ray.pipeline.jobs import Jobs

    job = Jobs(address).cancel(name, note)
    about = dict(job.metadata or {})
    print(f"{name}: {job.status.lower()}")
    print(f"kept under {about['root']}: finished buckets, answers, checkpoints; submitting run {about['run']} goes on")


def _submission(
    job: str, config: str, overrides: list[str], first: str, last: str
) -> tuple[submitting.Submission, list[str]]:
    """What is submitted, and what its user should know of it."""
    from anmi_ray.api.experiments import part
    from anmi_ray.pipeline import submission as submitting

    if job == "tune":
        from anmi_ray.config import tune

        if first or last:
            raise ConfigError("--from and --until are for a run, and a campaign has many", COMMAND_LINE, "leave it out")
        experiment, campaign, remarks = submitting.campaign_for_cluster(tune.load(config, overrides))
        return submitting.Submission(job, experiment, campaign=campaign), remarks
    experiment, remarks = submitting.for_cluster(load(config, overrides, None))
    chosen = zip(("--from", "--until"), part(experiment, first, last), (first, last), strict=True)
    words = tuple(word for option, name, given in chosen if given for word in (option, name))
    return submitting.Submission(job, experiment, words), remarks


def _write(text: str) -> None:
    """Print a piece of the job's log."""
    sys.stdout.write(text)
    sys.stdout.flush()


def _cells(job: Any) -> list[str]:
    """A row of the list, from Ray's JobDetails."""
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
