"""`anmi plan`: what a run would do and cost."""

from __future__ import annotations

from anmi_ray.cli.flags import ConfigArg, OverrideArg, RootOption, load


def plan(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Print what each stage would do and cost, doing nothing."""
    from anmi_ray.api import experiments
    from anmi_ray.cli import console
    from anmi_ray.cli.output import working

    experiment = load(config, overrides, root)
    with working("counts rows and tokens"):
        blocks = experiments.plan(experiment).blocks
    out = console.stdout()
    for block in blocks:
        out.print(block)
