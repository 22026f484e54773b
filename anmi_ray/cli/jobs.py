"""`anmi jobs`: experiments and campaigns as jobs on a Ray cluster."""

from __future__ import annotations

import time
from dataclasses import replace
from functools import partial
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
    from anmi_ray.pipeline.submission import Submission

jobs = typer.Typer(name="jobs", help="Submit jobs to a Ray cluster, list them, and cancel one.", no_args_is_help=True)


@jobs.command()
def submit(
    job: Annotated[str, typer.Argument(metavar="JOB", help="pipeline: like anmi run; tune: like anmi tune")],
    config: ConfigArg,
    overrides: OverrideArg = None,
    address: AddressOption = "",
    root: RootOption = None,
    first: FromOption = "",
    last: UntilOption = "",
    attempts: Annotated[int, typer.Option(min=1, max=100, help="maximum attempts after transient failures")] = 3,
    again: Annotated[bool, typer.Option("--again", help="repeat a job that succeeded on this cluster")] = False,
    follow: Annotated[bool, typer.Option("--follow/--no-follow", help="print its log and wait for its end")] = True,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="pass this environment variable; may be repeated")
    ] = None,
    secret: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="pass a secret, which anyone who reaches the job server can read there"),
    ] = None,
    ship_code: Annotated[
        bool, typer.Option("--ship-code", help="use this checkout's code instead of the image's")
    ] = False,
) -> None:
    """Run an experiment or a campaign as a job on a cluster, and print its log; the exit code is the job's.

    The same command follows a job that is running or succeeded. A job whose driver or node is lost is submitted again
    and continues; one that ends with exit code 2, a user error, is not. Ctrl-C leaves the job running. The root must be
    storage that every node reaches. A campaign with more trials is the same job: --again.
    """
    from anmi_ray.cli.console import note
    from anmi_ray.pipeline import submission as submitting

    if job not in submitting.JOBS:
        raise ConfigError(f"expected one of {', '.join(submitting.JOBS)}, got '{job}'", COMMAND_LINE, "see --help")
    submission, remarks = _submission(job, config, overriding(overrides, root), first, last)
    submission = replace(submission, code=submitting.checkout() if ship_code else ())
    variables = submitting.variables(env or (), secret or ())
    for remark in remarks:
        note(remark)
    from anmi_ray.pipeline import jobs as cluster

    server = cluster.Jobs(address)
    try:
        log = partial(print, end="", flush=True)
        code = cluster.submit(server, submission, variables, attempts, again, follow, log, note)
    except KeyboardInterrupt:
        note(
            f"\ndetached; the job continues: anmi jobs list --address {server.address} shows it, anmi jobs cancel "
            f"ID --address {server.address} stops it"
        )
        raise
    raise typer.Exit(code)


@jobs.command("list")
def list_(address: AddressOption = "") -> None:
    """List the jobs that were submitted to a cluster, newest last."""
    from anmi_ray.cli import console
    from anmi_ray.pipeline.jobs import Jobs

    console.stdout().print(console.table(map(_row, Jobs(address).ours())))


@jobs.command()
def cancel(
    name: Annotated[str, typer.Argument(metavar="ID", help="submission id of the job, from anmi jobs list")],
    address: AddressOption = "",
) -> None:
    """Stop a job on a cluster. Its results are kept: the same anmi jobs submit continues."""
    from anmi_ray.cli.console import note
    from anmi_ray.pipeline.jobs import Jobs

    job = Jobs(address).cancel(name, note)
    about = dict(job.metadata or {})
    print(f"{name}: {job.status.lower()}")
    print(f"kept under {about['root']}: finished buckets, answers, checkpoints; submit run {about['run']} to continue")


def _submission(job: str, config: str, overrides: list[str], first: str, last: str) -> tuple[Submission, list[str]]:
    """Return what to submit, and remarks for the user."""
    from anmi_ray.api.experiments import part
    from anmi_ray.pipeline import submission as submitting

    if job == "tune":
        from anmi_ray.config import tune

        if first or last:
            raise ConfigError("--from and --until need a run, not a campaign", COMMAND_LINE, "leave them out")
        experiment, campaign, remarks = submitting.campaign_for_cluster(tune.load(config, overrides), config)
        return submitting.Submission(job, experiment, campaign=campaign), remarks
    experiment, remarks = submitting.for_cluster(load(config, overrides, None))
    chosen = zip(("--from", "--until"), part(experiment, first, last), (first, last), strict=True)
    words = tuple(word for option, name, given in chosen if given for word in (option, name))
    return submitting.Submission(job, experiment, words), remarks


def _row(job: Any) -> dict[str, str]:
    """Return a row of the list, from Ray's JobDetails."""
    from anmi_ray.pipeline.submission import OURS

    metadata = job.metadata
    begun = (job.start_time or 0) / 1000
    ended = job.end_time / 1000 if job.end_time else time.time()
    return {
        "id": job.submission_id,
        "status": job.status.lower(),
        "job": metadata[OURS],
        "run": metadata["run"],
        "attempt": metadata["attempt"],
        "started": time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(begun)),
        "took": f"{max(ended - begun, 0.0):,.0f} s",
    }
