"""`anmi plan`: what a run would do and cost."""

from __future__ import annotations

import typer

from anmi_ray.cli.flags import ConfigArg, OfflineOption, OverrideArg, RootOption, load, wants_json
from anmi_ray.core.errors import facts_of


def plan(
    context: typer.Context,
    config: ConfigArg,
    overrides: OverrideArg = None,
    root: RootOption = None,
    offline: OfflineOption = False,
) -> None:
    """Print what each stage would do and cost, doing nothing; exit 2 where a run would fail, as far as is known."""
    from anmi_ray.api import experiments
    from anmi_ray.cli import console
    from anmi_ray.cli.output import as_json, working

    experiment = load(config, overrides, root)
    with working("counts rows and tokens"):
        planned = experiments.plan(experiment, offline=offline)
    if wants_json(context):
        problem = planned.problem
        print(as_json({"stages": planned.stages, "lines": planned.lines, **(facts_of(problem) if problem else {})}))
        raise typer.Exit(problem.exit_code if problem else 0)
    out = console.stdout()
    for block in planned.blocks:
        out.print(block)
    if planned.problem is not None:
        raise planned.problem
