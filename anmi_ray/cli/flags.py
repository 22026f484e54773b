"""Arguments and options that several commands take, and the settings that they name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from anmi_ray.config.experiment import Experiment

COMMAND_LINE = "command line"  # the place of an error in what was typed

ConfigArg = Annotated[str, typer.Argument(metavar="CONFIG", help="YAML file with the settings, see jobs/configs/")]
OverrideArg = Annotated[list[str] | None, typer.Argument(metavar="[KEY=VALUE]...", help="settings to override")]
FromOption = Annotated[str, typer.Option("--from", help="first stage to carry out; those before must be there")]
UntilOption = Annotated[str, typer.Option("--until", help="last stage to carry out")]
RootOption = Annotated[str | None, typer.Option("--root", help="folder or URI for artifacts, runs and reports")]
RunRootOption = Annotated[str, typer.Option("--root", help="folder or URI that holds the run")]
FiguresOption = Annotated[Path | None, typer.Option("--json", help="write every figure as JSON")]
RejectsOption = Annotated[Path | None, typer.Option(help="write the rows that were refused, with place and reason")]
MaxRejectsOption = Annotated[
    float, typer.Option(min=0.0, max=1.0, help="fail if a larger share of the rows is refused")
]
AddressOption = Annotated[
    str,
    typer.Option(
        "--address",
        envvar=["RAY_API_SERVER_ADDRESS", "RAY_ADDRESS"],
        metavar="URL",
        help="the cluster's job server: its dashboard's address, such as http://head:8265",
    ),
]


def load(config: str, overrides: list[str] | None, root: str | None) -> Experiment:
    """The settings of an experiment. Raises ConfigError."""
    from anmi_ray.config.load import load as load_experiment

    return load_experiment(config, overriding(overrides, root))


def overriding(overrides: list[str] | None, root: str | None) -> list[str]:
    """What the command line overrides in a file, --root among it."""
    return [*(overrides or []), *([f"execution.root={json.dumps(root)}"] if root else [])]
