"""`anmi plan`: what a run would do and cost."""

from __future__ import annotations

from anmi_ray.cli.flags import ConfigArg, OverrideArg, RootOption, load


def plan(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Print what each stage would do and cost, doing nothing; exit 2 where a run would fail, as far as is known."""
    from anmi_ray.api import experiments
    from anmi_ray.cli import console
    from anmi_ray.cli.output import working

    experiment = load(config, overrides, root)
    with working("counts rows and tokens"):
        planned = experiments.plan(experiment)
    out = console.stdout()
    for block in planned.blocks:
        out.print(block)
    if planned.problem is not None:
        raise planned.problem
