"""`anmi config`: the settings as they are read, and what follows from them."""

from __future__ import annotations

from anmi_ray.cli.flags import ConfigArg, OverrideArg, RootOption, load


def config(config: ConfigArg, overrides: OverrideArg = None, root: RootOption = None) -> None:
    """Print every setting, the fingerprints, and which stages a run would redo and why."""
    import yaml

    from anmi_ray.cli import console
    from anmi_ray.pipeline.resolve import changes, resolve

    experiment = load(config, overrides, root)
    out = console.stdout()
    out.print(yaml.safe_dump(experiment.model_dump(mode="json"), sort_keys=False, allow_unicode=True), markup=False)
    resolved = resolve(experiment)
    table = console.table("stage", "state", "why")
    for name, state, why in changes(experiment, resolved):
        table.add_row(f"{name}  {resolved[name].fingerprint}", state, why)
    out.print(table)
